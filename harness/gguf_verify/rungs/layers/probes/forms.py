"""Operands of comparisons as functions of the sizes: found from observed values, and solved.

Conditions on sizes are mostly polynomials in which each of M, N and K occurs once at most (`M * N >= 3000000`), or
remainders of these (`N * K % 192 == 64`). Such a form follows from a few values, and a shape at which several
comparisons have the wanted outcomes follows from their forms without a call of the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: Of one dimension, and of M, N and K.
_Count = Ints | int
Counts = Sequence[_Count] | Ints
#: Counts of steps in M, N and K.
Steps = tuple[int, int, int]

#: The products of sizes that a form has: which of M, N and K are factors.
_PRODUCTS = tuple(itertools.chain.from_iterable(itertools.combinations(range(3), count) for count in (1, 2, 3)))
#: Values that a form needs to be believed, and with two products.
_LEAST_VALUES, _LEAST_OF_TWO = 3, 6
#: A larger value is no number of a size; with factors of it, int64 would not hold a form's values.
_LARGEST_VALUE = 1 << 48
#: Quotients of differences that are tried as factors.
_MOST_FACTORS = 4
#: Counts of one dimension that are tried on each side of a root, and small ones: as many as a period may have.
_PERIOD = 1024
#: Counts of one dimension that are tried together with all of another one, and with those of a period.
_MOST_BESIDE, _MOST_DIVIDENDS = 6, 32
#: Counts that are tried beside a root: the next ones before and behind it.
_BESIDE_ROOT = np.arange(-1, 3)


@dataclass(frozen=True)
class Form:
    """`Σ factor · product of counts + constant`, or its remainder.

    Args:
        factors: product (dimensions) → integer.
        divisor: of the remainder; 0 if there is none.
    """

    factors: tuple[tuple[tuple[int, ...], int], ...]
    constant: int
    divisor: int = 0

    @property
    def dimensions(self) -> frozenset[int]:
        """Those that it depends on."""
        return frozenset(d for product, _ in self.factors for d in product)

    def __call__(self, counts: Counts) -> Ints:
        """Return its values."""
        total = sum(factor * math.prod(counts[d] for d in product) for product, factor in self.factors)
        value = np.asarray(total + self.constant)
        return value % self.divisor if self.divisor else value

    def along(self, dimension: int, counts: Counts) -> tuple[_Count, _Count]:
        """Return slope and constant of the values as a function of one dimension, before the remainder."""
        slope: _Count = 0
        constant: _Count = self.constant
        for product, factor in self.factors:
            part = factor * math.prod(counts[d] for d in product if d != dimension)
            if dimension in product:
                slope = slope + part
            else:
                constant = constant + part
        return slope, constant


def fitted(values: Sequence[tuple[Steps, float]], steps: Steps) -> Form | None:
    """The simplest form that has these values; None if there is none.

    Args:
        values: counts → value.
        steps: sizes of one count.
    """
    if len({value for _, value in values}) < 2 or len(values) < _LEAST_VALUES:
        return None
    if not all(is_whole(value) for _, value in values):
        return None
    whole = [(counts, int(value)) for counts, value in values]
    ys = [y for _, y in whole]
    remainders = list[Form]()
    columns = {product: [math.prod(counts[d] for d in product) for counts, _ in whole] for product in _PRODUCTS}
    for product, xs in columns.items():
        for factor in _factors(xs, ys, math.prod(steps[d] for d in product)):
            apart = [factor * x - y for x, y in zip(xs, ys, strict=True)]
            divisor = math.gcd(*(one - apart[0] for one in apart))
            if not divisor:
                return Form(((product, factor),), -apart[0])
            if min(ys) >= 0 and divisor > max(ys) > 0:
                remainders.append(Form(((product, factor % divisor),), -apart[0] % divisor, divisor))
    if len(values) >= _LEAST_OF_TWO and (form := _of_two(columns, ys)) is not None:
        return form
    return next(iter(remainders), None)


def is_whole(value: float) -> bool:
    """Whether it is an integer that may be a number of sizes."""
    return value % 1 == 0 and abs(value) <= _LARGEST_VALUE


def _factors(xs: Sequence[int], ys: Sequence[int], step: int) -> list[int]:
    """Possible factors: that of the sizes themselves, one, and the whole quotients of differences."""
    ordered = sorted(zip(xs, ys, strict=True))
    pairs = ((b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ordered) if b[0] != a[0])
    found = dict.fromkeys(y // x for x, y in pairs if y % x == 0 and y)
    return [*dict.fromkeys((step, 1, *itertools.islice(found, _MOST_FACTORS)))] if len({*xs}) > 1 else []


def _of_two(columns: dict[tuple[int, ...], list[int]], ys: Sequence[int]) -> Form | None:
    """The form with two products, by three values and checked by all."""
    for one, other in itertools.combinations(columns, 2):
        rows = [(a - columns[one][0], b - columns[other][0], y - ys[0])
                for a, b, y in zip(columns[one], columns[other], ys, strict=True)]  # fmt: skip
        pairs = ((p, q, p[0] * q[1] - p[1] * q[0]) for p, q in itertools.combinations(rows, 2))
        p, q, determinant = next((pair for pair in pairs if pair[2]), (rows[0], rows[0], 0))
        if not determinant:
            continue
        a, rest = divmod(p[2] * q[1] - p[1] * q[2], determinant)
        b, other_rest = divmod(p[0] * q[2] - p[2] * q[0], determinant)
        if not rest and not other_rest and all(a * x + b * z == y for x, z, y in rows):
            return Form(((one, a), (other, b)), ys[0] - a * columns[one][0] - b * columns[other][0])
    return None


@dataclass(frozen=True)
class Outcome:
    """What is wanted of a comparison of a form with a number.

    Args:
        signs: of `form - level` that are allowed: -1, 0, 1.
    """

    form: Form
    level: int
    signs: frozenset[int] = frozenset((-1, 0, 1))

    def distance(self, counts: Counts) -> Ints:
        """Return the values of `form - level`."""
        return self.form(counts) - self.level

    def holds(self, counts: Counts) -> Bools:
        """Return where the sign is allowed."""
        signs = np.sign(self.distance(counts))
        ok = np.zeros(signs.shape, bool)
        for sign in self.signs:
            ok |= signs == sign
        return ok


def nearest(target: Outcome, others: Sequence[Outcome], near: Steps, ranges: Sequence[range]) -> list[Steps]:
    """Counts at which a comparison has each of its outcomes, nearest to where it changes, and others keep theirs.

    Args:
        near: counts that are kept of the dimensions that need not change.
        ranges: of the counts that are allowed.

    Returns:
        those before the change, at it, and behind it; if it depends on several sizes, at it also the sizes that are
        most alike. Nothing if the outcome never changes.
    """
    counts = _allowed([target, *others], near, ranges)
    distance, work = target.distance(counts), counts.astype(np.float64).prod(0)
    changed = (counts != np.array(near)[:, None]).sum(0)
    found = list[int]()
    for side in (distance < 0, distance == 0, distance > 0):
        mine = np.flatnonzero(side)
        if mine.size == len(distance):
            return []
        if mine.size:
            apart = np.abs(distance[mine])
            closest = mine[apart == apart.min()]
            found.append(int(closest[np.lexsort((work[closest], changed[closest]))[0]]))
            if not apart.any() and len(target.form.dimensions) > 1:
                found.append(int(mine[np.argmin(counts[:, mine].max(0) / counts[:, mine].min(0))]))
    return [*dict.fromkeys((int(m), int(n), int(k)) for m, n, k in counts[:, found].T)]


def satisfying(others: Sequence[Outcome], near: Steps, ranges: Sequence[range], most: int) -> list[Steps]:
    """Counts at which comparisons have their outcomes, from the least product of them to the largest."""
    counts = _allowed(others, near, ranges)
    order = np.argsort(counts.astype(np.float64).prod(0), kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, most).astype(int))] if len(order) else order
    return [(int(m), int(n), int(k)) for m, n, k in counts[:, chosen].T]


def _allowed(every: Sequence[Outcome], near: Steps, ranges: Sequence[range]) -> Ints:
    """The counts among the candidates at which each comparison has an outcome that it may have.

    Candidates are of one dimension all that are likely, and of another the roots.
    """
    joined = sorted(frozenset[int]().union(*(one.form.dimensions for one in every)))
    likely = [_likely(d, every, near, ranges[d]) if d in joined else np.array([near[d]]) for d in range(3)]
    if len(joined) == 1:
        return _met(likely, every, ranges)
    remainders = any(one.form.divisor and len(one.form.dimensions) > 1 for one in every)
    found = [np.empty((3, 0), np.int64)]
    for e, d in itertools.permutations(joined, 2):
        (f,) = {0, 1, 2} - {e, d}
        for third in likely[f][:_MOST_BESIDE]:
            counts: list[_Count] = [int(third)] * 3
            counts[e] = likely[e][:, None]
            there = [likely[e][:, None] * 0 + likely[d][:_MOST_BESIDE]]
            for one in every:
                if d in one.form.dimensions and not one.form.divisor:
                    slope, constant = one.form.along(d, counts)
                    roots = (one.level - constant) // np.where(slope == 0, 1, slope) + _BESIDE_ROOT
                    there.append(np.broadcast_to(roots, (len(likely[e]), len(_BESIDE_ROOT))))
            counts[d] = np.concatenate(there, axis=1)
            found.append(_met(counts, every, ranges))
            if remainders:
                counts[e], counts[d] = likely[e][:_MOST_DIVIDENDS, None], likely[d][:_PERIOD]
                found.append(_met(counts, every, ranges))
    return np.concatenate(found, axis=1)


def _met(counts: Counts, every: Sequence[Outcome], ranges: Sequence[range]) -> Ints:
    """All combinations, as columns, that are allowed and at which each comparison has an outcome that it may have."""
    points = np.stack(np.broadcast_arrays(*counts)).reshape(3, -1)
    ok = np.ones(points.shape[1], bool)
    for d, allowed in enumerate(ranges):
        ok &= (points[d] >= allowed.start) & (points[d] < allowed.stop)
    for one in every:
        if len(one.signs) < 3:
            ok &= one.holds(points)
    return points[:, ok]


def _likely(d: int, every: Sequence[Outcome], near: Steps, allowed: range) -> Ints:
    """The counts of one dimension that conditions on it alone allow, nearest to their ends first."""
    alone = [one for one in every if one.form.dimensions == {d}]
    parts = [np.array([near[d]]), np.arange(_PERIOD) + allowed.start, 1 << np.arange(21)]
    for one in every:
        slope, constant = one.form.along(d, near)
        if one.form.dimensions == {d} and not one.form.divisor:
            parts.append((one.level - constant) // slope + np.arange(-_PERIOD, _PERIOD))
        elif d in one.form.dimensions and len(one.form.factors) == 1 and not one.form.divisor:
            parts.append(_divisors(abs((one.level - one.form.constant) // one.form.factors[0][1])))
    counts = np.unique(np.concatenate(parts))
    counts = counts[(counts >= allowed.start) & (counts < allowed.stop)]
    distance = np.zeros(counts.shape)
    for one in alone:
        point: list[_Count] = [*near]
        point[d] = counts
        met = one.holds(point)
        counts, distance = counts[met], distance[met] + np.abs(one.distance(point)[met])
    return counts[np.argsort(distance, kind="stable")]


@lru_cache(maxsize=256)
def _divisors(number: int) -> Ints:
    """Those below 2²¹."""
    low = np.arange(1, min(math.isqrt(number), 1 << 21) + 1)
    low = low[number % low == 0]
    both = np.concatenate((low, number // low))
    return both[both < 1 << 21]
