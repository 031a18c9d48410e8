"""Q3_K: 256 values of 3 bits less 4, the third bits apart; each 16 have a scale of 6 bits less 32, times d."""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from ._k_quants import (
    D_OF_SCALES,
    PAIRS,
    PAIRS_DOC,
    bits_by_32,
    bits_layout,
    field_as_float32,
    pairs_by_128,
    pairs_layout,
)
from .block import QK_K, BlockFormat, Bytes, Codes, Floats, Structs
from .layout import Bits, Field, Items
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    q = pairs_by_128(structs["qs"]) | bits_by_32(structs["hmask"]) << 2
    return q.astype(np.int8) - np.int8(4)


def _scales_of_six_bits(packed: Bytes) -> Bytes:
    """Unpack uint8[..., 12] to sixteen 6-bit scales, uint8[..., 16].

    The low four bits are the nibbles of 8 bytes, the high two the pairs of the others.
    """
    low, high = packed[..., :8], packed[..., 8:]
    nibbles = np.concatenate([low & 0x0F, low >> 4], axis=-1)
    pairs = (high[..., None, :] >> beside(packed, PAIRS)) & np.uint8(3)
    scales: Bytes = nibbles | pairs.reshape(nibbles.shape) << np.uint8(4)
    return scales


def _read_scales(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return field_as_float32(structs, "d")[..., None] * (
            _scales_of_six_bits(structs["scales"]).astype(np.float32) - np.float32(32)
        )


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q3_K: 32 bytes of high bits, 64 of low ones, 12 of scales, d"""
    mask, qs, packed, d = raw[:32], raw[32:96], raw[96:108], slow.read_half(raw, 108)
    values = []
    for i in range(QK_K):
        g = i // 16
        low = packed[g] % 16 if g < 8 else packed[g - 8] // 16
        scale = low + 16 * slow.field_of_byte(packed[8 + g % 4], g // 4 * 2, 2)
        values.append(slow.times(slow.times(d, scale - 32), slow.pair(qs, i) - (0 if slow.bit(mask, i) else 4)))
    return values


Q3_K = BlockFormat(
    name="Q3_K",
    type_id=11,
    file_type=12,
    block_size=QK_K,
    fields=(
        Field("hmask", "u1", 32, "high bits: bit j of byte l belongs to value 32·j + l", bits_layout(low=2)),
        Field("qs", "u1", 64, PAIRS_DOC, pairs_layout()),
        Field(
            "scales",
            "u1",
            12,
            "16 scales of 6 bits, less 32",
            (
                Items(range(0, 8), (Bits(4, "scale", 8), Bits(4, "scale", 0))),
                Items(range(8, 12), tuple(Bits(2, "scale", i, low=4) for i in (12, 8, 4, 0))),
            ),
        ),
        D_OF_SCALES,
    ),
    bits=3,
    group=16,
    low=-4,
    rule="x = d·(scale[g] - 32)·q, q = bits - 4, g = i // 16",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(
        cpu="q8_k_cpu",
        mmvq="q8_1",
        mmq="mmq_d4",
        mmvq_tokens={70: 6, 87: 1, 89: 6, 120: 5},
        mmvq_tokens_of_experts=5,
    ),
)
