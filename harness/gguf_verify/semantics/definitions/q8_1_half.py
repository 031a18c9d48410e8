"""`q8_1_half`: as `q8_1`, with products of scales and of minima rounded to half: MMVQ for blocks with a minimum."""

from __future__ import annotations

from ...formats import BlockFormat
from ...formats.q8_1 import Q8_1
from ..definition import Semantics
from .q8_1 import encode_q8_1, ratios


def _stores_one_minimum(fmt: BlockFormat) -> bool:
    return fmt.has_min and fmt.min_times_sum


Q8_1_HALF = Semantics(
    name="q8_1_half",
    title="half(d_w·d_a)·Σ q_w·q_a + half(m_w·s), s = half(Σ x) of raw values",
    source="llama.cpp CUDA MMVQ on GPUs with fast half (ggml-cuda/vecdotq.cuh, __hmul2)",
    activations=Q8_1,
    encode=encode_q8_1,
    ratios=ratios,
    half_products=_stores_one_minimum,
    raw_sum=True,
    cuda_path="MMVQ",
)
