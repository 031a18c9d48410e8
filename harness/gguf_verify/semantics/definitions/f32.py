"""`f32`: activations stay float32 and weights are dequantized, as in kernels called W4A16.

The bound is that of products of decoded values. A kernel that multiplies an offset or a minimum separately, as in d·Σ
q·a - 8·d·Σ a, has larger float32 errors if activations have outliers, which cancel between the two sums.
"""

from __future__ import annotations

from ..definition import ElementRounding, Semantics
from ..encodings.values import FLOAT32
from ..terms.values import VALUES

F32 = Semantics(
    name="f32",
    title="Σ a·w, w dequantized to float32",
    source="dequantize and multiply; W4A16, W8A16 kernels; llama.cpp CPU",
    encoding=FLOAT32,
    term=VALUES,
    any_format=True,
    elements=ElementRounding(flushed=0.0, underflow=2.0**-149, exact=False),
)
