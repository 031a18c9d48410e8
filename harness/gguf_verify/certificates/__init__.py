"""Certificates: a verdict with the digests of everything it depends on, to check, sign and list.

A certificate is an in-toto Statement v1. Its subjects are the files of the model and of the kernel; its predicate says
what was run, with which software, and the result. This package may import `kernels`, `llama`, `gguf`, `results`,
`processes` and `support`.
"""
