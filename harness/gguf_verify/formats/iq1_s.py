"""IQ1_S: 256 values, each 8 an entry of a grid of 2048, plus or minus an eighth; each 32 have a scale of 3 bits."""

from __future__ import annotations

import numpy as np

from . import _slow as slow
from ._i_quants import IQ1_TABLE, NEEDS_IMATRIX, codes_of_iq1, grid_index, half_d, odd_multiples, runs_of_bits, times
from ._k_quants import D_OF_SCALES
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, each
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    delta = np.repeat(structs["qh"] >> 15, 4, axis=-1).astype(np.uint8)
    return codes_of_iq1(grid_index(structs["qs"], runs_of_bits(structs["qh"], 3, 4)), delta)


def _read_scales(structs: Structs) -> Floats:
    return times(half_d(structs), odd_multiples(structs["qh"] >> np.uint16(12) & np.uint16(7), 1 / 8))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq1_s: d; 32 bytes of indices; of each 32 values 12 of their high bits, 3 of scale, 1 of delta"""
    d, values = slow.read_half(raw, 0), []
    for i in range(QK_K):
        k, qh = i // 8, slow.short(raw, 34 + 2 * (i // 32))
        dl = slow.times(d, 2 * (qh // 2**12 % 8) + 1)
        entry = slow.grid("IQ1_S")[raw[2 + k] + 256 * (qh // 2 ** (3 * (k % 4)) % 8)]
        values.append(slow.times(dl, slow.plus(entry[i % 8], -0.125 if qh >= 2**15 else 0.125)))
    return values


IQ1_S = BlockFormat(
    name="IQ1_S",
    type_id=19,
    file_type=24,
    not_quantized_alone=NEEDS_IMATRIX,
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        Field("qs", "u1", 32, "grid indices, low 8 bits", each(32, Bits(8, "grid", 0))),
        Field(
            "qh",
            "<u2",
            8,
            "of each 32 values: the sign of delta, the scale, four times 3 high bits of grid indices",
            each(
                8,
                Bits(1, "delta", 0),
                Bits(3, "scale", 0),
                *(Bits(3, "grid", k, low=8, step=4) for k in (3, 2, 1, 0)),
            ),
        ),
    ),
    bits=5,
    low=-16,
    rule="x = d·(2·scale[g] + 1)/8·q, q = 8·grid ± 1, g = i // 32",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(
        cpu="q8_k_cpu",
        mmvq="q8_1_delta",
        no_mmq="MMQ of this type rounds a part of the scale to half (mmq-load-tiles.cuh)",
    ),
    tables=(IQ1_TABLE,),
)
