"""K-quants: superblocks of 256 values in groups of 16 or 32, whose scales and minima are integers times d and dmin.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_*_K` (llama.cpp v0.5.0). The zero points
of Q3_K and Q6_K are part of the codes.
"""

from __future__ import annotations

import numpy as np

from .block import BlockFormat, Bytes, Codes, Field, Floats, Items, Run, Structs, each

QK_K = 256


_SOURCE = "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)"
_D = Field("d", "<f2", 1, "scale of the scales", each(1, Run(16, "half, scale of the scales")))
_DMIN = Field("dmin", "<f2", 1, "scale of the minima", each(1, Run(16, "half, scale of the minima")))


def _float32(structs: Structs, name: str) -> Floats:
    return np.asarray(structs[name]).astype(np.float32)


# -- Q2_K ------------------------------------------------------------------------------------------------------------

_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def pairs_by_128(qs: Bytes) -> Bytes:
    """uint8[..., 64] → two bits each, [..., 256]: of each 32 bytes first all lowest pairs, then the next ones."""
    runs = qs.reshape(*qs.shape[:-1], 2, 1, 32)
    return np.asarray((runs >> _PAIRS) & 3).reshape(*qs.shape[:-1], QK_K)


def pairs_layout(low: int = 0) -> tuple[Items, ...]:
    """The layout of such a field: bits `low` and up of the codes."""
    return tuple(
        Items(range(32 * h, 32 * h + 32), tuple(Run(2, "x", 128 * h + 32 * i, low=low) for i in (3, 2, 1, 0)))
        for h in range(2)
    )


PAIRS_DOC = "of each 32 bytes: the lowest two bits are values 0..31 of 128, the next ones values 32..63, and so on"


def _read_q2_k(structs: Structs) -> Codes:
    return pairs_by_128(structs["qs"])


