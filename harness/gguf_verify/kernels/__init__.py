"""Kernels: the interface that rungs use, the shipped ladder, its families, and foreign kernels.

This package may import `hosts`, `semantics`, `gguf`, `formats`, `results` and `support`.
"""
