"""`q8_1_half`: as `q8_1`, with products of scales and of minima rounded to half: MMVQ for blocks with a minimum."""

from __future__ import annotations

from ...formats.block import BlockFormat
from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..term import Halves
from ..terms.codes import CodeTerm


class _HalfProducts(CodeTerm):
    def rounded(self, fmt: BlockFormat) -> Halves:
        return "products" if fmt.has_min and fmt.min_times_sum else ""  # `__hmul2`


HALF_PRODUCTS = _HalfProducts(
    name="half_products",
    title="half(d_w·d_a)·Σ q_w·q_a + half(m_w·s) of blocks with a minimum; the others as `sums`",
)
Q8_1_HALF = Semantics(
    name="q8_1_half",
    title="half(d_w·d_a)·Σ q_w·q_a + half(m_w·s), s = half(Σ x) of raw values",
    source="llama.cpp CUDA MMVQ on GPUs with fast half (ggml-cuda/vecdotq.cuh, __hmul2)",
    encoding=RAW_Q8_1,
    term=HALF_PRODUCTS,
)
