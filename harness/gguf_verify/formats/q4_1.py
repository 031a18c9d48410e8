"""Q4_1: 32 values of 4 bits under one half scale, above a half minimum."""

from __future__ import annotations

from . import _slow as slow
from ._legacy import NIBBLES, D, M, encode_affine, packed_codes, read_nibbles
from .block import QK, BlockFormat, Bytes, Floats
from .c_arithmetic import to_half
from .llama_products import LlamaProducts


def _encode(x: Floats) -> Bytes:
    d, m, q = encode_affine(4, x)
    return Q4_1.pack(d=to_half(d), m=to_half(m), qs=packed_codes(q)["qs"])


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q4_1"""
    d, m, qs = slow.read_half(raw, 0), slow.read_half(raw, 2), raw[4:20]
    codes = [b % 16 for b in qs] + [b // 16 for b in qs]
    return [slow.plus(slow.times(q, d), m) for q in codes]


Q4_1 = BlockFormat(
    name="Q4_1",
    type_id=3,
    file_type=3,
    block_size=QK,
    fields=(D, M, NIBBLES),
    bits=4,
    rule="x = d·q + m",
    read_codes=read_nibbles,
    encode_values=_encode,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_1_cpu", mmvq="q8_1_half", mmq="mmq"),
)
