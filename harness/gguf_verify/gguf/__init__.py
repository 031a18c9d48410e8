"""gguf: what a GGUF file holds and where, read from untrusted bytes by a parser of our own.

This room may import `formats` and `support`.
"""
