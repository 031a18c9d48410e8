"""Q8_0: 32 signed bytes under one half scale, for weights and for the activations of llama.cpp's CPU backend."""

from __future__ import annotations

import struct

from . import _slow as slow
from ._legacy import SIGNED_BYTES, D, encode_eight_bits, read_bytes
from .block import QK, BlockFormat, Bytes, Floats
from .c_arithmetic import to_half
from .llama_products import LlamaProducts


def _encode(x: Floats) -> Bytes:
    d, q = encode_eight_bits(x)
    return Q8_0.pack(d=to_half(d), qs=q)


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q8_0"""
    d = slow.read_half(raw, 0)
    return [slow.times(q, d) for q in struct.unpack_from("<32b", raw, 2)]


Q8_0 = BlockFormat(
    name="Q8_0",
    type_id=8,
    file_type=7,
    block_size=QK,
    fields=(D, SIGNED_BYTES),
    bits=8,
    low=-128,
    read_codes=read_bytes,
    encode_values=_encode,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4"),
    activations=True,
)
