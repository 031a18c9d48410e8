"""IQ1_M: 256 values, each 8 an entry of a grid of 2048, plus or minus an eighth; each 16 have a scale of 3 bits.

The half d has no field of its own: its bits are distributed over the four words of scales.
"""

from __future__ import annotations

import struct

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from ._i_quants import IQ1_TABLE, NEEDS_IMATRIX, codes_of_iq1, grid_index, odd_multiples, runs_of_bits, times
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, Items, each
from .llama_products import LlamaProducts

#: Places of the four bits of d in a half.
_NIBBLES = np.arange(0, 16, 4, dtype=np.uint16)


def _read_codes(structs: Structs) -> Codes:
    nibbles = runs_of_bits(structs["qh"], 4, 2)
    return codes_of_iq1(grid_index(structs["qs"], nibbles & np.uint8(7)), nibbles >> np.uint8(3))


def _read_scales(structs: Structs) -> Floats:
    """Return the scales. The half d has four bits at the head of each word, the lowest first; below are four scales."""
    words = structs["scales"]
    bits = (words >> 12 << beside(words, _NIBBLES)).sum(axis=-1, dtype=np.uint16)
    d = bits.view(np.float16).astype(np.float32)
    return times(d, odd_multiples(runs_of_bits(words, 3, 4), 1 / 8))


def _scale_word(w: int) -> Items:
    return Items(range(w, w + 1), (Bits(4, "d", None, low=4 * w), *(Bits(3, "scale", 4 * w + k) for k in (3, 2, 1, 0))))


def _make_finite(structs: Structs, rng: np.random.Generator) -> None:
    """Make the half finite: its high bits lie in the last word and must not all be ones."""
    structs["scales"][:, 3] &= 0xEFFF


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_iq1_m: 32 bytes of indices; 32 times 3 of their high bits and delta; d in quarters, 16 scales"""
    words = [slow.short(raw, 48 + 2 * w) for w in range(4)]
    d, values = slow.read_half(struct.pack("<H", sum(word // 2**12 * 16**w for w, word in enumerate(words))), 0), []
    for i in range(QK_K):
        k = i // 8
        dl = slow.times(d, 2 * (words[i // 64] // 8 ** (i // 16 % 4) % 8) + 1)
        nibble = slow.field_of_byte(raw[32 + k // 2], k % 2 * 4, 4)
        entry = slow.grid("IQ1_S")[raw[k] + 256 * (nibble % 8)]
        values.append(slow.times(dl, slow.plus(entry[i % 8], -0.125 if nibble & 8 else 0.125)))
    return values


IQ1_M = BlockFormat(
    name="IQ1_M",
    type_id=29,
    file_type=31,
    not_quantized_alone=NEEDS_IMATRIX,
    block_size=QK_K,
    fields=(
        Field("qs", "u1", 32, "grid indices, low 8 bits", each(32, Bits(8, "grid", 0))),
        Field(
            "qh",
            "u1",
            16,
            "of each 8 values: the sign of delta, high 3 bits of the grid index",
            each(
                16,
                Bits(1, "delta", 1, step=2),
                Bits(3, "grid", 1, low=8, step=2),
                Bits(1, "delta", 0, step=2),
                Bits(3, "grid", 0, low=8, step=2),
            ),
        ),
        Field(
            "scales",
            "<u2",
            4,
            "four bits of the half d, scale of the scales, and four scales",
            tuple(_scale_word(w) for w in range(4)),
        ),
    ),
    bits=5,
    group=16,
    low=-16,
    rule="x = d·(2·scale[g] + 1)/8·q, q = 8·grid ± 1, g = i // 16",
    read_codes=_read_codes,
    read_scales=_read_scales,
    make_finite=_make_finite,
    slow_decode=_slow_decode,
    llama=LlamaProducts(
        cpu="q8_k_cpu", mmvq="q8_1", no_mmq="MMQ does not exist for this type: it is dequantized for cuBLAS"
    ),
    tables=(IQ1_TABLE,),
)
