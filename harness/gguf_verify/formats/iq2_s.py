"""IQ2_S: 256 values, each 8 an entry of a grid of 1024 under eight signs; each 16 have a scale of 4 bits."""

from __future__ import annotations

from . import _slow as slow
from ._i_quants import (
    INTEGER_DIVISION,
    NEEDS_IMATRIX,
    SCALE_NIBBLES,
    SIGN_BYTES,
    entries,
    grid_index,
    runs_of_bits,
    scales_of_iq2,
)
from ._k_quants import D_OF_SCALES
from .block import QK_K, BlockFormat, Codes, Structs
from .grids import Grid
from .layout import Bits, Field, each
from .llama_products import LlamaProducts

_GRID = Grid("IQ2_S", 1024, 8)


def _read_codes(structs: Structs) -> Codes:
    return entries(_GRID, grid_index(structs["qs"], runs_of_bits(structs["qh"], 2, 4)), structs["signs"])


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq2_s: d; 32 bytes of indices, 32 of signs, 8 of the indices' high bits; 16 scales"""
    d, values = slow.read_half(raw, 0), []
    for i in range(QK_K):
        k = i // 8
        db = slow.times(slow.times(d, 0.5 + slow.field_of_byte(raw[74 + i // 32], i // 16 % 2 * 4, 4)), 0.25)
        entry = slow.grid("IQ2_S")[raw[2 + k] + 256 * slow.field_of_byte(raw[66 + k // 4], k % 4 * 2, 2)]
        values.append(slow.times(slow.times(db, entry[i % 8]), slow.sign(raw[34 + k], i % 8)))
    return values


IQ2_S = BlockFormat(
    name="IQ2_S",
    type_id=22,
    file_type=28,
    not_quantized_alone=NEEDS_IMATRIX,
    recipes=("IQ2_S", "IQ2_M"),
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field("qs", "u1", 32, "grid indices, low 8 bits", each(32, Bits(8, "grid", 0))),
        SIGN_BYTES,
        Field(
            "qh",
            "u1",
            8,
            "grid indices, high 2 bits",
            each(8, *(Bits(2, "grid", k, low=8, step=4) for k in (3, 2, 1, 0))),
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
    llama=LlamaProducts(cpu="q8_k_cpu", no_mmvq=INTEGER_DIVISION, mmq="mmq_d4", mmvq_tokens_of_experts=7),
    tables=(_GRID.kernel_table(),),
)
