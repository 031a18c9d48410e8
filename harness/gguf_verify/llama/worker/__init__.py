"""What runs in llama.cpp's process: `python -m gguf_verify.llama.worker FD`.

It answers one call after the other over the given socket. Each module holds the calls of one kind; `__main__.py` looks
them up by name. What llama.cpp prints goes to standard error, which the parent keeps. If llama.cpp kills this process,
the parent reports that as a finding.
"""
