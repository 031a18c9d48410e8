"""Shapes at which the comparisons in a kernel's code change their outcome.

A fixed plan may miss a branch such as `if (M >= 1500 && M < 1600)` or `if (N % 192 == 64)`. But the operands of its
comparisons can be observed at any size. So each is solved as an equation in one dimension: its zeros are found by its
slope, by bisection where the sign changes, and, for remainders, by a search over one period. This is search-based
testing with the branch distance a - b (Korel, Automated Software Test Data Generation, IEEE TSE 16, 1990) on traced
comparisons (Aschermann et al., REDQUEEN, NDSS 2019).

A comparison that is only made behind another one shows at the shapes that were found for that one: these are the bases
of the next search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ....kernels.comparisons import Compared, Comparison, Operands
from ....kernels.domain import Domain
from ...plan import near

Shape = tuple[int, int, int]
#: The comparisons of a call of a shape; None if it cannot be made.
Observe = Callable[[Shape], Compared | None]

#: Shapes from which comparisons beside are solved again; steps over which a period is searched.
_MOST_JOINT, _PERIOD = 8, 256
#: Lines between comparisons that may be parts of one condition.
_BESIDE = 1
#: Sizes of tiles that kernels have, and all steps of a period, these first.
_TILES = tuple(tile << i for tile in (1, 3) for i in range(9) if tile << i <= _PERIOD)
_STEPS = (*_TILES, *sorted({*range(1, _PERIOD)} - {*_TILES}))
#: The shape of the first base (in units of K), and the largest sizes that are observed.
_BASE, _LARGEST = (3, 33, 2), (1 << 21, 1 << 21, 1 << 16)
#: Steps from a base at which the operands are observed first.
_OFFSETS = (0, 1, 5, 25, 125, 625, 3125, 15_625, 78_125, 390_625)


@dataclass(frozen=True)
class Effort:
    """Limits of the search.

    Args:
        observed: calls.
        bases: shapes from which comparisons that are only made there are solved.
        offsets: steps from a base at which the operands are observed first.
        periods: steps in which a comparison is searched that is not made at a base's neighbour.
    """

    observed: int
    bases: int
    offsets: tuple[int, ...]
    periods: tuple[int, ...]


#: Of thread blocks, which cost the same at every size; and of whole calls.
OF_BLOCKS = Effort(500, 10, _OFFSETS, _STEPS)
OF_CALLS = Effort(1000, 40, (0, 1, 25, 625, 3125), _TILES)


@dataclass(frozen=True)
class Boundary:
    """Shapes on both sides of a change of a comparison's outcome, and at it.

    Args:
        place: FILE:LINE of the comparison.
        uniform: all threads compare the same two values: the shape alone decides.
        shapes: the last one before the change first.
    """

    place: str
    uniform: bool
    shapes: tuple[Shape, ...]


def boundaries(domain: Domain, unit: int, observe: Observe, effort: Effort = OF_BLOCKS) -> list[Boundary]:
    """The shapes at which comparisons change their outcome, those first that the shape alone decides.

    Args:
        domain: of the kernel; no shape is outside, and none is observed there.
        unit: K is a multiple of this.
    """
    search = _Search(domain, unit, observe, effort)
    first = search.first()
    bases, seen = [] if first is None else [first], set[Comparison]()
    found, solved = dict[Boundary, None](), list[tuple[Shape, Comparison]]()
    for base in bases:
        here = search.at(base) or {}
        new = [one for one in here if one not in seen]
        seen |= here.keys()
        for boundary, at, comparison in search.around(base, new):
            found[boundary] = None
            solved.append((at, comparison))
            for shape in boundary.shapes:
                if len(bases) < effort.bases and {*(search.at(shape) or {})} - seen - search.known(bases):
                    bases.append(shape)
    found |= dict.fromkeys(search.jointly(solved))
    return sorted(found, key=lambda boundary: not boundary.uniform)


@dataclass(frozen=True)
class _Signal:
    """A number that a comparison's outcome depends on: it changes where this is 0.

    Args:
        name: the field of `Operands`.
        end: 0 for the smallest value among the threads, 1 for the largest.
    """

    name: str
    end: int


@dataclass
class _Search:
    domain: Domain
    unit: int
    observe: Observe
    effort: Effort
    _observed: dict[Shape, Compared | None] = field(default_factory=dict)

    def at(self, shape: Shape) -> Compared | None:
        if shape not in self._observed:
            if len(self._observed) >= self.effort.observed:
                return None
            self._observed[shape] = self.observe(shape)
        return self._observed[shape]

    def known(self, bases: list[Shape]) -> set[Comparison]:
        return {one for base in bases for one in self.at(base) or {}}

    def first(self) -> Shape | None:
        m, n, units = _BASE
        sizes = tuple(self.near(d, size) for d, size in enumerate((m, n, units * self.unit)))
        return None if None in sizes else sizes  # type: ignore[return-value]

    def near(self, d: int, size: int) -> int | None:
        """The next size of a dimension that is allowed."""
        extent = (self.domain.m, self.domain.n, self.domain.k)[d]
        return near(extent, size, self.unit if d == 2 else 1)

    def step(self, d: int) -> int:
        extent = (self.domain.m, self.domain.n, self.domain.k)[d]
        return math.lcm(extent.multiple, self.unit) if d == 2 else extent.multiple

    def around(
        self, base: Shape, comparisons: list[Comparison]
    ) -> Iterator[tuple[Boundary, Shape, Comparison]]:  # fmt: skip
        """The boundaries of some comparisons along each dimension from a base, with the shape of each change."""
        for comparison in comparisons:
            for d in range(3):
                lines = [_Line(self, base, d, comparison)]
                for line in lines:
                    for signal in line.signals():
                        for crossing in line.crossings(signal):
                            boundary = Boundary(comparison.place, line.uniform(crossing), line.beside(crossing))
                            yield boundary, line.shape(crossing), comparison
                            if line is lines[0] and line.leaps(signal, crossing):
                                lines += [_Line(self, other, d, comparison) for other in self.least(base, d)]

    def least(self, base: Shape, d: int) -> Iterator[Shape]:
        """A base with the least size of each other dimension in turn: a product of sizes has the least slope there."""
        for e in {*range(3)} - {d}:
            size = self.near(e, 1)
            if size is not None and size != base[e]:
                m, n, k = (size if i == e else other for i, other in enumerate(base))
                yield m, n, k

    def jointly(self, solved: list[tuple[Shape, Comparison]]) -> Iterator[Boundary]:
        """The boundaries of comparisons beside one that is solved, from where it is: they may be one condition.

        Those on the same line come first.
        """
        tried = set[Shape]()
        for apart in range(_BESIDE + 1):
            waiting: list[tuple[Shape, tuple[Comparison, ...]]] = [(at, (one,)) for at, one in solved]
            for at, others in waiting:
                beside = [
                    one for one, operands in (self.at(at) or {}).items()
                    if operands.uniform and one not in others and _lines_between(one, others) == apart
                ]  # fmt: skip
                if not beside or at in tried or len(tried) >= _MOST_JOINT:
                    continue
                tried.add(at)
                for boundary, further, comparison in self.around(at, beside):
                    if boundary.uniform:
                        yield boundary
                        waiting.append((further, (*others, comparison)))


def _lines_between(one: Comparison, others: tuple[Comparison, ...]) -> int | None:
    """How many lines a comparison is from the farthest of others, in one file or expression."""
    if all(one.place == other.place for other in others):
        return 0
    places = [place.rpartition(":") for place in (one.place, *(other.place for other in others))]
    if len({file for file, _, _ in places}) > 1 or not all(line.isdecimal() for _, _, line in places):
        return None
    lines = [int(line) for _, _, line in places]
    return max(abs(lines[0] - line) for line in lines)


@dataclass
class _Line:
    """The operands of a comparison along one dimension."""

    search: _Search
    base: Shape
    dimension: int
    comparison: Comparison

    def __post_init__(self) -> None:
        self.start, self.step = self.base[self.dimension], self.search.step(self.dimension)
        # behind a remainder, the comparison is only made once in a period
        for steps in self.search.effort.periods:
            if self.operands(self.start + steps * self.step) is not None:
                self.step *= steps
                break
        sizes = (self.start + steps * self.step for steps in self.search.effort.offsets)
        self.sizes = [size for size in sizes if self.operands(size) is not None]

    def shape(self, size: int) -> Shape:
        m, n, k = (size if d == self.dimension else other for d, other in enumerate(self.base))
        return m, n, k

    def operands(self, size: int) -> Operands | None:
        if not 0 < size <= _LARGEST[self.dimension] or self.search.near(self.dimension, size) != size:
            return None
        return (self.search.at(self.shape(size)) or {}).get(self.comparison)

    def uniform(self, size: int) -> bool:
        operands = self.operands(size)
        return operands is not None and operands.uniform

    def value(self, signal: _Signal, size: int) -> float | None:
        operands = self.operands(size)
        return None if operands is None else float(getattr(operands, signal.name)[signal.end])

    def signals(self) -> list[_Signal]:
        """The signals that change along the line, each once."""
        seen = [operands for operands in map(self.operands, self.sizes) if operands is not None]
        found: dict[tuple[float, ...], _Signal] = {}
        for name, other in (("apart", ""), ("a", "b"), ("b", "a")):
            # a range test, C > x - D without a sign, changes at x = D and at x = C + D
            if other and len({end for operands in seen for end in getattr(operands, other)}) > 1:
                continue
            for end in (1, 0):
                values = tuple(getattr(operands, name)[end] for operands in seen)
                if len({*values}) > 1:
                    found.setdefault(values, _Signal(name, end))
        return list(found.values())

    def crossings(self, signal: _Signal) -> tuple[int, ...]:
        """The first size found at which the signal is 0 or has changed its sign; and where it ceases to be 0."""
        first = self.crossing(signal)
        if first is None or self.value(signal, first) != 0 or self.value(signal, first + self.step) != 0:
            return () if first is None else (first,)
        steps = 2
        while self.value(signal, first + steps * self.step) == 0:
            steps *= 2
        last, end = first + steps // 2 * self.step, first + steps * self.step
        if self.value(signal, end) is None:
            return (first,)
        while end - last > self.step:
            middle = last + (end - last) // (2 * self.step) * self.step
            last, end = (middle, end) if self.value(signal, middle) == 0 else (last, middle)
        return first, end

    def leaps(self, signal: _Signal, size: int) -> bool:
        """Whether the signal changes its sign at a size without being 0: `M * N == 25600` if N does not divide it."""
        there, before = self.value(signal, size), self.value(signal, size - self.step)
        return there is not None and before is not None and there * before < 0 and self.uniform(size)

    def crossing(self, signal: _Signal) -> int | None:
        points = [(size, self.value(signal, size) or 0.0) for size in self.sizes]
        for (low, before), (high, after) in itertools.pairwise(points):
            if before and before * after <= 0:
                return self.bisected(signal, low, high)
        (first, value), *others = points
        if value == 0:
            return first
        for size, other in (others[0], others[-1]):  # the local slope, and the slope of the whole
            slope = (other - value) / (size - first)
            if slope and (found := self.refined(signal, first, value, slope)) is not None:
                return found
        slopes = {(other - value) / (size - first) for size, other in others}
        remainder = signal.name == "apart" and len(slopes) > 1 and self.uniform(first)
        return self.scanned(signal, value) if remainder else None

    def refined(self, signal: _Signal, first: int, value: float, slope: float) -> int | None:
        """The size that the slope predicts, if the signal is 0 or of another sign there."""
        steps = round(-value / slope / self.step)
        there = first + steps * self.step
        after = self.value(signal, there)
        if after is None or steps == 0:
            return None
        return self.bisected(signal, min(first, there), max(first, there)) if after * value <= 0 else None

    def bisected(self, signal: _Signal, low: int, high: int) -> int:
        """The smallest size at which the signal has not the sign that it has at `low`, if it changes once."""
        before = self.value(signal, low) or 0.0
        while high - low > self.step:
            middle = low + (high - low) // (2 * self.step) * self.step
            there = self.value(signal, middle)
            if there is not None and there * before > 0:
                low = middle
            else:
                high = middle
        return high

    def scanned(self, signal: _Signal, value: float) -> int | None:
        """A size within a period with 0 or another sign: multiples of likely tiles first."""
        multiples = (-(-self.start // (tile * self.step)) * tile * self.step for tile in _TILES)
        for size in (*multiples, *(self.start + steps * self.step for steps in range(1, _PERIOD))):
            there = self.value(signal, size)
            if there is not None and there * value <= 0:
                return size
        return None

    def beside(self, size: int) -> tuple[Shape, ...]:
        """A size and its neighbours: in the domain, and among those at which the comparison is made."""
        steps = {self.search.step(self.dimension), self.step}
        sizes = sorted({size, *(size + step * way for step in steps for way in (-1, 1) if size + step * way > 0)})
        return tuple(self.shape(one) for one in sizes if self.search.near(self.dimension, one) == one)
