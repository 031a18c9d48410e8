"""`mmq_older`: MMQ of llama.cpp before August 2024, as vLLM and candle adopted it: Q8_1 for any number of tokens.

It differs from `q8_1` in the minima of superblocks, which are multiplied by the stored s.
"""

from __future__ import annotations

from ...formats.block import QK, BlockFormat
from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..terms.codes import CodeTerm


class _SuperblockSums(CodeTerm):
    def meets_sum(self, fmt: BlockFormat) -> bool:
        return fmt.group >= QK


SUPERBLOCK_SUMS = _SuperblockSums(
    name="superblock_sums",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, also of superblocks with parts of 32, with scales in full precision; "
    "with an offset as `sums`",
)
MMQ_OLDER = Semantics(
    name="mmq_older",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values, also of superblocks, whose scales are not rounded",
    source="llama.cpp CUDA MMQ of before August 2024; vLLM ggml_mul_mat_a8; candle (quantized.cu)",
    encoding=RAW_Q8_1,
    term=SUPERBLOCK_SUMS,
)
