"""C's casts and roundings, and the searches of llama.cpp's reference quantizers, on NumPy arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block import Floats


def c_int8(x: Floats) -> npt.NDArray[np.int8]:
    """C's `(int8_t) x` as x86 compiles it: truncate to int32 (INT_MIN if it does not fit), keep the low byte."""
    fits = np.abs(x) < 2.0**31
    return np.where(fits, np.trunc(np.where(fits, x, 0)), 0).astype(np.int32).astype(np.int8)


def round_half_away(x: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """C's `roundf`: x and the largest number below 0.5 are added, and the sum's fraction is cut off.

    For a fraction of 0.5 that sum rounds up to the next integer, otherwise it stays below it. Zeros are +0.
    """
    least = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    total = np.copysign(least, x)
    total += x
    np.trunc(total, out=total)
    total += 0  # -0 becomes +0
    return np.asarray(total)


def signed_max(x: Floats) -> Floats:
    """Return the first value of the greatest magnitude, with its sign, `[...]`; +0 for zeros, as in C's search."""
    return at_index(x, np.abs(x).argmax(axis=-1)) + np.float32(0)


def at_index(x: Floats, index: npt.NDArray[np.intp]) -> Floats:
    """Return one value of each row of `[..., values]`, `[...]`."""
    return np.asarray(np.take_along_axis(x, index[..., None], axis=-1)[..., 0])


def inverse(d: Floats) -> Floats:
    """Return 1/d in float32, or 0 where d is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(d != 0, np.float32(1) / d, np.float32(0)).astype(np.float32)


def to_half(x: Floats) -> npt.NDArray[np.float16]:
    """Round to half; an overflow becomes infinite."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16)
