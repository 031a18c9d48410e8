"""`f32_apart`: as `f32`, but offsets and minima are multiplied by sums of activations, as in d·Σ q·a - 8·d·Σ a.

The exact product is that of `f32`, with weights that are not rounded. The two sums of a block cancel, so errors are
larger if an activation is large: a value A among small ones leaves up to about u·8·d·A, even if its weight is zero.
"""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.float32 import FLOAT32
from ..terms.values_apart import VALUES_APART

F32_APART = Semantics(
    name="f32_apart",
    title="d·Σ q·a + m·Σ a in float32, with m = -offset·d or the minimum",
    source="W4A16 kernels that multiply the offset or the minimum by Σ a",
    encoding=FLOAT32,
    term=VALUES_APART,
    any_format=True,
)
