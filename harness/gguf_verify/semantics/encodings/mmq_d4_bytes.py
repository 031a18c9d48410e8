"""`mmq_d4_bytes`: as `mmq_d4`, in the bytes that llama.cpp's kernels take: `block_q8_1_mmq`, 144 of 128 values."""

from __future__ import annotations

import numpy as np

from ..activations import Bytes, Floats
from ..encoding import Encoding
from ._mmq_blocks import D4_BLOCK, SIZE
from .mmq_d4 import D4


def encode_mmq_d4_bytes(x: Floats) -> Bytes:
    """uint8[M, K/128·144]. Raises ValueError where K is not a whole number of blocks of 128."""
    if x.shape[1] % SIZE:
        raise ValueError(f"a row of {x.shape[1]} activations is not a whole number of blocks of {SIZE}")
    blocks = D4.encode(x).reshape(len(x), -1, 4, 36)
    head = blocks[..., :4].reshape(*blocks.shape[:2], 16)
    return np.concatenate([head, blocks[..., 4:].reshape(*blocks.shape[:2], SIZE)], axis=-1).reshape(len(x), -1)


D4_BYTES = Encoding(
    name="mmq_d4_bytes",
    title="block_q8_1_mmq, layout D4: 4 × float32 d, 128 codes; d and codes as `mmq_d4`",
    source=D4.source,
    encode=encode_mmq_d4_bytes,
    format=D4_BLOCK,
    ratios=D4.ratios,
)
