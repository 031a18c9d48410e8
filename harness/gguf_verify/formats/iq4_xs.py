"""IQ4_XS: 256 codes of 4 bits, each an index into a table of 16 values; each 32 have a scale of 6 bits less 32."""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from . import grids
from ._i_quants import KVALUES, half_d, runs_of_bits, times
from ._k_quants import D_OF_SCALES
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, Items, each
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    """Return the codes: in each 16 bytes, low nibbles are values 0..15 of 32, high nibbles values 16..31."""
    qs = structs["qs"].reshape(*structs.shape, 8, 16)
    codes: Codes = beside(qs, grids.kvalues())[np.concatenate([qs & 0x0F, qs >> 4], axis=-1)]
    return codes.reshape(*structs.shape, QK_K)


def _read_scales(structs: Structs) -> Floats:
    scales = runs_of_bits(structs["scales_l"], 4, 2) | runs_of_bits(structs["scales_h"][..., None], 2, 8) << 4
    return times(half_d(structs), scales.astype(np.float32) - np.float32(32))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq4_xs: d; 2 bytes of the scales' high bits, 4 of their low ones; 128 of nibbles"""
    d, high, values = slow.read_half(raw, 0), slow.short(raw, 2), []
    for i in range(QK_K):
        g = i // 32
        scale = slow.field_of_byte(raw[4 + g // 2], g % 2 * 4, 4) + 16 * (high // 4**g % 4)
        byte = raw[8 + 16 * g + i % 16]
        values.append(slow.times(slow.times(d, scale - 32), slow.kvalue(byte // 16 if i % 32 > 15 else byte % 16)))
    return values


IQ4_XS = BlockFormat(
    name="IQ4_XS",
    type_id=23,
    file_type=30,
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field(
            "scales_h",
            "<u2",
            1,
            "high 2 bits of the scales",
            each(1, *(Bits(2, "scale", g, low=4) for g in range(7, -1, -1))),
        ),
        Field(
            "scales_l",
            "u1",
            4,
            "low 4 bits of 8 scales of 6 bits, less 32",
            each(4, Bits(4, "scale", 1, step=2), Bits(4, "scale", 0, step=2)),
        ),
        Field(
            "qs",
            "u1",
            128,
            "of each 16 bytes: low nibbles values 0..15 of 32, high nibbles values 16..31; each an "
            "index into 16 values",
            tuple(
                Items(range(16 * g, 16 * g + 16), (Bits(4, "x", 32 * g + 16), Bits(4, "x", 32 * g))) for g in range(8)
            ),
        ),
    ),
    bits=8,
    low=-128,
    rule="x = d·(scale[g] - 32)·q, q = kvalues[x], g = i // 32",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", mmvq="q8_1", mmq="mmq_d4"),
    tables=(KVALUES,),
)
