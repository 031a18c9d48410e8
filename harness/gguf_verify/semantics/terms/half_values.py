"""`half_values`: weights are dequantized, rounded once to half and multiplied."""

from __future__ import annotations

from ..term import Term

HALF_VALUES = Term(
    name="half_values",
    title="Σ a·half(w)",
    weights="float16",
)
