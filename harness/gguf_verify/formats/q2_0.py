"""Q2_0: 64 values of 2 bits less 1 under one half scale."""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from ._legacy import D
from .block import BlockFormat, Codes, Structs
from .layout import Bits, Field, each
from .llama_products import LlamaProducts

_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def _read_codes(structs: Structs) -> Codes:
    q = (structs["qs"][..., None] >> beside(structs["qs"], _SHIFTS)) & 3
    return (q.astype(np.int8) - np.int8(1)).reshape(*structs.shape, 64)


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q2_0: d, 16 bytes of codes"""
    d = slow.read_half(raw, 0)
    return [slow.times(slow.field_of_byte(raw[2 + i // 4], i % 4 * 2, 2) - 1, d) for i in range(64)]


Q2_0 = BlockFormat(
    name="Q2_0",
    type_id=42,
    file_type=41,
    block_size=64,
    fields=(
        D,
        Field(
            "qs",
            "u1",
            16,
            "codes in order, four a byte",
            each(16, *(Bits(2, "x", i, step=4) for i in range(3, -1, -1))),
        ),
    ),
    bits=2,
    group=64,
    low=-1,
    zero=1,
    rule="x = d·q, q = bits - 1",
    read_codes=_read_codes,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4"),
)
