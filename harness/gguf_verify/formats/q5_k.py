"""Q5_K: 256 values of 5 bits, the fifth bits apart; each 32 have a scale and a minimum of 6 bits, as in Q4_K."""

from __future__ import annotations

from . import _slow as slow
from ._k_quants import (
    D_OF_SCALES,
    DMIN,
    NIBBLES_BY_64,
    SCALES_AND_MINIMA,
    bits_by_32,
    bits_layout,
    nibbles_by_64,
    read_minima,
    read_scales,
)
from .block import QK_K, BlockFormat, Codes, Structs
from .layout import Field
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    return nibbles_by_64(structs["qs"]) | bits_by_32(structs["qh"]) << 4


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q5_K: d, dmin, 12 bytes of scales and minima, 32 of fifth bits, 128 of nibbles"""
    d, dmin, packed, qh, qs = slow.read_half(raw, 0), slow.read_half(raw, 2), raw[4:16], raw[16:48], raw[48:176]
    values = []
    for i in range(QK_K):
        scale, low = slow.scale_min_k4(i // 32, packed)
        values.append(
            slow.plus(
                slow.times(slow.times(d, scale), slow.nibble(qs, i) + 16 * slow.bit(qh, i)), -slow.times(dmin, low)
            )
        )
    return values


Q5_K = BlockFormat(
    name="Q5_K",
    type_id=13,
    file_type=17,
    block_size=QK_K,
    fields=(
        D_OF_SCALES,
        DMIN,
        SCALES_AND_MINIMA,
        Field("qh", "u1", 32, "fifth bits: bit j of byte l belongs to value 32·j + l", bits_layout(low=4)),
        NIBBLES_BY_64,
    ),
    bits=5,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 32",
    read_codes=_read_codes,
    read_scales=read_scales,
    read_minima=read_minima,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", mmvq="q8_1", mmq="mmq", mmvq_tokens={70: 6, 87: 1, 120: 6}),
)
