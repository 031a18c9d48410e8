"""`bfloat16_steps`: weights are dequantized by bfloat16 arithmetic, each step rounded, and multiplied."""

from __future__ import annotations

from ..term import Term

BFLOAT16_STEPS = Term(
    name="bfloat16_steps",
    title="Σ a·w, w dequantized by bfloat16 arithmetic, each step rounded to bfloat16",
    weights="bfloat16",
    steps=True,
)
