"""The tokens rung: the model generates, or embeds, with the kernel's GEMMs in place of llama.cpp's own."""

from .rung import RUNG

__all__ = ["RUNG"]
