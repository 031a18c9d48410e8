"""float32 fused multiply-add in NumPy, with the one rounding of the real instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from ..support.arrays import library_of

Floats = npt.NDArray[np.float32]

_TIE_MASK = np.int64(0x1FFFFFFF)
_TIE = np.int64(0x10000000)
SMALLEST_NORMAL = 2.0**-126
#: Steps of a chain that are checked together; elements of their (steps, M, n) arrays.
_STEPS, _TOGETHER = 64, 1 << 17


def add_rounded(product: npt.NDArray[np.float64], acc: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute `fma(a, b, acc)` for a product a·b that float64 holds exactly (at most 53 significant bits).

    Rounding the sum to float64 and then to float32 only errs if the float64 sum looks like a tie of float32, or if the
    result is subnormal; those elements are summed again with round-to-odd, after which the second rounding is correct
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if (library := library_of(product)) is not None:
        return cast(Floats, library.rounding.chain([product[None]], acc))
    total = product + acc
    suspicious = _suspicious(total)
    if suspicious.any():
        total[suspicious] = _add_to_odd(product[suspicious], acc[suspicious].astype(np.float64))
    return total.astype(np.float32)


def chain_rounded(
    streams: Sequence[npt.NDArray[np.float64]], start: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Apply `fma` to products in turn, from zero or `start`: as add_rounded step by step, but checked once at the end.

    Sums that float64 did not hold and that look like a tie are so rare (one in 2^29) that a chain with one is simply
    recomputed with add_rounded.

    Args:
        streams: arrays [steps, …] of one shape; each step takes one product of every stream, in order.
        start: the initial sum, if not zero.
    """
    if (library := library_of(streams[0])) is not None:
        begin = np.zeros_like(streams[0][0], dtype=np.float32) if start is None else start
        return cast(Floats, library.rounding.chain(streams, begin))
    steps, shape, n = len(streams[0]), streams[0].shape[1:], len(streams)
    totals = np.empty((steps, n, *shape))
    first = np.zeros(shape, np.float32) if start is None else start
    acc = first.copy()
    for step in range(steps):
        for i, stream in enumerate(streams):
            np.add(stream[step], acc, out=totals[step, i])
            np.copyto(acc, totals[step, i], casting="same_kind")
    at = np.flatnonzero(_suspicious(totals))
    order, element = np.divmod(at, first.size)
    flat = totals.reshape(-1)
    before = np.where(order > 0, flat[at - first.size], first.reshape(-1)[element])
    before = before.astype(np.float32).astype(np.float64)
    at_step, which = np.divmod(order, n)
    for i, stream in enumerate(streams):
        mine = slice(None) if n == 1 else which == i
        added = stream.reshape(-1)[(at_step * first.size + element)[mine]]
        if _sum_error(added, before[mine], flat[at[mine]]).any():
            break
    else:
        return acc
    acc = first.copy()
    for b in range(steps):
        for stream in streams:
            acc = add_rounded(stream[b], acc)
    return acc


def multiply_adds(
    a: npt.NDArray[np.float32], w: npt.NDArray[np.float32], short: bool = False
) -> npt.NDArray[np.float32]:
    """Compute Σ_k a[k]·w[k], float32[M, n], by `fma` in ascending k from +0, of a float32[K, M] and w float32[K, n].

    Args:
        short: products have so few bits that float32 holds them, unless they under- or overflow: then a multiplication
            and an addition equal one fused multiply-add.
    """
    if (library := library_of(a)) is not None:
        return cast(Floats, library.rounding.multiply_adds(a, w))
    k, m, n = len(a), a.shape[1], w.shape[1]
    a = a[:, :, None]
    acc = np.zeros((m, n), np.float32)
    if short and _held(a, w):
        term = np.empty_like(acc)
        for i in range(k):
            np.multiply(a[i], w[i], out=term)
            np.add(acc, term, out=acc)
        return acc
    wide = a.astype(np.float64)
    width = max(1, _TOGETHER // max(1, m * _STEPS))
    for left in range(0, n, width):
        part = acc[:, left : left + width]
        for first in range(0, k, _STEPS):
            span = slice(first, first + _STEPS)
            terms = wide[span] * w[span, None, left : left + width].astype(np.float64)
            part = chain_rounded([terms], np.ascontiguousarray(part))
        acc[:, left : left + width] = part
    return acc


def half_multiply_adds(a: npt.NDArray[np.float64], w: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Compute Σ_k a[k]·w[k], float32[M, n], by the fused multiply-add of halves in ascending k from +0.

    The factors are halves a[M, K] and w[n, K]. A product of two halves has 22 bits. float64 holds its sum with a third
    half, unless the product is less than 2^-29 of that half, which is then the result, or the sum is past 2^16 and
    infinite.
    """
    acc = np.zeros((len(a), len(w)), np.float16)
    left, right = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(w.T)[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(len(left)):
            acc = (left[k] * right[k] + acc).astype(np.float16)
    return acc.astype(np.float32)


def to_float32(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round to float32, as float64."""
    if (library := library_of(values)) is not None:
        return cast(npt.NDArray[np.float64], library.rounding.to_float32(values))
    return values.astype(np.float32).astype(np.float64)


def _held(a: npt.NDArray[np.float32], w: npt.NDArray[np.float32]) -> bool:
    """Return whether all products of short values are normal in float32, or zero."""

    def extremes(values: npt.NDArray[np.float32]) -> tuple[float, float]:
        size = np.abs(values)
        least = np.min(size, where=size > 0, initial=np.inf)
        return float(least), float(size.max(initial=0.0))

    (a_least, a_most), (w_least, w_most) = extremes(a), extremes(w)
    return a_least * w_least >= 2.0**-126 and a_most * w_most < 2.0**127


def _suspicious(total: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return the sums that a second rounding might get wrong."""
    looks_like_tie = (total.view(np.int64) & _TIE_MASK) == _TIE
    return np.asarray(looks_like_tie | ((np.abs(total) < SMALLEST_NORMAL) & (total != 0)))


def _sum_error(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], total: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return a + b - total, exactly (Knuth's TwoSum)."""
    back = total - a
    return np.asarray((a - (total - back)) + (b - back))


def _add_to_odd(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a + b in float64, rounded to the neighbour with an odd last bit if inexact."""
    total = a + b
    error = _sum_error(a, b, total)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, toward), total)