def _scales_q2_k(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return _float32(structs, "d")[..., None] * (structs["scales"] & 0x0F).astype(np.float32)


def _minima_q2_k(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return -(_float32(structs, "dmin")[..., None] * (structs["scales"] >> 4).astype(np.float32))


Q2_K = BlockFormat(
    "Q2_K", 10, QK_K,
    (
        Field("scales", "u1", 16, "16 scales and 16 minima of 4 bits", each(16, Run(4, "min", 0), Run(4, "scale", 0))),
        Field("qs", "u1", 64, PAIRS_DOC, pairs_layout()),
        _D, _DMIN,
    ),
    2, 0, _SOURCE, _read_q2_k, group=16, read_scales=_scales_q2_k, read_minima=_minima_q2_k,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 16",
)  # fmt: skip

# -- Q3_K ------------------------------------------------------------------------------------------------------------


def _bits_by_32(mask: Bytes) -> Bytes:
    """uint8[..., 32] → one bit each, [..., 256]: bit j of byte l belongs to value 32·j + l."""
    return np.asarray((mask[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1).reshape(*mask.shape[:-1], QK_K)


def _bits_layout(low: int) -> tuple[Items, ...]:
    return each(32, *(Run(1, "x", 32 * i, low=low) for i in range(7, -1, -1)))


def _read_q3_k(structs: Structs) -> Codes:
    q = pairs_by_128(structs["qs"]) | _bits_by_32(structs["hmask"]) << 2
    return np.asarray(q.astype(np.int8) - np.int8(4))


def _scales_k3(packed: Bytes) -> Bytes:
    """uint8[..., 12] → sixteen 6-bit scales, uint8[..., 16]: the low four bits in the nibbles of 8 bytes, the high two
    in the pairs of the others."""
    low, high = packed[..., :8], packed[..., 8:]
    nibbles = np.concatenate([low & 0x0F, low >> 4], axis=-1)
    pairs = np.asarray((high[..., None, :] >> _PAIRS) & 3).reshape(nibbles.shape)
    return np.asarray(nibbles | pairs << 4)


def _scales_q3_k(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return _float32(structs, "d")[..., None] * (_scales_k3(structs["scales"]).astype(np.float32) - np.float32(32))


Q3_K = BlockFormat(
    "Q3_K", 11, QK_K,
    (
        Field("hmask", "u1", 32, "high bits: bit j of byte l belongs to value 32·j + l", _bits_layout(low=2)),
        Field("qs", "u1", 64, PAIRS_DOC, pairs_layout()),
        Field(
            "scales", "u1", 12, "16 scales of 6 bits, less 32",
            (
                Items(range(0, 8), (Run(4, "scale", 8), Run(4, "scale", 0))),
                Items(range(8, 12), tuple(Run(2, "scale", i, low=4) for i in (12, 8, 4, 0))),
            ),
        ),
        _D,
    ),
    3, 0, _SOURCE, _read_q3_k, group=16, low=-4, read_scales=_scales_q3_k,
    rule="x = d·(scale[g] - 32)·q, q = bits - 4, g = i // 16",
)  # fmt: skip

# -- Q4_K ------------------------------------------------------------------------------------------------------------

#: Eight 6-bit scales and eight 6-bit minima in 12 bytes: of the first four the six bits together, of the others the low
#: four bits in a nibble and the high two above the first four's (llama.cpp's get_scale_min_k4).
_SCALES_K4 = Field(
    "scales", "u1", 12, "8 scales and 8 minima of 6 bits",
    (
        Items(range(0, 4), (Run(2, "scale", 4, low=4), Run(6, "scale", 0))),
        Items(range(4, 8), (Run(2, "min", 4, low=4), Run(6, "min", 0))),
        Items(range(8, 12), (Run(4, "min", 4), Run(4, "scale", 4))),
    ),
)  # fmt: skip


_QS_BY_64 = Field(
    "qs", "u1", 128, "of each 32 bytes: low nibbles values 0..31 of 64, high nibbles values 32..63",
    tuple(Items(range(32 * i, 32 * i + 32), (Run(4, "x", 64 * i + 32), Run(4, "x", 64 * i))) for i in range(4)),
)  # fmt: skip


def _scales_and_minima_k4(packed: Bytes) -> tuple[Bytes, Bytes]:
    """uint8[..., 12] → eight scales and eight minima, uint8[..., 8] each."""
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([a & 63, (c & 0x0F) | (a >> 6) << 4], axis=-1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1)
    return scales, minima


def _scales_k4(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return _float32(structs, "d")[..., None] * _scales_and_minima_k4(structs["scales"])[0].astype(np.float32)


def _minima_k4(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return -(_float32(structs, "dmin")[..., None] * _scales_and_minima_k4(structs["scales"])[1].astype(np.float32))


def _nibbles_by_64(qs: Bytes) -> Bytes:
    """uint8[..., 128] → codes [..., 256]: of each 32 bytes first the low nibbles, then the high ones."""
    runs = qs.reshape(*qs.shape[:-1], 4, 32)
    return np.stack([runs & 0x0F, runs >> 4], axis=-2).reshape(*qs.shape[:-1], QK_K)


def _read_q4_k(structs: Structs) -> Codes:
    return _nibbles_by_64(structs["qs"])


Q4_K = BlockFormat(
    "Q4_K", 12, QK_K,
    (_D, _DMIN, _SCALES_K4, _QS_BY_64),
    4, 0, _SOURCE, _read_q4_k, group=32, read_scales=_scales_k4, read_minima=_minima_k4,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 32",
)  # fmt: skip

# -- Q5_K ------------------------------------------------------------------------------------------------------------


def _read_q5_k(structs: Structs) -> Codes:
    return np.asarray(_nibbles_by_64(structs["qs"]) | _bits_by_32(structs["qh"]) << 4)


Q5_K = BlockFormat(
    "Q5_K", 13, QK_K,
    (
        _D, _DMIN, _SCALES_K4,
        Field("qh", "u1", 32, "fifth bits: bit j of byte l belongs to value 32·j + l", _bits_layout(low=4)),
        _QS_BY_64,
    ),
    5, 0, _SOURCE, _read_q5_k, group=32, read_scales=_scales_k4, read_minima=_minima_k4,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 32",
)  # fmt: skip

# -- Q6_K ------------------------------------------------------------------------------------------------------------


def _read_q6_k(structs: Structs) -> Codes:
    """Of each 128 values: byte l of 64 of ql holds values l (low) and 64 + l (high), byte l of 32 of qh the high bits
    of values l, 32 + l, 64 + l and 96 + l."""
    low = structs["ql"].reshape(*structs.shape, 2, 64)
    high = structs["qh"].reshape(*structs.shape, 2, 1, 32)
    nibbles = np.concatenate([low & 0x0F, low >> 4], axis=-1).reshape(*structs.shape, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    q = nibbles | ((high >> shifts) & 3) << 4
    return np.asarray(q.astype(np.int8) - np.int8(32)).reshape(*structs.shape, QK_K)


def _scales_q6_k(structs: Structs) -> Floats:
    with np.errstate(invalid="ignore"):
        return _float32(structs, "d")[..., None] * structs["scales"].astype(np.float32)


def _ql_layout(half: int) -> Items:
    return Items(range(64 * half, 64 * half + 64), (Run(4, "x", 128 * half + 64), Run(4, "x", 128 * half)))


def _qh_layout(half: int) -> Items:
    runs = tuple(Run(2, "x", 128 * half + 32 * i, low=4) for i in (3, 2, 1, 0))
    return Items(range(32 * half, 32 * half + 32), runs)


Q6_K = BlockFormat(
    "Q6_K", 14, QK_K,
    (
        Field("ql", "u1", 128, "low 4 bits", (_ql_layout(0), _ql_layout(1))),
        Field("qh", "u1", 64, "high 2 bits", (_qh_layout(0), _qh_layout(1))),
        Field("scales", "i1", 16, "a scale for each 16 values", each(16, Run(8, "scale", 0))),
        _D,
    ),
    6, 0, _SOURCE, _read_q6_k, group=16, low=-32, zero=32, read_scales=_scales_q6_k,
    rule="x = d·scale[g]·q, q = bits - 32, g = i // 16",
)  # fmt: skip

# -- Q8_K, which only activations have --------------------------------------------------------------------------------


def _read_q8_k(structs: Structs) -> Codes:
    return np.asarray(structs["qs"])


Q8_K = BlockFormat(
    "Q8_K", 15, QK_K,
    (
        Field("d", "<f4", 1, "scale", each(1, Run(32, "float, scale"))),
        Field("qs", "i1", QK_K, "codes in order", each(QK_K, Run(8, "x", 0))),
        Field("bsums", "<i2", QK_K // 16, "sums of 16 codes", each(QK_K // 16, Run(16, "sum", 0))),
    ),
    8, 0, "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)", _read_q8_k, group=QK_K, low=-128,
)  # fmt: skip
