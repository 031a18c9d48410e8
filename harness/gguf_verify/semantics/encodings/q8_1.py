"""`q8_1`: blocks of 32 with s, the sum of the raw values, as this project and llama.cpp's CUDA kernels quantize.

llama.cpp does so for few tokens. MMQ before August 2024, and the engines that adopted it, do so for any number.
"""

from __future__ import annotations

import numpy as np

from ...formats.c_arithmetic import round_half_away, to_half
from ...formats.q8_1 import Q8_1
from ..activations import Bytes, Floats, blocks_of, butterfly_sum, largest
from ..encoding import Encoding


def ratios(blocks: Floats) -> tuple[Floats, Floats]:
    """Return x/d and d = max|x|/127."""
    d = largest(blocks) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return blocks / d[..., None], d


def encode_q8_1(x: Floats) -> Bytes:
    """Encode d = max|x|/127, q = round-half-away(x/d) with d before its rounding, s = half(Σx).

    Source: llama.cpp v0.5.0, ggml-cuda/quantize.cu, quantize_q8_1, with IEEE division. NaN and values over a zero d
    have code 0; codes are clamped to ±127, which only a subnormal d can need.

    Returns:
        uint8[M, K/32·36].
    """
    blocks = blocks_of(x)
    ratio, d = ratios(blocks)
    with np.errstate(invalid="ignore", over="ignore"):
        q = round_half_away(ratio)
        np.clip(q, -127, 127, out=q)
        np.copyto(q, 0, where=np.isnan(q) | ~(d > 0)[..., None])
    return Q8_1.pack(d=to_half(d), s=to_half(butterfly_sum(blocks)), qs=q.astype(np.int8)).reshape(len(x), -1)


RAW_Q8_1 = Encoding(
    name="q8_1",
    title="Q8_1: d = half(max|x|/127), q = round(x/d), s = half(Σ x) of raw values",
    source="this project's kernels; llama.cpp CUDA (ggml-cuda/quantize.cu, quantize_q8_1)",
    encode=encode_q8_1,
    format=Q8_1,
    ratios=ratios,
    values_per_sum=32,
    raw_sum=True,
    cuda_path="MMVQ",
)
