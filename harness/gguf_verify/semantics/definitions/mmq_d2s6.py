"""`mmq_d2s6`: llama.cpp's CUDA kernels for many tokens and Q2_K, with activations in the layout D2S6.

64 values share a scale, and a sum is that of 16 raw values. A block has room for six of its eight sums: the minima of
the last 32 values are multiplied by d_a·Σ q_a.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...formats.c_arithmetic import to_half
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios, padded, pairwise_sum
from ..definition import Semantics
from ..encoding import Encoding
from ..encodings.mmq_blocks import D2S6_BLOCK, SIZE
from ..terms.codes import MMQ_TERM


def encode_mmq_d2s6(x: Floats) -> Bytes:
    """Encode d = half(1/(127/max)) of 64 values, s = half(Σx) of 16, by fours and then over lanes at distance 2 and 1.

    quantize_mmq_q8_1 (ggml-cuda/quantize.cu). Returns uint8[M, ceil(K/128)·144]; values past K are zeros.
    """
    whole = blocks_of(padded(x, SIZE), SIZE)
    d, q = mmq_codes(whole.reshape(*whole.shape[:-1], 2, 64))
    fours = whole.reshape(*whole.shape[:-1], 8, 4, 4)
    with np.errstate(over="ignore", invalid="ignore"):
        lanes = fours[..., 0] + fours[..., 1] + fours[..., 2] + fours[..., 3]
        sums = pairwise_sum(lanes, (2, 1))[..., :6]
    head = np.concatenate([to_half(d), to_half(sums)], axis=-1)
    return D2S6_BLOCK.pack(ds=head, qs=q.reshape(whole.shape)).reshape(len(x), -1)


def _sums(structs: npt.NDArray[np.void]) -> Floats:
    stored = np.asarray(structs["ds"])[..., 2:].astype(np.float32)
    return np.concatenate([stored, np.full((*stored.shape[:-1], 2), np.nan, np.float32)], axis=-1)


D2S6 = Encoding(
    name="mmq_d2s6",
    title="block_q8_1_mmq, layout D2S6: half d of 64 values, half s = half(Σ x) of 16, of the first 96 of 128",
    source="llama.cpp CUDA (ggml-cuda/quantize.cu, quantize_mmq_q8_1)",
    encode=encode_mmq_d2s6,
    format=D2S6_BLOCK,
    ratios=mmq_ratios,
    values_per_scale=64,
    values_per_sum=16,
    raw_sum=True,
    read_sums=_sums,
)

MMQ_D2S6 = Semantics(
    name="mmq_d2s6",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of 16 raw values (of the last 32 of each 128: d_a·Σ q_a), d_w and "
    "m_w rounded to half; q_a = round(x·(127/max)), d_a = half(1/(127/max)) of 64 values",
    source="llama.cpp CUDA MMQ of Q2_K on tensor cores (ggml-cuda/mmq.cuh, layout D2S6; quantize.cu)",
    encoding=D2S6,
    term=MMQ_TERM,
)
