"""f32: weights dequantized to float32 times float32 activations."""

from __future__ import annotations

from ..family import Family

FAMILY = Family("f32", "the fastest f32 kernel for each product")
