"""`q8_1`: llama.cpp's CUDA kernels for few tokens, and this project's own: s is the sum of the raw values."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..terms.codes import SUMS

Q8_1_RAW = Semantics(
    name="q8_1",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values; with an offset, d_w·(d_a·Σ q_w·q_a - offset·s); "
    "minima of superblocks: m_w·d_a·Σ q_a",
    source="this project's kernels; llama.cpp CUDA MMVQ (ggml-cuda/vecdotq.cuh, quantize.cu)",
    encoding=RAW_Q8_1,
    term=SUMS,
    any_format=True,
)
