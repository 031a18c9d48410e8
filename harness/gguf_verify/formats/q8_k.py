"""Q8_K: 256 signed bytes of activations under one float32 scale, with the sums of each 16: llama.cpp's CPU backend."""

from __future__ import annotations

import struct

from . import _slow as slow
from ._legacy import read_bytes
from .block import QK_K, BlockFormat
from .layout import Bits, Field, each


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q8_K: d as a float, 256 signed bytes, 16 sums that only products read"""
    (d,) = struct.unpack_from("<f", raw, 0)
    return [slow.times(q, d) for q in struct.unpack_from("<256b", raw, 4)]


Q8_K = BlockFormat(
    name="Q8_K",
    type_id=15,
    block_size=QK_K,
    fields=(
        Field("d", "<f4", 1, "scale", each(1, Bits(32, "float, scale"))),
        Field("qs", "i1", QK_K, "codes in order", each(QK_K, Bits(8, "x", 0))),
        Field("bsums", "<i2", QK_K // 16, "sums of 16 codes", each(QK_K // 16, Bits(16, "sum", 0))),
    ),
    bits=8,
    group=QK_K,
    low=-128,
    read_codes=read_bytes,
    slow_decode=_slow_decode,
    activations=True,
)
