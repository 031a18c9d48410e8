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
    (
        _D, _DMIN, _SCALES_K4,
        Field(
            "qs", "u1", 128, "of each 32 bytes: low nibbles values 0..31 of 64, high nibbles values 32..63",
            tuple(Items(range(32 * i, 32 * i + 32), (Run(4, "x", 64 * i + 32), Run(4, "x", 64 * i))) for i in range(4)),
        ),
    ),
    4, 0, _SOURCE, _read_q4_k, group=32, read_scales=_scales_k4, read_minima=_minima_k4,
    rule="x = d·scale[g]·q - dmin·min[g], g = i // 32",
)  # fmt: skip

# -- Q6_K ------------------------------------------------------------------------------------------------------------


def _read_q6_k(structs: Structs) -> Codes:
    """Of each 128 values: byte l of 64 of ql holds values l (low) and 64 + l (high), byte l of 32 of qh the high bits of
    values l, 32 + l, 64 + l and 96 + l."""
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
    6, 0, _SOURCE, _read_q6_k, group=16, low=-32, read_scales=_scales_q6_k,
    rule="x = d·scale[g]·(q - 32), g = i // 16",
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
