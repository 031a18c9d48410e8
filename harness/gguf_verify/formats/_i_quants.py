"""Decoding shared by the I-quants: groups of 4 or 8 values from a grid, or codes that index a table of 16.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_iq*` (llama.cpp v0.5.0). The tables come
from the gguf package (`grids`). In the layouts `grid[k]` is the index of the entry for values 8k to 8k+7 (in IQ3 4k to
4k+3), and `sign[k]` stands for the signs of values 8k to 8k+7: all eight, or seven that the table ksigns completes (the
eighth makes the number of negative ones even).

The grid of IQ1 has entries of -1, 0 and 1, to which delta adds or subtracts an eighth: the codes are eight times that,
which makes them integers, and the scales are an eighth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.arrays import beside
from . import grids
from .block import QK_K, Bytes, Codes, Floats, Structs
from .grids import Grid
from .kernel_table import KernelTable, words
from .layout import Bits, Field, each

Unsigned = npt.NDArray[np.unsignedinteger[Any]]

#: Why llama.cpp cannot quantize a file to such a type without further input.
NEEDS_IMATRIX = "llama.cpp quantizes to it with an importance matrix only"
#: Why no definition describes their products by MMVQ.
INTEGER_DIVISION = "MMVQ of this type divides integer sums and drops the remainder (vecdotq.cuh)"
SCALE_NIBBLES = Field(
    "scales", "u1", 8, "a scale of 4 bits for each 16 values",
    each(8, Bits(4, "scale", 1, step=2), Bits(4, "scale", 0, step=2)),
)  # fmt: skip
#: Bits of a word with the signs of 32 values, seven for eight of them, and their scale.
SIGNS_AND_SCALE = (Bits(4, "scale", 0), *(Bits(7, "sign", k, step=4) for k in (3, 2, 1, 0)))
SIGN_BYTES = Field("signs", "u1", 32, "signs of 8 values each: bit j negates value j", each(32, Bits(8, "sign", 0)))

#: The grid that IQ1_S and IQ1_M share.
IQ1_GRID = Grid("IQ1_S", 2048, 8)
IQ1_TABLE = KernelTable(
    "iq1",
    "uint32_t IQ1_GRID[2048]",
    "the grid of IQ1_S",
    "entries plus 1, a nibble each: 0..3 low, 4..7 high",
    lambda: words(_in_nibbles(IQ1_GRID.entries())),
    IQ1_GRID.count,
)
KSIGNS = KernelTable(
    "ksigns",
    "uint8_t KSIGNS[128]",
    "ksigns",
    "sign bytes of 7 bits: bit j negates value j of 8",
    lambda: (f"{v:#04x}" for v in grids.ksigns()),
)
KVALUES = KernelTable(
    "kvalues",
    "int8_t KVALUES[16]",
    "IQ4_NL.kvalues",
    "values of the codes of IQ4_NL and IQ4_XS",
    lambda: (str(v) for v in grids.kvalues()),
)


def _in_nibbles(entries: npt.NDArray[np.int8]) -> npt.NDArray[np.uint32]:
    packed = (entries[:, :4] + 1) | (entries[:, 4:] + 1) << 4
    return np.ascontiguousarray(packed.astype(np.uint8)).view("<u4")[:, 0]


def times(d: Floats, factors: Floats) -> Floats:
    """Multiply float32[...] by [..., groups]: exact, since no d has more than 11 bits and no factor more than 6."""
    with np.errstate(invalid="ignore"):
        return d[..., None] * factors


def odd_multiples(scales: Unsigned, unit: float) -> Floats:
    """Return (2·scale + 1)·unit, where the unit is a power of two."""
    return (2 * scales.astype(np.float32) + np.float32(1)) * np.float32(unit)


def half_d(structs: Structs) -> Floats:
    """Return the scale of the scales, float32[...]."""
    return structs["d"].astype(np.float32)


def runs_of_bits(packed: Unsigned, width: int, count: int) -> Bytes:
    """Split [..., n] into the `count` lowest runs of `width` bits of each, uint8[..., n·count], the lowest first."""
    shifts = beside(packed, np.arange(0, width * count, width, dtype=packed.dtype))
    runs = packed[..., None] >> shifts & packed.dtype.type((1 << width) - 1)
    return runs.astype(np.uint8).reshape(*packed.shape[:-1], packed.shape[-1] * count)


def grid_index(low: Bytes, high: Bytes) -> Unsigned:
    """Combine the low 8 bits of indices and the bits above."""
    return low | high.astype(np.uint16) << np.uint16(8)


def entries(grid: Grid, index: Unsigned, signs: Bytes) -> Codes:
    """Look up the entries of a grid, each value multiplied by its sign, int8[..., 256].

    Args:
        grid: the grid.
        index: [..., 256 / values of an entry].
        signs: uint8[..., 32], a bit for each value.
    """
    magnitudes = beside(index, grid.entries())[index].reshape(*signs.shape, 8)
    return (magnitudes * beside(signs, grids.signs())[signs]).reshape(*signs.shape[:-1], QK_K)


def signs_of_words(words: npt.NDArray[np.uint32]) -> Bytes:
    """Convert uint32[..., 8], each four times 7 bits and a scale, to sign bytes [..., 32]."""
    return beside(words, grids.ksigns())[runs_of_bits(words, 7, 4)]


def scales_of_iq2(structs: Structs) -> Floats:
    """Return the scales of IQ2_XS and IQ2_S, float32[..., 16]: d·(2·scale + 1)/8."""
    return times(half_d(structs), odd_multiples(runs_of_bits(structs["scales"], 4, 2), 1 / 8))


def codes_of_iq1(index: Unsigned, delta: Bytes) -> Codes:
    """Convert grid indices [..., 32] and delta bits uint8[..., 32] to 8·grid ± 1, [..., 256]."""
    eighths = 8 * beside(index, IQ1_GRID.entries())[index] + (1 - 2 * delta.astype(np.int8))[..., None]
    return eighths.reshape(*index.shape[:-1], QK_K)
