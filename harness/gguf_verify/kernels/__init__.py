"""Kernels: what multiplies. The interface that rungs ask, the shipped ladder, its families, and kernels of others.

This room may import `hosts`, `semantics`, `gguf`, `formats`, `results` and `support`.
"""
