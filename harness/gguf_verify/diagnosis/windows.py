"""Faults of calls of some sizes only: the kernel runs again on the same operands with other sizes."""

from __future__ import annotations

import numpy as np

from ..results.diagnoses import FaultMatch
from ..semantics.sums import Product
from .calls import Bools, Calls, others
from .observed import observed
from .sizes import MOST_CALLS, ROWS, TOKENS, Series, around, each, of_lengths, of_sizes

#: Numbers of tokens and of rows to try: small ones, and around the sizes of tiles.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 127, 128, 129, 131)
#: Approximate number of calls to find the sizes at which outputs become wrong, and to learn a rule.
_EDGES = 16 + MOST_CALLS
#: Up to this K, wrong rows are no evidence that a kernel is only wrong for large K: their last tile may be wrong.
_LONG = 2048
#: Most values of the operand whose size changes, and most rows of calls with fewer columns.
_MOST_VALUES, _FEW_ROWS = 1 << 24, 72
#: Calls with other columns of the largest K that was right.
_MOST_STARTS = 32
#: Multiples of a domain's step that are tried.
_MORE_ROWS = 8


def of_tokens(calls: Calls) -> Series:
    """Compare calls with other numbers of tokens."""
    domain, own = calls.kernel.domain.m, len(calls.x)
    sizes = [m for m in sorted({*SIZES, own}) if m in domain]
    if not sizes or own * calls.k > _MOST_VALUES:
        return Series()
    most = max(2 * own, max(sizes))
    # One row less, a shape that has rarely been used before.
    rows = calls.rows[: calls.most([*sizes, *[most] * _EDGES], max(1, len(calls.rows) - 1))]
    x = np.resize(calls.x, (most, calls.x.shape[1]))
    exact = calls.exact(rows, x)

    def of(m: int, first: int = 0) -> Bools:
        at = (first + np.arange(m)) % most
        return np.asarray(calls.wrong(calls.run(rows, x[at]), exact.rows(at)).any(axis=1))

    return of_sizes(around(each(sizes, of), of, own, most, domain), of, most, domain, TOKENS)


def of_rows(calls: Calls) -> Series:
    """Compare calls with other numbers of rows."""
    domain, own = calls.kernel.domain.n, len(calls.rows)
    most = max(2 * own, min(_MORE_ROWS * domain.multiple, _MOST_VALUES // calls.k))
    multiples = range(domain.multiple, most + 1, domain.multiple) if domain.multiple > 1 else ()
    sizes = [n for n in sorted({*SIZES, own, *multiples}) if n in domain and n <= max(own, *multiples, 0)]
    # With few rows, experts hardly differ, so that a call of them shows less.
    if not sizes or own * calls.k > _MOST_VALUES or calls.kernel.takes_experts is not None:
        return Series()
    few = calls.most([*sizes, *[most] * _EDGES], len(calls.x))
    x = calls.x[:few] if few in calls.kernel.domain.m else calls.x
    rows = np.resize(calls.rows, (most, calls.rows.shape[1]))
    exact = calls.exact(rows, x)

    def of(n: int, first: int = 0) -> Bools:
        at = (first + np.arange(n)) % most
        of_n = Product(exact.exact[:, at], exact.bound[:, at], exact.spread[:, at], None)
        return np.asarray(calls.wrong(calls.run(rows[at], x), of_n).any(axis=0))

    return of_sizes(around(each(sizes, of), of, own, most, domain), of, most, domain, ROWS)


def of_columns(calls: Calls) -> FaultMatch | None:
    """Return a fault if calls with some K are wrong, and others correct."""
    unit, k = calls.fmt.unit, calls.k
    if k % unit:
        return None
    few = {*range(1, 9), *others(k // unit), *(64 << i for i in range(9)), k // unit}
    lengths = [length for length in sorted(few) if length * unit <= k]
    lengths = [length for length in lengths if length * unit in calls.kernel.domain.k]

    def wrong(length: int, start: int = 0) -> float:
        rows, x = calls.first_columns(length, start)
        rows, x = rows[:_FEW_ROWS], x[:2]
        return float(calls.wrong(calls.run(rows, x), calls.exact(rows, x)).mean())

    shares = {length: wrong(length) for length in lengths}
    right = max((n for n, share in shares.items() if not share), default=0)
    bad = min((n for n, share in shares.items() if share), default=0)
    if not right or not bad or not shares.get(k // unit):
        return None
    starts = np.linspace(0, k // unit - right, min(-(-k // (right * unit)), _MOST_STARTS)).astype(int)
    if any(wrong(right, int(start)) for start in starts[1:]):
        return None  # the columns matter, and not their number
    if k <= _LONG or right > bad or set(shares.values()) != {0.0, 1.0}:
        return of_lengths(
            {length: bool(share) for length, share in shares.items()},
            lambda n: bool(wrong(n)),
            calls.kernel.domain.k,
            unit,
        )
    while bad - right > 1 and (middle := (right + bad) // 2) * unit in calls.kernel.domain.k:
        share = wrong(middle)
        if 0 < share < 1:
            return None
        right, bad = (right, middle) if share else (middle, bad)
    if right * unit <= _LONG:
        return of_lengths(
            {length: bool(share) for length, share in shares.items()},
            lambda n: bool(wrong(n)),
            calls.kernel.domain.k,
            unit,
        )
    words = f"only calls of large K are wrong: all outputs from K = {bad * unit} on, and none up to {right * unit}"
    return observed("window-of-k", words)
