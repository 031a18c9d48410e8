"""`mmq_ds4`: activations of llama.cpp's CUDA kernels for many tokens, layout DS4: half scales and sums.

The bytes here are blocks of Q8_1, one after the other; `mmq_ds4_bytes` has them as llama.cpp's kernels take them.
"""

from __future__ import annotations

import numpy as np

from ...formats.c_arithmetic import to_half
from ...formats.q8_1 import Q8_1
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios, pairwise_sum
from ..encoding import Encoding


def encode_mmq(x: Floats) -> Bytes:
    """Encode d as a half, s = half(Σx), summed by fours and then over lanes at distance 4, 2 and 1.

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


DS4 = Encoding(
    name="mmq_ds4",
    title="Q8_1: q = round(x·(127/max)), d = half(1/(127/max)), s = half(Σ x) of raw values",
    source="llama.cpp CUDA (ggml-cuda/quantize.cu, quantize_mmq_q8_1)",
    encode=encode_mmq,
    format=Q8_1,
    ratios=mmq_ratios,
    values_per_sum=32,
    raw_sum=True,
    cuda_path="MMQ",
)
