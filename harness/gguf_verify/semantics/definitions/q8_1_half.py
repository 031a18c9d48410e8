"""`q8_1_half`: as `q8_1`, with products of scales and of minima rounded to half: MMVQ for blocks with a minimum."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..terms.half_products import HALF_PRODUCTS

Q8_1_HALF = Semantics(
    name="q8_1_half",
    title="half(d_w·d_a)·Σ q_w·q_a + half(m_w·s), s = half(Σ x) of raw values",
    source="llama.cpp CUDA MMVQ on GPUs with fast half (ggml-cuda/vecdotq.cuh, __hmul2)",
    encoding=RAW_Q8_1,
    term=HALF_PRODUCTS,
)
