"""Decoding shared by the K-quants: superblocks of 256 values whose scales and minima are integers times d and dmin.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_*_K` (llama.cpp v0.5.0).
"""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from .block import QK_K, Bytes, Floats, Structs
from .layout import Bits, Field, Items, each

D_OF_SCALES = Field("d", "<f2", 1, "scale of the scales", each(1, Bits(16, "half, scale of the scales")))
DMIN = Field("dmin", "<f2", 1, "scale of the minima", each(1, Bits(16, "half, scale of the minima")))
#: Positions of the pairs of bits in a byte.
PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]
PAIRS_DOC = "of each 32 bytes: the lowest two bits are values 0..31 of 128, the next ones values 32..63, and so on"
#: Eight 6-bit scales and eight 6-bit minima in 12 bytes. The six bits of the first four scales and minima are adjacent;
#: for the others the low four bits are a nibble and the high two lie above the first four's (get_scale_min_k4).
SCALES_AND_MINIMA = Field(
    "scales", "u1", 12, "8 scales and 8 minima of 6 bits",
    (
        Items(range(0, 4), (Bits(2, "scale", 4, low=4), Bits(6, "scale", 0))),
        Items(range(4, 8), (Bits(2, "min", 4, low=4), Bits(6, "min", 0))),
        Items(range(8, 12), (Bits(4, "min", 4), Bits(4, "scale", 4))),
    ),
)  # fmt: skip
NIBBLES_BY_64 = Field(
    "qs", "u1", 128, "of each 32 bytes: low nibbles values 0..31 of 64, high nibbles values 32..63",
    tuple(Items(range(32 * i, 32 * i + 32), (Bits(4, "x", 64 * i + 32), Bits(4, "x", 64 * i))) for i in range(4)),
)  # fmt: skip


def field_as_float32(structs: Structs, name: str) -> Floats:
    """Return a field of one number, float32[...]."""
    return structs[name].astype(np.float32)


def pairs_by_128(qs: Bytes) -> Bytes:
    """Split uint8[..., 64] into pairs of bits [..., 256]: of each 32 bytes first all lowest pairs, then the next."""
    runs = qs.reshape(*qs.shape[:-1], 2, 1, 32)
    return ((runs >> beside(qs, PAIRS)) & np.uint8(3)).reshape(*qs.shape[:-1], QK_K)


def pairs_layout(low: int = 0) -> tuple[Items, ...]:
    """Return the layout of a field of such pairs, which are the bits from `low` on of the codes."""
    return tuple(
        Items(range(32 * h, 32 * h + 32), tuple(Bits(2, "x", 128 * h + 32 * i, low=low) for i in (3, 2, 1, 0)))
        for h in range(2)
    )


def bits_by_32(mask: Bytes) -> Bytes:
    """Split uint8[..., 32] into single bits [..., 256]: bit j of byte l belongs to value 32·j + l."""
    bits = (mask[..., None, :] >> beside(mask, _BITS)) & np.uint8(1)
    return bits.reshape(*mask.shape[:-1], QK_K)


def bits_layout(low: int) -> tuple[Items, ...]:
    """Return the layout of a field of such bits, which are bit `low` of the codes."""
    return each(32, *(Bits(1, "x", 32 * i, low=low) for i in range(7, -1, -1)))


def nibbles_by_64(qs: Bytes) -> Bytes:
    """Split uint8[..., 128] into codes [..., 256]: for each 32 bytes first the low nibbles, then the high ones."""
    runs = qs.reshape(*qs.shape[:-1], 4, 32)
    return np.stack([runs & 0x0F, runs >> 4], axis=-2).reshape(*qs.shape[:-1], QK_K)


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack uint8[..., 12] to eight scales and eight minima, uint8[..., 8] each."""
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([a & 63, (c & 0x0F) | (a >> 6) << 4], axis=-1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1)
    return scales, minima


def read_scales(structs: Structs) -> Floats:
    """Return the scales of Q4_K and Q5_K, float32[..., 8]: each is d times one of 6 bits."""
    with np.errstate(invalid="ignore"):
        return field_as_float32(structs, "d")[..., None] * _scales_and_minima(structs["scales"])[0].astype(np.float32)


def read_minima(structs: Structs) -> Floats:
    """Return the minima of Q4_K and Q5_K, float32[..., 8]: each is -dmin times one of 6 bits."""
    with np.errstate(invalid="ignore"):
        return -(
            field_as_float32(structs, "dmin")[..., None] * _scales_and_minima(structs["scales"])[1].astype(np.float32)
        )
