"""`bfloat16_values`: weights are dequantized, rounded once to bfloat16 and multiplied."""

from __future__ import annotations

from ..term import Term

BFLOAT16_VALUES = Term(
    name="bfloat16_values",
    title="Σ a·bfloat16(w)",
    weights="bfloat16",
)
