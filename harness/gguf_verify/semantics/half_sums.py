"""Sums in half whose order is not known: the total of their roundings in the orders of real kernels.

The accumulator is a half, and so a multiple of the spacing g of halves at its size. Adding t rounds it to the g of the
sum S, so while the sum stays between two powers of two, the rounding error depends only on the addend and on g:

    e = g·rint(a/g) - t        a = t, or half(t) where products are rounded before they are added

If addends are alike, or small compared with the sum, these errors all have one sign. Otherwise they are practically
independent and no larger than u·|S|, as those of products are than u·|t|, u = 2^-11. Over the terms t of an output,
their partial sums S, the sums s of lanes, and η = 2^-25 for a product below the normal halves, the error of a sum in
one order is therefore

    drift       |Σ e|, for the a that makes it larger
    spread²     u²/3·(Σ S² + Σ t² + 8·(Σ s² + o²))          8 roundings for the addition of lanes
    tolerance   drift + 8·spread + K·η                       8: `semantics.accumulation`, IN_FLOAT16.deviations

and the largest tolerance of these orders counts: lanes of every L-th term, L = 1, 2, 4, … 32, in ascending order, two
lanes that take runs of 2, 4, … 32 terms in turn, and all terms in descending order. If factors alternate in such runs,
the terms of a lane have one sign, and two lanes hold the largest sums. Parts of a row that are added separately, and
trees, have smaller sums.

`exact` only knows the sums of whole blocks, and admits their running-error bound, as if all roundings had one sign: for
1536 terms of one sign that is 0.4 of the sum, and correct outputs are off by at most a tenth of it.

This takes all terms of each output, so only products that need it are judged this way: see `closer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .accumulation import EXTRA_ROUNDINGS, IN_FLOAT16, SCORE_LIMIT
from .narrow import HALF
from .sums import Doubles, Errors, Floats, Product

#: Most terms of all outputs that are added, which takes seconds; terms that are held at a time.
_MOST, _AT_ONCE = 1 << 25, 1 << 18
_LANES, _RUNS = (1, 2, 4, 8, 16, 32), (2, 4, 8, 16, 32)
#: Bits of a float32's exponent, and the spacing of halves at 1.
_EXPONENT, _STEP = np.uint32(0x7F800000), np.float32(2.0**-10)


def sharpened(made: Product, a: Doubles, w: Doubles, slack: Doubles | float = 0.0) -> Product:
    """Return a product with the spread of these tolerances, if it is smaller.

    Args:
        made: [M, N], with sums in half.
        a, w: the factors, float64[M, K] and float64[N, K].
        slack: the total error of the factors, and the rounding of the output, [M, N].
    """
    if len(a) * w.size > _MOST or not np.isfinite(made.exact).all():
        return made
    tolerance = errors(a, w).tolerance
    return replace(made, spread=np.minimum(made.spread, (tolerance + slack) / SCORE_LIMIT))


def errors(a: Doubles, w: Doubles) -> Errors:
    """Return the errors of sums of factors [M, K] and [N, K], [M, N]."""
    step = max(1, _AT_ONCE // max(1, a.size))
    parts = [_errors(a, w[first : first + step]) for first in range(0, len(w), step)]
    if not parts:
        nothing = np.zeros((len(a), 0))
        return Errors(nothing, nothing, nothing)
    return Errors(*(np.concatenate(part, axis=1) for part in zip(*parts, strict=True)))


def _errors(a: Doubles, w: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return tolerance, drift and deviation of factors [M, K] and [n, K], [M, n]."""
    u, k = IN_FLOAT16.unit, a.shape[1]
    filled = ((0, 0), (0, -k % (2 * _RUNS[-1])))
    left, right = (np.pad(each, filled) for each in (a, w))
    products = left[:, None] * right[None]
    with np.errstate(over="ignore"):
        rounded = products.astype(np.float16).astype(np.float32)
    terms = products.astype(np.float32)  # products of two halves are exact
    exact = products.sum(axis=2)
    squares = np.einsum("mnk,mnk->mn", terms, terms).astype(np.float64) + EXTRA_ROUNDINGS * exact**2
    tolerance, drift, deviation = (np.zeros_like(exact) for _ in range(3))
    for in_order in zip(_orders(terms), _orders(rounded), strict=True):
        off, carried = _one_order(*in_order)
        spread = u * np.sqrt((carried + squares) / 3)
        tolerance = np.maximum(tolerance, off + IN_FLOAT16.deviations * spread)
        drift, deviation = np.maximum(drift, off), np.maximum(deviation, spread)
    lost = k * IN_FLOAT16.underflow
    return tolerance + lost, drift + lost, deviation


def _orders(terms: Floats) -> Iterator[Floats]:
    """Yield the terms [M, n, K] in every order, [M, n, steps, lanes] each."""
    yield terms[..., ::-1, None]
    for lanes, run in (*((lanes, 1) for lanes in _LANES), *((2, run) for run in _RUNS)):
        in_turn = terms.reshape(*terms.shape[:2], -1, lanes, run).swapaxes(3, 4)
        yield in_turn.reshape(*terms.shape[:2], -1, lanes)


def half_grid(sums: npt.NDArray[np.floating]) -> Floats:
    """Return the spacing of halves at sums, except for those that overflow."""
    power = (sums.astype(np.float32, copy=False).view(np.uint32) & _EXPONENT).view(np.float32)
    grid: Floats = np.maximum(power * _STEP, np.float32(2 * HALF.underflow))
    return grid


def _one_order(terms: Floats, rounded: Floats) -> tuple[Doubles, Doubles]:
    """Return |Σ e|, and Σ S² + 8·Σ s², of terms [M, n, steps, lanes] and of their rounded values, [M, n] each."""
    sums = np.cumsum(terms, axis=2)
    grid = half_grid(sums)
    off = [(np.rint(each / grid) * grid - terms).sum(axis=(2, 3), dtype=np.float64) for each in (terms, rounded)]
    carried = np.einsum("mnkl,mnkl->mn", sums, sums) + EXTRA_ROUNDINGS * (sums[:, :, -1] ** 2).sum(axis=2)
    return np.abs(off).max(axis=0), carried.astype(np.float64)
