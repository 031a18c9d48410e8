"""`mmq_d2s6`: llama.cpp's CUDA kernels for many tokens and Q2_K, with activations in the layout D2S6."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.mmq_d2s6 import D2S6
from ..terms.mmq import MMQ_TERM

MMQ_D2S6 = Semantics(
    name="mmq_d2s6",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of 16 raw values (of the last 32 of each 128: d_a·Σ q_a), d_w and "
    "m_w rounded to half; q_a = round(x·(127/max)), d_a = half(1/(127/max)) of 64 values",
    source="llama.cpp CUDA MMQ of Q2_K on tensor cores (ggml-cuda/mmq.cuh, layout D2S6; quantize.cu)",
    encoding=D2S6,
    term=MMQ_TERM,
)
