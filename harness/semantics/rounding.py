"""float32 fused multiply-add in NumPy, with the one rounding of the real instruction."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_TIE_MASK = np.int64(0x1FFFFFFF)
_TIE = np.int64(0x10000000)
_SMALLEST_NORMAL = 2.0**-126


def add_rounded(product: npt.NDArray[np.float64], acc: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """`fma(a, b, acc)` for a product a·b that float64 holds exactly (at most 53 significant bits).

    Rounding the sum to float64 and then to float32 errs only where the float64 sum looks like a tie of float32, or
    where the result is subnormal; those elements are summed again with round-to-odd, after which the second rounding
    is right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    total = product + acc
    suspicious = (total.view(np.int64) & _TIE_MASK) == _TIE
    suspicious |= np.abs(total) < _SMALLEST_NORMAL
    if suspicious.any():
        total[suspicious] = _add_to_odd(product[suspicious], acc[suspicious].astype(np.float64))
    return total.astype(np.float32)


def _add_to_odd(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """a + b in float64, rounded to the neighbour with an odd last bit where it is inexact."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)  # Knuth's TwoSum: exact
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, toward), total)
