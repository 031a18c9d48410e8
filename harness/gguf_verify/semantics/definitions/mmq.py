"""`mmq`: llama.cpp's CUDA kernels for many tokens, with activations in the layout DS4: half scales and sums."""

from __future__ import annotations

import numpy as np

from ...formats import BlockFormat
from ...formats.c_arithmetic import to_half
from ...formats.q8_1 import Q8_1
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios, pairwise_sum
from ..definition import Semantics


def encode_mmq(x: Floats) -> Bytes:
    """d as a half, s = half(Σx), summed by fours and then over lanes at distance 4, 2 and 1.

    The layout DS4 of quantize_mmq_q8_1 (ggml-cuda/quantize.cu), each of its blocks as one of Q8_1.

    Returns:
        uint8[M, K/32·36].
    """
    blocks = blocks_of(x)
    d, q = mmq_codes(blocks)
    fours = blocks.reshape(*blocks.shape[:-1], 8, 4)
    with np.errstate(over="ignore", invalid="ignore"):
        lanes = fours[..., 0] + fours[..., 1] + fours[..., 2] + fours[..., 3]
    return Q8_1.pack(d=to_half(d), s=to_half(pairwise_sum(lanes, (4, 2, 1))), qs=q).reshape(len(x), -1)


def _offset_of_integers(fmt: BlockFormat) -> bool:
    return fmt.offset != 0 and fmt.llama.mmq == "mmq"


def _half_scales(fmt: BlockFormat) -> bool:
    return not fmt.min_times_sum and fmt.llama.mmq == "mmq"


MMQ = Semantics(
    name="mmq",
    title="with an offset, d_w·d_a·Σ (q_w - offset)·q_a; else d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values, "
    "d_w and m_w of superblocks rounded to half; q_a = round(x·(127/max)), d_a = half(1/(127/max))",
    source="llama.cpp CUDA MMQ on tensor cores (ggml-cuda/mmq.cuh, layout DS4; quantize.cu)",
    activations=Q8_1,
    encode=encode_mmq,
    ratios=mmq_ratios,
    integer_offset=_offset_of_integers,
    half_scales=_half_scales,
    raw_sum=True,
    cuda_path="MMQ",
)
