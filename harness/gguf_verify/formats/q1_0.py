"""Q1_0: 128 signs under one half scale."""

from __future__ import annotations

import numpy as np

from ..support.arrays import bits_of
from . import _slow as slow
from ._legacy import D
from .block import BlockFormat, Bytes, Codes, Structs
from .layout import Bits, Field, each
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    bits: Bytes = bits_of(structs["qs"])
    return 2 * bits.astype(np.int8) - np.int8(1)


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q1_0: d, 16 bytes of bits"""
    d = slow.read_half(raw, 0)
    return [d if slow.field_of_byte(raw[2 + i // 8], i % 8, 1) else -d for i in range(128)]


Q1_0 = BlockFormat(
    name="Q1_0",
    type_id=41,
    file_type=40,
    block_size=128,
    fields=(
        D,
        Field(
            "qs",
            "u1",
            16,
            "a sign for each value, in order: 0 is -1, 1 is +1",
            each(16, *(Bits(1, "x", i, step=8) for i in range(7, -1, -1))),
        ),
    ),
    bits=2,
    group=128,
    low=-1,
    rule="x = d·q, q = 2·bit - 1",
    read_codes=_read_codes,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4"),
)
