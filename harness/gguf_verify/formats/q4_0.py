"""Q4_0: 32 values of 4 bits under one half scale; the code 8 stands for zero."""

from __future__ import annotations

from . import _slow as slow
from ._legacy import NIBBLES, D, encode_symmetric, packed_codes, read_nibbles
from .block import QK, BlockFormat, Bytes, Floats
from .c_arithmetic import to_half
from .llama_products import LlamaProducts


def _encode(x: Floats) -> Bytes:
    d, q = encode_symmetric(4, x)
    return Q4_0.pack(d=to_half(d), qs=packed_codes(q)["qs"])


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q4_0"""
    d, qs = slow.read_half(raw, 0), raw[2:18]
    return [slow.times(b % 16 - 8, d) for b in qs] + [slow.times(b // 16 - 8, d) for b in qs]


Q4_0 = BlockFormat(
    name="Q4_0",
    type_id=2,
    file_type=2,
    block_size=QK,
    fields=(D, NIBBLES),
    bits=4,
    offset=8,
    rule="x = d·(q - 8)",
    read_codes=read_nibbles,
    encode_values=_encode,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq"),
)
