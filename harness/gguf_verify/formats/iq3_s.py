"""IQ3_S: 256 values, each 4 an entry of a grid of 512, each 8 under eight signs; each 32 have a scale of 4 bits."""

from __future__ import annotations

from . import _slow as slow
from ._i_quants import SIGN_BYTES, entries, grid_index, half_d, odd_multiples, runs_of_bits, times
from ._k_quants import D_OF_SCALES
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .grids import Grid
from .layout import Bits, Field, each
from .llama_products import LlamaProducts

_GRID = Grid("IQ3_S", 512, 4)


def _read_codes(structs: Structs) -> Codes:
    return entries(_GRID, grid_index(structs["qs"], runs_of_bits(structs["qh"], 1, 8)), structs["signs"])


def _read_scales(structs: Structs) -> Floats:
    return times(half_d(structs), odd_multiples(runs_of_bits(structs["scales"], 4, 2), 1))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq3_s: d; 64 bytes of indices, 8 of their high bits, 32 of signs; 8 scales"""
    d, values = slow.read_half(raw, 0), []
    for i in range(QK_K):
        db = slow.times(d, 1 + 2 * slow.field_of_byte(raw[106 + i // 64], i // 32 % 2 * 4, 4))
        entry = slow.grid("IQ3_S")[raw[2 + i // 4] + 256 * slow.field_of_byte(raw[66 + i // 32], i // 4 % 8, 1)]
        values.append(slow.times(slow.times(db, entry[i % 4]), slow.sign(raw[74 + i // 8], i % 8)))
    return values


IQ3_S = BlockFormat(
    name="IQ3_S",
    type_id=21,
    file_type=26,
    recipes=("IQ3_XS", "IQ3_M"),
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field("qs", "u1", 64, "grid indices, low 8 bits, one for each 4 values", each(64, Bits(8, "grid", 0))),
        Field(
            "qh",
            "u1",
            8,
            "grid indices, high bit",
            each(8, *(Bits(1, "grid", k, low=8, step=8) for k in range(7, -1, -1))),
        ),
        SIGN_BYTES,
        Field(
            "scales",
            "u1",
            4,
            "a scale of 4 bits for each 32 values",
            each(4, Bits(4, "scale", 1, step=2), Bits(4, "scale", 0, step=2)),
        ),
    ),
    bits=5,
    low=-16,
    rule="x = d·(2·scale[g] + 1)·q, q = ±grid, g = i // 32",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", mmvq="q8_1", mmq="mmq_d4", mmvq_tokens_of_experts=6),
    tables=(_GRID.kernel_table(),),
)
