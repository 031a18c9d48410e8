"""Audits: check a GGUF file, so that every byte is owned, explained and judged.

This package may import `llama`, `hosts`, `gguf`, `formats`, `results` and `support`.
"""
