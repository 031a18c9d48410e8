"""Foreign kernels, written by others: what their authors write, and the process that each runs in.

This room may import the rest of `gguf_verify.kernels` and what that may import.
"""
