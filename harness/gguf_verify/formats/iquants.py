"""I-quants: superblocks of 256 values, groups of 4 or 8 of which are one entry of a grid; and two with a table of 16.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_iq*` (llama.cpp v0.5.0). The tables come
from the gguf package (`grids`). In the layouts `grid[k]` is the index of the entry that gives values 8k..8k+7 (IQ3: 4k
up to 4k+3), `sign[k]` stands for the signs of values 8k..8k+7: all eight, or seven from which the table ksigns makes
them (the eighth bit makes their number even).

IQ1 has entries of -1, 0 and 1, to which delta adds or subtracts an eighth: the codes are eight times that, which makes
them integers, and the scales an eighth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import grids
from .block import BlockFormat, Bytes, Codes, Field, Floats, Items, Run, Structs, each
from .kquants import QK_K

Unsigned = npt.NDArray[np.unsignedinteger[Any]]

_SOURCE = "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)"
_D = Field("d", "<f2", 1, "scale of the scales", each(1, Run(16, "half, scale of the scales")))
_SCALE_NIBBLES = Field(
    "scales", "u1", 8, "a scale of 4 bits for each 16 values",
    each(8, Run(4, "scale", 1, step=2), Run(4, "scale", 0, step=2)),
)  # fmt: skip


def _times(d: Floats, factors: Floats) -> Floats:
    """float32[...] times [..., groups]: exact, since no d has more than 11 bits and no factor more than 6."""
    with np.errstate(invalid="ignore"):
        return np.asarray(d[..., None] * factors)


def _odd(scales: Unsigned, unit: float) -> Floats:
    """(2·scale + 1)·unit, where the unit is a power of two."""
    return (2 * scales.astype(np.float32) + np.float32(1)) * np.float32(unit)


def _d(structs: Structs) -> Floats:
    return np.asarray(structs["d"]).astype(np.float32)


def _split(packed: Unsigned, width: int, count: int) -> Bytes:
    """[..., n] → the `count` lowest runs of `width` bits of each, uint8[..., n·count], the lowest first."""
    shifts = np.arange(0, width * count, width, dtype=packed.dtype)
    runs = packed[..., None] >> shifts & packed.dtype.type((1 << width) - 1)
    return runs.astype(np.uint8).reshape(*packed.shape[:-1], packed.shape[-1] * count)


def _index(low: Bytes, high: Bytes) -> Unsigned:
    return np.asarray(low | high.astype(np.uint16) << 8)


def _entries(name: str, index: Unsigned, signs: Bytes) -> Codes:
    """The entries of a grid under the signs.

    Args:
        name: the grid.
        index: [..., 256 / values of an entry].
        signs: uint8[..., 32], a bit for each value.
    """
    magnitudes = grids.grid(name)[index].reshape(*signs.shape, 8)
    return np.asarray(magnitudes * grids.signs()[signs]).reshape(*signs.shape[:-1], QK_K)


# -- IQ2_XXS, IQ2_XS, IQ2_S --------------------------------------------------------------------------------------------


def _signs_of_words(words: npt.NDArray[np.uint32]) -> Bytes:
    """uint32[..., 8], each four times 7 bits and a scale → sign bytes [..., 32]."""
    return np.asarray(grids.ksigns()[_split(words, 7, 4)])


_SIGNS_AND_SCALE = (Run(4, "scale", 0), *(Run(7, "sign", k, step=4) for k in (3, 2, 1, 0)))


def _read_iq2_xxs(structs: Structs) -> Codes:
    words = structs["qs"].reshape(*structs.shape, 8, 2)
    index = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    return _entries("IQ2_XXS", index, _signs_of_words(words[..., 1]))


def _scales_iq2_xxs(structs: Structs) -> Floats:
    return _times(_d(structs), _odd(np.asarray(structs["qs"][..., 1::2] >> 28), 1 / 8))


IQ2_XXS = BlockFormat(
    "IQ2_XXS", 16, QK_K,
    (
        _D,
        Field(
            "qs", "<u4", 16, "of each 32 values: a word of grid indices, a word of signs and the scale",
            (
                Items(range(0, 16, 2), tuple(Run(8, "grid", k, step=4) for k in (3, 2, 1, 0))),
                Items(range(1, 16, 2), _SIGNS_AND_SCALE),
            ),
        ),
    ),
    7, 0, _SOURCE, _read_iq2_xxs, group=32, low=-64, read_scales=_scales_iq2_xxs,
    rule="x = d·(2·scale[g] + 1)/8·q, q = ±grid, g = i // 32",
)  # fmt: skip


def _read_iq2_xs(structs: Structs) -> Codes:
    return _entries("IQ2_XS", np.asarray(structs["qs"] & 511), grids.ksigns()[structs["qs"] >> 9])


def _scales_iq2(structs: Structs) -> Floats:
    return _times(_d(structs), _odd(_split(structs["scales"], 4, 2), 1 / 8))


IQ2_XS = BlockFormat(
    "IQ2_XS", 17, QK_K,
    (
        _D,
        Field("qs", "<u2", 32, "of each 8 values: signs and a grid index",
              each(32, Run(7, "sign", 0), Run(9, "grid", 0))),
        _SCALE_NIBBLES,
    ),
    7, 0, _SOURCE, _read_iq2_xs, group=16, low=-64, read_scales=_scales_iq2,
    rule="x = d·(2·scale[g] + 1)/8·q, q = ±grid, g = i // 16",
)  # fmt: skip


def _read_iq2_s(structs: Structs) -> Codes:
    return _entries("IQ2_S", _index(structs["qs"], _split(structs["qh"], 2, 4)), structs["signs"])


_SIGN_BYTES = Field("signs", "u1", 32, "signs of 8 values each: bit j negates value j", each(32, Run(8, "sign", 0)))

IQ2_S = BlockFormat(
    "IQ2_S", 22, QK_K,
    (
        _D,
        Field("qs", "u1", 32, "grid indices, low 8 bits", each(32, Run(8, "grid", 0))),
        _SIGN_BYTES,
        Field("qh", "u1", 8, "grid indices, high 2 bits",
              each(8, *(Run(2, "grid", k, low=8, step=4) for k in (3, 2, 1, 0)))),
        _SCALE_NIBBLES,
    ),
    7, 0, _SOURCE, _read_iq2_s, group=16, low=-64, read_scales=_scales_iq2,
    rule="x = d·(2·scale[g] + 1)/8·q, q = ±grid, g = i // 16",
)  # fmt: skip

# -- IQ3_XXS, IQ3_S ----------------------------------------------------------------------------------------------------


def _read_iq3_xxs(structs: Structs) -> Codes:
    return _entries("IQ3_XXS", structs["qs"], _signs_of_words(structs["scales_and_signs"]))


def _scales_iq3_xxs(structs: Structs) -> Floats:
    return _times(_d(structs), _odd(np.asarray(structs["scales_and_signs"] >> 28), 1 / 4))


IQ3_XXS = BlockFormat(
    "IQ3_XXS", 18, QK_K,
    (
        _D,
        Field("qs", "u1", 64, "grid indices, one for each 4 values", each(64, Run(8, "grid", 0))),
        Field("scales_and_signs", "<u4", 8, "of each 32 values: signs and the scale", each(8, *_SIGNS_AND_SCALE)),
    ),
    7, 0, _SOURCE, _read_iq3_xxs, group=32, low=-64, read_scales=_scales_iq3_xxs,
    rule="x = d·(2·scale[g] + 1)/4·q, q = ±grid, g = i // 32",
)  # fmt: skip


def _read_iq3_s(structs: Structs) -> Codes:
    return _entries("IQ3_S", _index(structs["qs"], _split(structs["qh"], 1, 8)), structs["signs"])


def _scales_iq3_s(structs: Structs) -> Floats:
    return _times(_d(structs), _odd(_split(structs["scales"], 4, 2), 1))


IQ3_S = BlockFormat(
    "IQ3_S", 21, QK_K,
    (
        _D,
        Field("qs", "u1", 64, "grid indices, low 8 bits, one for each 4 values", each(64, Run(8, "grid", 0))),
        Field("qh", "u1", 8, "grid indices, high bit",
              each(8, *(Run(1, "grid", k, low=8, step=8) for k in range(7, -1, -1)))),
        _SIGN_BYTES,
        Field("scales", "u1", 4, "a scale of 4 bits for each 32 values",
              each(4, Run(4, "scale", 1, step=2), Run(4, "scale", 0, step=2))),
    ),
    5, 0, _SOURCE, _read_iq3_s, group=32, low=-16, read_scales=_scales_iq3_s,
    rule="x = d·(2·scale[g] + 1)·q, q = ±grid, g = i // 32",
)  # fmt: skip

# -- IQ1_S, IQ1_M ------------------------------------------------------------------------------------------------------


def _codes_iq1(index: Unsigned, delta: Bytes) -> Codes:
    """Grid indices [..., 32] and delta bits uint8[..., 32] → 8·grid ± 1, [..., 256]."""
    eighths = 8 * grids.grid("IQ1_S")[index] + (1 - 2 * delta.astype(np.int8))[..., None]
    return np.asarray(eighths).reshape(*index.shape[:-1], QK_K)


def _read_iq1_s(structs: Structs) -> Codes:
    delta = np.repeat(structs["qh"] >> 15, 4, axis=-1).astype(np.uint8)
    return _codes_iq1(_index(structs["qs"], _split(structs["qh"], 3, 4)), delta)


def _scales_iq1_s(structs: Structs) -> Floats:
    return _times(_d(structs), _odd(np.asarray(structs["qh"] >> 12 & 7), 1 / 8))


IQ1_S = BlockFormat(
    "IQ1_S", 19, QK_K,
    (
        _D,
        Field("qs", "u1", 32, "grid indices, low 8 bits", each(32, Run(8, "grid", 0))),
        Field("qh", "<u2", 8, "of each 32 values: the sign of delta, the scale, four times 3 high bits of grid indices",
              each(8, Run(1, "delta", 0), Run(3, "scale", 0),
                   *(Run(3, "grid", k, low=8, step=4) for k in (3, 2, 1, 0)))),
    ),
    5, 0, _SOURCE, _read_iq1_s, group=32, low=-16, read_scales=_scales_iq1_s,
    rule="x = d·(2·scale[g] + 1)/8·q, q = 8·grid ± 1, g = i // 32",
)  # fmt: skip


def _read_iq1_m(structs: Structs) -> Codes:
    nibbles = _split(structs["qh"], 4, 2)
    return _codes_iq1(_index(structs["qs"], np.asarray(nibbles & 7)), np.asarray(nibbles >> 3))


def _scales_iq1_m(structs: Structs) -> Floats:
    """The half d has four bits at the head of each word, the lowest first; below them are four scales."""
    words = structs["scales"]
    bits = (words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=-1, dtype=np.uint16)
    d = np.asarray(bits).view(np.float16).astype(np.float32)
    return _times(d, _odd(_split(words, 3, 4), 1 / 8))


def _scale_word(w: int) -> Items:
    return Items(range(w, w + 1), (Run(4, "d", None, low=4 * w), *(Run(3, "scale", 4 * w + k) for k in (3, 2, 1, 0))))


IQ1_M = BlockFormat(
    "IQ1_M", 29, QK_K,
    (
        Field("qs", "u1", 32, "grid indices, low 8 bits", each(32, Run(8, "grid", 0))),
        Field("qh", "u1", 16, "of each 8 values: the sign of delta, high 3 bits of the grid index",
              each(16, Run(1, "delta", 1, step=2), Run(3, "grid", 1, low=8, step=2),
                   Run(1, "delta", 0, step=2), Run(3, "grid", 0, low=8, step=2))),
        Field("scales", "<u2", 4, "four bits of the half d, scale of the scales, and four scales",
              tuple(_scale_word(w) for w in range(4))),
    ),
    5, 0, _SOURCE, _read_iq1_m, group=16, low=-16, read_scales=_scales_iq1_m,
    rule="x = d·(2·scale[g] + 1)/8·q, q = 8·grid ± 1, g = i // 16",
)  # fmt: skip

# -- IQ4_NL, IQ4_XS ----------------------------------------------------------------------------------------------------


def _read_iq4_nl(structs: Structs) -> Codes:
    qs = structs["qs"]
    return np.asarray(grids.kvalues()[np.concatenate([qs & 0x0F, qs >> 4], axis=-1)])


IQ4_NL = BlockFormat(
    "IQ4_NL", 20, 32,
    (
        Field("d", "<f2", 1, "scale", each(1, Run(16, "scale"))),
        Field("qs", "u1", 16, "low nibbles: values 0..15, high nibbles: values 16..31; each an index into 16 values",
              each(16, Run(4, "x", 16), Run(4, "x", 0))),
    ),
    8, 0, _SOURCE, _read_iq4_nl, group=32, low=-128, rule="x = d·q, q = kvalues[x]",
)  # fmt: skip


def _read_iq4_xs(structs: Structs) -> Codes:
    """Of each 16 bytes: low nibbles values 0..15 of 32, high nibbles values 16..31."""
    qs = structs["qs"].reshape(*structs.shape, 8, 16)
    return np.asarray(grids.kvalues()[np.concatenate([qs & 0x0F, qs >> 4], axis=-1)]).reshape(*structs.shape, QK_K)


def _scales_iq4_xs(structs: Structs) -> Floats:
    scales = _split(structs["scales_l"], 4, 2) | _split(structs["scales_h"][..., None], 2, 8) << 4
    return _times(_d(structs), scales.astype(np.float32) - np.float32(32))


IQ4_XS = BlockFormat(
    "IQ4_XS", 23, QK_K,
    (
        _D,
        Field("scales_h", "<u2", 1, "high 2 bits of the scales",
              each(1, *(Run(2, "scale", g, low=4) for g in range(7, -1, -1)))),
        Field("scales_l", "u1", 4, "low 4 bits of 8 scales of 6 bits, less 32",
              each(4, Run(4, "scale", 1, step=2), Run(4, "scale", 0, step=2))),
        Field("qs", "u1", 128, "of each 16 bytes: low nibbles values 0..15 of 32, high nibbles values 16..31; each an "
              "index into 16 values",
              tuple(Items(range(16 * g, 16 * g + 16), (Run(4, "x", 32 * g + 16), Run(4, "x", 32 * g)))
                    for g in range(8))),
    ),
    8, 0, _SOURCE, _read_iq4_xs, group=32, low=-128, read_scales=_scales_iq4_xs,
    rule="x = d·(scale[g] - 32)·q, q = kvalues[x], g = i // 32",
)  # fmt: skip
