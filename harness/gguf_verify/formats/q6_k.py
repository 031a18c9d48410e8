"""Q6_K: 256 values of 6 bits less 32, the high two bits apart; each 16 have a signed byte as scale, times d."""

from __future__ import annotations

import struct

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from ._k_quants import D_OF_SCALES, PAIRS, field_as_float32
from .block import QK_K, BlockFormat, Codes, Floats, Structs
from .layout import Bits, Field, Items, each
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    """Return the codes.

    In each 128 values, byte l of 64 of ql holds values l (low) and 64 + l (high), byte l of 32 of qh the high bits of
    values l, 32 + l, 64 + l and 96 + l.
    """
    low = structs["ql"].reshape(*structs.shape, 2, 64)
    high = structs["qh"].reshape(*structs.shape, 2, 1, 32)
    nibbles = np.concatenate([low & 0x0F, low >> 4], axis=-1).reshape(*structs.shape, 2, 4, 32)
    q = nibbles | ((high >> beside(high, PAIRS)) & 3) << 4
    codes: Codes = (q.astype(np.int8) - np.int8(32)).reshape(*structs.shape, QK_K)
    return codes


def _read_scales(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return field_as_float32(structs, "d")[..., None] * structs["scales"].astype(np.float32)


def _ql_layout(half: int) -> Items:
    return Items(range(64 * half, 64 * half + 64), (Bits(4, "x", 128 * half + 64), Bits(4, "x", 128 * half)))


def _qh_layout(half: int) -> Items:
    bits = tuple(Bits(2, "x", 128 * half + 32 * i, low=4) for i in (3, 2, 1, 0))
    return Items(range(32 * half, 32 * half + 32), bits)


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_q6_K: 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, d"""
    ql, qh, scales, d = raw[:128], raw[128:192], struct.unpack_from("<16b", raw, 192), slow.read_half(raw, 208)
    values = []
    for i in range(QK_K):
        half, at = i // 128, i % 128
        low = slow.field_of_byte(ql[64 * half + at % 64], at // 64 * 4, 4)
        values.append(slow.times(slow.times(d, scales[i // 16]), low + 16 * slow.pair(qh, i) - 32))
    return values


Q6_K = BlockFormat(
    name="Q6_K",
    type_id=14,
    file_type=18,
    block_size=QK_K,
    fields=(
        Field("ql", "u1", 128, "low 4 bits", (_ql_layout(0), _ql_layout(1))),
        Field("qh", "u1", 64, "high 2 bits", (_qh_layout(0), _qh_layout(1))),
        Field("scales", "i1", 16, "a scale for each 16 values", each(16, Bits(8, "scale", 0))),
        D_OF_SCALES,
    ),
    bits=6,
    group=16,
    low=-32,
    zero=32,
    rule="x = d·scale[g]·q, q = bits - 32, g = i // 16",
    read_codes=_read_codes,
    read_scales=_read_scales,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu", mmvq="q8_1", mmq="mmq_d4", mmvq_tokens={70: 7, 87: 1, 120: 7}),
)
