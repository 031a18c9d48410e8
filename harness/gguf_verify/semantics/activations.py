"""Arithmetic shared by the quantizers of activations: blocks, their largest magnitude, and summation orders.
Each definition has its own quantizer beside its record, in `definitions/`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats.block import QK
from ..formats.c_arithmetic import inverse, round_half_away

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int8]


def blocks_of(x: Floats, size: int = QK) -> Floats:
    """Split float32[M, K] into blocks, [M, K/size, size]. Raises ValueError if K is not a whole number of blocks."""
    m, k = x.shape
    if k % size:
        raise ValueError(f"a row of {k} activations is not a whole number of blocks of {size}")
    return np.ascontiguousarray(x, np.float32).reshape(m, k // size, size)


def padded(x: Floats, size: int) -> Floats:
    """Pad float32[M, K] with zeros to whole blocks of `size`, as llama.cpp pads K.

    Raises ValueError if K is not a whole number of blocks of 32.
    """
    blocks_of(x)
    return np.pad(x, ((0, 0), (0, -x.shape[1] % size)))


def largest(blocks: Floats) -> Floats:
    """Return the largest magnitude of each block. NaN is ignored beside a number, as in C's fmaxf."""
    size = np.abs(blocks)
    while size.shape[-1] % 2 == 0:  # compare halves: faster than a reduction over a short axis
        half = size.shape[-1] // 2
        size = np.fmax(size[..., :half], size[..., half:])
    return np.asarray(np.fmax.reduce(size, axis=-1))


def pairwise_sum(values: Floats, distances: tuple[int, ...]) -> Floats:
    """Return Σ over the last axis as lanes add it, in float32: those at the greatest distance from each other first."""
    total = values
    with np.errstate(over="ignore", invalid="ignore"):
        for distance in distances:
            total = total[..., :distance] + total[..., distance : 2 * distance]
    return total[..., 0]


def butterfly_sum(blocks: Floats) -> Floats:
    """Return Σ of 32 values as a warp reduces them: lanes at distance 16, 8, 4, 2, 1 are added in float32."""
    return pairwise_sum(blocks, (16, 8, 4, 2, 1))


def by_inverse(blocks: Floats) -> tuple[Floats, Floats]:
    """Return x·(127/max) before rounding, and 127/max, each step rounded to float32."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.float32(127) / largest(blocks)
        return blocks * inverse[..., None], inverse


def mmq_ratios(blocks: Floats) -> tuple[Floats, Floats]:
    """Return x·(127/max) and d = 1/(127/max): llama.cpp v0.5.0, ggml-cuda/quantize.cu, quantize_mmq_q8_1."""
    ratio, inverse = by_inverse(blocks)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return ratio, np.float32(1) / inverse


def mmq_codes(blocks: Floats) -> tuple[Floats, Codes]:
    """Return d = 1/(127/max) and q = round-half-away(x·(127/max)), with IEEE division.

    A block of zeros has d = 0; so has one with max below 3.7e-37, where 127/max overflows: its codes, here 0, have no
    meaning.
    """
    ratio, d = mmq_ratios(blocks)
    with np.errstate(invalid="ignore", over="ignore"):
        q = round_half_away(ratio)
    q = np.where(np.isfinite(q), np.clip(np.nan_to_num(q), -128, 127), np.float32(0))
    return d, q.astype(np.int8)


def cpu_ratios(blocks: Floats) -> tuple[Floats, Floats]:
    """Return x·(127/max) and d = max/127: ggml-cpu/arch/x86/quants.c."""
    ratio, _ = by_inverse(blocks)
    return ratio, largest(blocks) / np.float32(127)


def reference_ratios(blocks: Floats) -> tuple[Floats, Floats]:
    """Return x·(1/d) and d = max|x|/127: ggml-quants.c, quantize_row_q8_0_ref."""
    d = largest(blocks) / np.float32(127)
    with np.errstate(invalid="ignore", over="ignore"):
        return blocks * inverse(d)[..., None], d


def cpu_codes(blocks: Floats) -> tuple[Floats, Codes, Floats]:
    """Return d, q and the unrounded s of the x86 code in ggml-cpu/arch/x86/quants.c: q = round-half-even(x·(127/max)).

    If 127/max overflows (max below 3.7e-37, so that half(d) is 0), cvtps2dq gives INT_MIN: codes saturate to -128 when
    they are packed, and the sum wraps.
    """
    amax = largest(blocks)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(amax != 0, np.float32(127) / amax, np.float32(0)).astype(np.float32)
        rounded = np.rint(blocks * inverse[..., None])
        d = amax / np.float32(127)
        wide = np.where(np.isfinite(rounded), rounded, np.float32(-(2.0**31))).astype(np.int32)
        s = wide.sum(axis=-1, dtype=np.int32).astype(np.float32) * d
    return d, np.clip(wide, -128, 127).astype(np.int8), s
