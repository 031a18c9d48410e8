"""`mmq`: llama.cpp's CUDA kernels for many tokens, with activations in the layout DS4: half scales and sums.

The bytes of `mmq_ds4` are blocks of Q8_1, one after the other; `mmq_ds4_bytes` has them as llama.cpp's kernels take
them: `block_q8_1_mmq`, 144 of 128 values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...formats.c_arithmetic import to_half
from ...formats.q8_1 import Q8_1
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios, pairwise_sum
from ..definition import Semantics
from ..encoding import Encoding
from ..encodings.mmq_blocks import DS4_BLOCK, packed
from ..terms.codes import MMQ_TERM


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


def encode_mmq_ds4_bytes(x: Floats) -> Bytes:
    """Return uint8[M, ceil(K/128)·144]; values past K are zeros."""
    return packed(DS4.encode(x))


def _sums(structs: npt.NDArray[np.void]) -> Floats:
    return np.asarray(structs["ds"])[..., 1::2].astype(np.float32)


DS4_BYTES = Encoding(
    name="mmq_ds4_bytes",
    title="block_q8_1_mmq, layout DS4: 4 × (half d, half s), 128 codes; d, s and codes as `mmq_ds4`",
    source=DS4.source,
    encode=encode_mmq_ds4_bytes,
    format=DS4_BLOCK,
    ratios=DS4.ratios,
    rearranges=(DS4, packed),
    values_per_sum=32,
    raw_sum=True,
    read_sums=_sums,
)

MMQ = Semantics(
    name="mmq",
    title="with an offset, d_w·d_a·Σ (q_w - offset)·q_a; else d_w·d_a·Σ q_w·q_a + m_w·s, s = half(Σ x) of raw values, "
    "d_w and m_w of superblocks rounded to half; q_a = round(x·(127/max)), d_a = half(1/(127/max))",
    source="llama.cpp CUDA MMQ on tensor cores (ggml-cuda/mmq.cuh, layout DS4; quantize.cu)",
    encoding=DS4,
    term=MMQ_TERM,
)
