"""`mmq_d4_bytes`: as `mmq_d4`, in the bytes that llama.cpp's kernels take: `block_q8_1_mmq`, 144 of 128 values."""

from __future__ import annotations

from ..activations import Bytes, Floats
from ..encoding import Encoding
from ._mmq_blocks import D4_BLOCK, packed
from .mmq_d4 import D4


def encode_mmq_d4_bytes(x: Floats) -> Bytes:
    """Return uint8[M, ceil(K/128)·144]; values past K are zeros."""
    return packed(D4.encode(x))


D4_BYTES = Encoding(
    name="mmq_d4_bytes",
    title="block_q8_1_mmq, layout D4: 4 × float32 d, 128 codes; d and codes as `mmq_d4`",
    source=D4.source,
    encode=encode_mmq_d4_bytes,
    format=D4_BLOCK,
    ratios=D4.ratios,
    rearranges=(D4, packed),
)
