"""`values`: weights are dequantized to float32 and multiplied."""

from __future__ import annotations

from ..term import Term

VALUES = Term(
    name="values",
    title="Σ a·w, w dequantized to float32",
    weights="float32",
    order_known=True,
)
