"""Q5_0: 32 values of 5 bits under one half scale; the code 16 stands for zero, and the fifth bits lie apart."""

from __future__ import annotations

import struct

from . import _slow as slow
from ._legacy import NIBBLES, QH, D, encode_symmetric, packed_codes, read_nibbles_and_fifth_bits
from .block import QK, BlockFormat, Bytes, Floats
from .c_arithmetic import to_half
from .llama_products import LlamaProducts


def _encode(x: Floats) -> Bytes:
    d, q = encode_symmetric(5, x)
    return Q5_0.pack(d=to_half(d), **packed_codes(q))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q5_0"""
    d, (qh,) = slow.read_half(raw, 0), struct.unpack_from("<I", raw, 2)
    return [slow.times(q - 16, d) for q in slow.five_bits(qh, raw[6:22])]


Q5_0 = BlockFormat(
    name="Q5_0",
    type_id=6,
    file_type=8,
    block_size=QK,
    fields=(D, QH, NIBBLES),
    bits=5,
    offset=16,
    rule="x = d·(q - 16)",
    read_codes=read_nibbles_and_fifth_bits,
    encode_values=_encode,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4"),
)
