"""Q2_K: 256 values of 2 bits; each 16 have a scale and a minimum of 4 bits, which d and dmin multiply."""

from __future__ import annotations

import numpy as np

from . import _slow as slow
from ._k_quants import D_OF_SCALES, DMIN, PAIRS_DOC, field_as_float32, pairs_by_128, pairs_layout
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, each
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    return pairs_by_128(structs["qs"])


def _read_scales(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return field_as_float32(structs, "d")[..., None] * (structs["scales"] & 0x0F).astype(np.float32)


def _read_minima(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return -(field_as_float32(structs, "dmin")[..., None] * (structs["scales"] >> 4).astype(np.float32))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q2_K: 16 bytes of scales and minima, 64 of codes, d, dmin"""
    scales, qs, d, dmin = raw[:16], raw[16:80], slow.read_half(raw, 80), slow.read_half(raw, 82)
    values = []
    for i in range(QK_K):
        scale, low = slow.times(d, scales[i // 16] % 16), slow.times(dmin, scales[i // 16] // 16)
        values.append(slow.plus(slow.times(scale, slow.pair(qs, i)), -low))
    return values


Q2_K = BlockFormat(
    name="Q2_K",
    type_id=10,
    file_type=10,
    block_size=QK_K,
    fields=(
        Field(
            "scales", "u1", 16, "16 scales and 16 minima of 4 bits", each(16, Bits(4, "min", 0), Bits(4, "scale", 0))
        ),
        Field("qs", "u1", 64, PAIRS_DOC, pairs_layout()),
        D_OF_SCALES,
        DMIN,
    ),
    bits=2,
    group=16,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 16",
    read_codes=_read_codes,
    read_scales=_read_scales,
    read_minima=_read_minima,
    slow_decode=_slow_decode,
    llama=LlamaProducts(
        cpu="q8_k_cpu",
        mmvq="q8_1",
        no_mmq="MMQ of this type sums activations by sixteens (mmq.cuh, layout D2S6)",
        mmvq_tokens={70: 4, 87: 1, 89: 4, 120: 5, 121: 6},
        mmvq_tokens_of_experts=7,
    ),
)
