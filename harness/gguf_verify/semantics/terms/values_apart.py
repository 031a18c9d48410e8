"""`values_apart`: offsets and minima are multiplied by sums of activations."""

from __future__ import annotations

from ..term import Term

VALUES_APART = Term(
    name="values_apart",
    title="d_w·Σ q_w·a + m_w·Σ a, with m_w = -offset·d_w or the minimum",
    weights="float32",
    minima_apart=True,
)
