"""gguf: the contents and layout of a GGUF file, read from untrusted bytes by this project's own parser.

This package may import `formats` and `support`.
"""
