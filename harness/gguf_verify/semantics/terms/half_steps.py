"""`half_steps`: weights are dequantized by half arithmetic, each step rounded, and multiplied."""

from __future__ import annotations

from ..term import Term

HALF_STEPS = Term(
    name="half_steps",
    title="Σ a·w, w dequantized by half arithmetic, each step rounded to half",
    weights="float16",
    steps=True,
)
