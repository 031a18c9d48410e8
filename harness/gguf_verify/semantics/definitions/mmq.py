"""`mmq`: llama.cpp's CUDA kernels for many tokens, with activations in the layout DS4: half scales and sums."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.mmq_ds4 import DS4
from ..terms.mmq import MMQ_TERM

MMQ = Semantics(
    name="mmq",
    title="with an offset, d_w·d_a·Σ (q_w - offset)·q_a; else d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values, "
    "d_w and m_w of superblocks rounded to half; q_a = round(x·(127/max)), d_a = half(1/(127/max))",
    source="llama.cpp CUDA MMQ on tensor cores (ggml-cuda/mmq.cuh, layout DS4; quantize.cu)",
    encoding=DS4,
    term=MMQ_TERM,
)
