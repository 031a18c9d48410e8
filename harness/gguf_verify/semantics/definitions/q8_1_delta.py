"""`q8_1_delta`: llama.cpp's CUDA kernels of IQ1_S for few tokens: a part of each weight is a factor of the raw sum."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..terms.delta_sums import DELTA_SUMS

Q8_1_DELTA = Semantics(
    name="q8_1_delta",
    title="of IQ1_S d_w·(d_a·Σ (grid + 1)·q_a + (±1/8 - 1)·s), s = half(Σ x) of raw values; else as `q8_1`",
    source="llama.cpp CUDA MMVQ of IQ1_S (ggml-cuda/vecdotq.cuh, vec_dot_iq1_s_q8_1)",
    encoding=RAW_Q8_1,
    term=DELTA_SUMS,
)
