"""f16: weights dequantized to halves times activations rounded to halves."""

from __future__ import annotations

from ..family import Family

FAMILY = Family("f16", "the fastest f16 kernel for each product")
