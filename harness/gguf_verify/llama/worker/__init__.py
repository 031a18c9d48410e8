"""The program in llama.cpp's process: `python -m gguf_verify.llama.worker FD`.

It answers one call after the other over the given socket. Each module holds calls of one kind; `__main__.py` dispatches
them by name. llama.cpp's output goes to standard error, which the parent keeps. If llama.cpp kills this process, the
parent reports that as a finding.
"""
