"""llama.cpp as the reference, in its own process: its library, passes over files, and a model with its graph.

This package may import hosts, semantics, gguf, formats, results and support. `worker/` runs in llama.cpp's process, the
rest in ours; `backends/` holds one file for each supported backend of llama.cpp.
"""
