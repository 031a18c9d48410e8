"""Q4_K: 256 values of 4 bits; each 32 have a scale and a minimum of 6 bits, which d and dmin multiply."""

from __future__ import annotations

from . import _slow as slow
from ._k_quants import D_OF_SCALES, DMIN, NIBBLES_BY_64, SCALES_AND_MINIMA, nibbles_by_64, read_minima, read_scales
from .block import QK_K, BlockFormat, Codes, Structs
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    return nibbles_by_64(structs["qs"])


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q4_K: d, dmin, 12 bytes of scales and minima, 128 of codes"""
    d, dmin, packed, qs = slow.read_half(raw, 0), slow.read_half(raw, 2), raw[4:16], raw[16:144]
    values = []
    for i in range(QK_K):
        scale, low = slow.scale_min_k4(i // 32, packed)
        values.append(slow.plus(slow.times(slow.times(d, scale), slow.nibble(qs, i)), -slow.times(dmin, low)))
    return values


Q4_K = BlockFormat(
    name="Q4_K",
    type_id=12,
    file_type=15,
    block_size=QK_K,
    fields=(D_OF_SCALES, DMIN, SCALES_AND_MINIMA, NIBBLES_BY_64),
    bits=4,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 32",
    read_codes=_read_codes,
    read_scales=read_scales,
    read_minima=read_minima,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", mmvq="q8_1", mmq="mmq", mmvq_tokens={70: 5, 87: 1, 120: 5}),
)
