"""IQ2_XXS: 256 values, each 8 an entry of a grid of 256 under seven signs; each 32 have a scale of 4 bits."""

from __future__ import annotations

import numpy as np

from ..support.arrays import seen_as
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
from .layout import Bits, Field, Items
from .llama_products import LlamaProducts

_GRID = Grid("IQ2_XXS", 256, 8)


def _read_codes(structs: Structs) -> Codes:
    words = structs["qs"].reshape(*structs.shape, 8, 2)
    index = seen_as(words[..., 0], np.uint8)
    return entries(_GRID, index, signs_of_words(words[..., 1]))


def _read_scales(structs: Structs) -> Floats:
    return times(half_d(structs), odd_multiples(structs["qs"][..., 1::2] >> np.uint32(28), 1 / 8))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq2_xxs: d; of each 32 values 4 grid indices, 28 bits of signs, 4 of scale"""
    d, values = slow.read_half(raw, 0), []
    for i in range(QK_K):
        at = 2 + 8 * (i // 32)
        aux = slow.word(raw, at + 4)
        db = slow.times(slow.times(d, 0.5 + aux // 2**28), 0.25)
        entry = slow.grid("IQ2_XXS")[raw[at + i // 8 % 4]]
        values.append(
            slow.times(slow.times(db, entry[i % 8]), slow.sign_of_seven(aux // 2 ** (7 * (i // 8 % 4)), i % 8))
        )
    return values


IQ2_XXS = BlockFormat(
    name="IQ2_XXS",
    type_id=16,
    file_type=19,
    not_quantized_alone=NEEDS_IMATRIX,
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field(
            "qs",
            "<u4",
            16,
            "of each 32 values: a word of grid indices, a word of signs and the scale",
            (
                Items(range(0, 16, 2), tuple(Bits(8, "grid", k, step=4) for k in (3, 2, 1, 0))),
                Items(range(1, 16, 2), SIGNS_AND_SCALE),
            ),
        ),
    ),
    bits=7,
    low=-64,
    rule="x = d·(2·scale[g] + 1)/8·q, q = ±grid, g = i // 32",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", no_mmvq=INTEGER_DIVISION, mmq="mmq_d4"),
    tables=(_GRID.kernel_table(), KSIGNS),
)
