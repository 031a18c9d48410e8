"""IQ4_NL: 32 codes of 4 bits, each an index into a table of 16 values, under one half scale."""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from . import grids
from ._i_quants import KVALUES
from ._legacy import D
from .block import QK, BlockFormat, Codes, Structs
from .layout import Bits, Field, each
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    qs = structs["qs"]
    codes: Codes = beside(qs, grids.kvalues())[np.concatenate([qs & 0x0F, qs >> 4], axis=-1)]
    return codes


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq4_nl: d, 16 bytes of nibbles"""
    d, qs = slow.read_half(raw, 0), raw[2:18]
    return [slow.times(d, slow.kvalue(b % 16)) for b in qs] + [slow.times(d, slow.kvalue(b // 16)) for b in qs]


IQ4_NL = BlockFormat(
    name="IQ4_NL",
    type_id=20,
    file_type=25,
    block_size=QK,
    fields=(
        D,
        Field(
            "qs",
            "u1",
            16,
            "low nibbles: values 0..15, high nibbles: values 16..31; each an index into 16 values",
            each(16, Bits(4, "x", 16), Bits(4, "x", 0)),
        ),
    ),
    bits=8,
    low=-128,
    rule="x = d·q, q = kvalues[x]",
    read_codes=_read_codes,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_0_cpu", mmvq="q8_1", mmq="mmq_d4"),
    tables=(KVALUES,),
)
