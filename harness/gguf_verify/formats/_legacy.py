"""Code shared by the legacy quants: fields, codes, and the reference quantizers' choices of scale and minimum.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `quantize_row_*_ref` and `dequantize_row_*` (llama.cpp
v0.5.0).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..support.arrays import bits_of, seen_as
from .block import Codes, Floats, Structs
from .c_arithmetic import at_index, c_int8, inverse, round_half_away, signed_max
from .layout import Bits, Field, each

#: One half scale.
D = Field("d", "<f2", 1, "scale", each(1, Bits(16, "scale")))
M = Field("m", "<f2", 1, "minimum", each(1, Bits(16, "minimum")))
QH = Field(
    "qh",
    "<u4",
    1,
    "fifth bits: bit j belongs to value j",
    each(1, *(Bits(1, "x", j, low=4) for j in range(31, -1, -1))),
)
NIBBLES = Field(
    "qs",
    "u1",
    16,
    "low nibbles: values 0..15, high nibbles: values 16..31",
    each(16, Bits(4, "x", 16), Bits(4, "x", 0)),
)
SIGNED_BYTES = Field("qs", "i1", 32, "codes in order", each(32, Bits(8, "x", 0)))


def read_nibbles(structs: Structs) -> npt.NDArray[np.uint8]:
    qs = structs["qs"]
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)


def read_nibbles_and_fifth_bits(structs: Structs) -> Codes:
    q = read_nibbles(structs)
    q |= bits_of(seen_as(structs["qh"][..., None], np.uint8)) << np.uint8(4)
    return q


def read_bytes(structs: Structs) -> Codes:
    return structs["qs"]


def packed_codes(q: npt.NDArray[np.integer]) -> dict[str, npt.ArrayLike]:
    """Pack codes in order into the members qs and qh of the struct."""
    q = q.astype(np.uint8)
    qs = (q[..., :16] & 0x0F) | (q[..., 16:] & 0x0F) << 4
    qh = np.packbits((q >> 4) & 1, axis=-1, bitorder="little").view("<u4")[..., 0]
    return {"qs": qs, "qh": qh}


def encode_symmetric(bits: int, x: Floats) -> tuple[Floats, npt.NDArray[np.integer]]:
    """Return scales and codes: the scale is the signed extreme over -2^(bits-1), which gives that value code 0,
    exactly.
    """
    half_range = 1 << (bits - 1)
    d = signed_max(x) / np.float32(-half_range)
    with np.errstate(invalid="ignore", over="ignore"):
        q = c_int8(x * inverse(d)[..., None] + np.float32(half_range + 0.5))
    return d, np.minimum(q, 2 * half_range - 1)


def encode_affine(bits: int, x: Floats) -> tuple[Floats, Floats, npt.NDArray[np.integer]]:
    """Return scales, minima and codes: the scale is (max - min) over 2^bits - 1, so both ends are codes."""
    top = (1 << bits) - 1
    low, high = at_index(x, x.argmin(axis=-1)), at_index(x, x.argmax(axis=-1))  # the first of +0 and -0, as in C
    with np.errstate(invalid="ignore", over="ignore"):
        d = (high - low) / np.float32(top)
        q = c_int8((x - low[..., None]) * inverse(d)[..., None] + np.float32(0.5))
    return d, low, np.minimum(q, top) if bits == 4 else q.astype(np.uint8)


def encode_eight_bits(x: Floats) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Return scales and codes: the scale is max|x| over 127."""
    d = np.abs(x).max(axis=-1) / np.float32(127)
    with np.errstate(invalid="ignore", over="ignore"):
        return d, c_int8(round_half_away(x * inverse(d)[..., None]).astype(np.float32))
