"""IQ3_XXS: 256 values, each 4 an entry of a grid of 256, each 8 under seven signs; each 32 have a scale of 4 bits."""

from __future__ import annotations

import numpy as np

from . import _slow as slow
from ._i_quants import (
    INTEGER_DIVISION,
    KSIGNS,
    NEEDS_IMATRIX,
    SIGNS_AND_SCALE,
    entries,
    half_d,
    odd_multiples,
    signs_of_words,
    times,
)
from ._k_quants import D_OF_SCALES
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .grids import Grid
from .layout import Bits, Field, each
from .llama_products import LlamaProducts

_GRID = Grid("IQ3_XXS", 256, 4)


def _read_codes(structs: Structs) -> Codes:
    return entries(_GRID, structs["qs"], signs_of_words(structs["scales_and_signs"]))


def _read_scales(structs: Structs) -> Floats:
    return times(half_d(structs), odd_multiples(structs["scales_and_signs"] >> np.uint32(28), 1 / 4))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq3_xxs: d; 64 indices of four values; of each 32 values 28 bits of signs, 4 of scale"""
    d, values = slow.read_half(raw, 0), []
    for i in range(QK_K):
        aux = slow.word(raw, 66 + 4 * (i // 32))
        db = slow.times(slow.times(d, 0.5 + aux // 2**28), 0.5)
        entry = slow.grid("IQ3_XXS")[raw[2 + i // 4]]
        values.append(
            slow.times(slow.times(db, entry[i % 4]), slow.sign_of_seven(aux // 2 ** (7 * (i // 8 % 4)), i % 8))
        )
    return values


IQ3_XXS = BlockFormat(
    name="IQ3_XXS",
    type_id=18,
    file_type=23,
    not_quantized_alone=NEEDS_IMATRIX,
    recipes=("IQ3_XS",),
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field("qs", "u1", 64, "grid indices, one for each 4 values", each(64, Bits(8, "grid", 0))),
        Field("scales_and_signs", "<u4", 8, "of each 32 values: signs and the scale", each(8, *SIGNS_AND_SCALE)),
    ),
    bits=7,
    low=-64,
    rule="x = d·(2·scale[g] + 1)/4·q, q = ±grid, g = i // 32",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", no_mmvq=INTEGER_DIVISION, mmq="mmq_d4", mmvq_tokens_of_experts=7),
    tables=(_GRID.kernel_table(), KSIGNS),
)
