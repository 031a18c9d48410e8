"""gguf-verify: proves, on the bytes of a real model, that a kernel computes what llama.cpp computes."""

from .verify import Report, verify

__all__ = ["Report", "verify"]
