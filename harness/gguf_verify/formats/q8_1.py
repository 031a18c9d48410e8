"""Q8_1: 32 signed bytes of activations under one half scale, beside their sum s as a half.

The sum is d·Σq on llama.cpp's CPU backend, and that of the raw values on its CUDA backend.
"""

from __future__ import annotations

import struct

import numpy as np

from . import _slow as slow
from ._legacy import SIGNED_BYTES, D, encode_eight_bits, read_bytes
from .block import QK, BlockFormat, Bytes, Floats
from .c_arithmetic import to_half
from .layout import Bits, Field, each

_S = Field("s", "<f2", 1, "sum: d·Σq on the CPU, Σx of raw values on CUDA", each(1, Bits(16, "sum")))


def _encode(x: Floats) -> Bytes:
    """`quantize_row_q8_1_ref`: s is half(d·Σq), not the sum of the raw values that CUDA stores."""
    d, q = encode_eight_bits(x)
    with np.errstate(invalid="ignore", over="ignore"):
        s = q.sum(axis=-1, dtype=np.int32).astype(np.float32) * d
    return Q8_1.pack(d=to_half(d), s=to_half(s), qs=q)


def _slow_decode(raw: bytes) -> list[float]:
    """q·d as in Q8_0: llama.cpp has no function for it, since only products use s."""
    d = slow.read_half(raw, 0)
    return [slow.times(q, d) for q in struct.unpack_from("<32b", raw, 4)]


Q8_1 = BlockFormat(
    name="Q8_1",
    type_id=9,
    block_size=QK,
    fields=(D, _S, SIGNED_BYTES),
    bits=8,
    low=-128,
    read_codes=read_bytes,
    encode_values=_encode,
    slow_decode=_slow_decode,
    activations=True,
)
