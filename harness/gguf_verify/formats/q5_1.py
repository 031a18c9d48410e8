"""Q5_1: 32 values of 5 bits under one half scale, above a half minimum; the fifth bits lie apart."""

from __future__ import annotations

import struct

from . import _slow as slow
from ._legacy import NIBBLES, QH, D, M, encode_affine, packed_codes, read_nibbles_and_fifth_bits
from .block import QK, BlockFormat, Bytes, Floats
from .c_arithmetic import to_half
from .llama_products import LlamaProducts


def _encode(x: Floats) -> Bytes:
    d, m, q = encode_affine(5, x)
    return Q5_1.pack(d=to_half(d), m=to_half(m), **packed_codes(q))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q5_1"""
    d, m, (qh,) = slow.read_half(raw, 0), slow.read_half(raw, 2), struct.unpack_from("<I", raw, 4)
    return [slow.plus(slow.times(q, d), m) for q in slow.five_bits(qh, raw[8:24])]


Q5_1 = BlockFormat(
    name="Q5_1",
    type_id=7,
    file_type=9,
    block_size=QK,
    fields=(D, M, QH, NIBBLES),
    bits=5,
    rule="x = d·q + m",
    read_codes=read_nibbles_and_fifth_bits,
    encode_values=_encode,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_1_cpu", mmvq="q8_1_half", mmq="mmq"),
)
