"""Foreign kernels: the interface for their authors, and the process that each runs in.

This package may import the rest of `gguf_verify.kernels` and what that may import.
"""
