"""`mmq_d4`: llama.cpp's CUDA kernels for many tokens, with activations in the layout D4: float32 scales, no sums."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.mmq_d4 import D4
from ..terms.integers import INTEGERS

MMQ_D4 = Semantics(
    name="mmq_d4",
    title="d_w·d_a·Σ (q_w - offset)·q_a; q_a = round(x·(127/max)), d_a = 1/(127/max), a float32",
    source="llama.cpp CUDA MMQ on tensor cores (ggml-cuda/mmq.cuh, layout D4; quantize.cu)",
    encoding=D4,
    term=INTEGERS,
)
