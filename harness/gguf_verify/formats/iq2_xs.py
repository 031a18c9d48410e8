"""IQ2_XS: 256 values, each 8 an entry of a grid of 512 under seven signs; each 16 have a scale of 4 bits."""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from . import grids
from ._i_quants import INTEGER_DIVISION, KSIGNS, NEEDS_IMATRIX, SCALE_NIBBLES, entries, scales_of_iq2
from ._k_quants import D_OF_SCALES
from .block import QK_K, BlockFormat, Codes, Structs
from .grids import Grid
from .layout import Bits, Field, each
from .llama_products import LlamaProducts

_GRID = Grid("IQ2_XS", 512, 8)


def _read_codes(structs: Structs) -> Codes:
    return entries(_GRID, structs["qs"] & np.uint16(511), beside(structs["qs"], grids.ksigns())[structs["qs"] >> 9])


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq2_xs: d; 32 times 9 bits of index and 7 of signs; 16 scales"""
    d, values = slow.read_half(raw, 0), []
    for i in range(QK_K):
        q = slow.short(raw, 2 + 2 * (i // 8))
        db = slow.times(slow.times(d, 0.5 + slow.field_of_byte(raw[66 + i // 32], i // 16 % 2 * 4, 4)), 0.25)
        values.append(
            slow.times(slow.times(db, slow.grid("IQ2_XS")[q % 512][i % 8]), slow.sign_of_seven(q // 512, i % 8))
        )
    return values


IQ2_XS = BlockFormat(
    name="IQ2_XS",
    type_id=17,
    file_type=20,
    not_quantized_alone=NEEDS_IMATRIX,
    recipes=("IQ2_S",),
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field(
            "qs",
            "<u2",
            32,
            "of each 8 values: signs and a grid index",
            each(32, Bits(7, "sign", 0), Bits(9, "grid", 0)),
        ),
        SCALE_NIBBLES,
    ),
    bits=7,
    group=16,
    low=-64,
    rule="x = d·(2·scale[g] + 1)/8·q, q = ±grid, g = i // 16",
    read_codes=_read_codes,
    read_scales=scales_of_iq2,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", no_mmvq=INTEGER_DIVISION, mmq="mmq_d4"),
    tables=(_GRID.kernel_table(), KSIGNS),
)
