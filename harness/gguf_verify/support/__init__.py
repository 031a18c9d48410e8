"""Infrastructure for every layer: processes' protocol, caches, progress, errors.

This package imports nothing of `gguf_verify` but itself.
"""
