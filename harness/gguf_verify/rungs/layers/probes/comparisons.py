"""Shapes at which the comparisons in a kernel's code change their outcome.

A fixed plan may miss a branch such as `if (M >= 1500 && M < 1600)` or `if (N % 192 == 64)`. But the operands of its
comparisons can be observed at any size. So each is solved: by its form if a few values show one (`forms`), else along
each dimension, by its slope and by bisection where the sign changes. This is search-based testing with the branch
distance a - b (Korel, Automated Software Test Data Generation, IEEE TSE 16, 1990) on traced comparisons (Aschermann et
al., REDQUEEN, NDSS 2019).

A comparison that is only made behind others is solved together with them: their outcomes stay those with which it was
made. So are comparisons of one condition, of which each is made anywhere (`(N == 768) & (K == 2048)`).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise

import numpy as np

from ....kernels.comparisons import Compared, Comparison, Operands
from ....kernels.domain import Domain
from ...plan import near
from .forms import Form, Outcome, Steps, fitted, is_whole, nearest, satisfying

Shape = tuple[int, int, int]
#: The comparisons of a call of a shape; None if it cannot be made.
Observe = Callable[[Shape], Compared | None]

#: Lines between comparisons that may be parts of one condition.
_BESIDE = 1
#: Times that a form is fitted anew where it predicted another value; further values of one that few shapes showed.
_TRIES, _FEW_VALUES = 4, 6
#: Values without a form after which none is expected.
_ENOUGH = 32
#: Counts over which a period is searched where no form is found: sizes of tiles that kernels have first.
_PERIOD = 256
_TILES = tuple(tile << i for tile in (1, 3) for i in range(9) if tile << i <= _PERIOD)
#: The shape of the first base (in units of K), and the largest sizes that are observed.
_BASE, _LARGEST = (3, 33, 2), (1 << 21, 1 << 21, 1 << 16)
#: Sizes of real products, at which the code behind a comparison also runs.
_LARGER = (67, 389, 1280)
#: Steps from a base at which the operands are observed first: with many remainders.
_OFFSETS = (0, 1, 6, 29, 131, 617, 3137, 15_641, 78_137, 390_647)


@dataclass(frozen=True)
class Effort:
    """Limits of the search.

    Args:
        observed: calls.
        bases: shapes from which comparisons that are only made there are solved.
        together: comparisons that are solved anew together with others.
        offsets: steps from a base at which the operands are observed first.
    """

    observed: int
    bases: int
    together: int
    offsets: tuple[int, ...]


#: Of thread blocks, which cost the same at every size; and of whole calls.
OF_BLOCKS = Effort(500, 20, 60, _OFFSETS)
OF_CALLS = Effort(1000, 40, 24, (0, 1, 6, 29, 617, 3137))


@dataclass(frozen=True)
class Boundary:
    """Shapes on both sides of a change of a comparison's outcome, and at it.

    Args:
        place: FILE:LINE of the comparison.
        uniform: all threads compare the same two values: the shape alone decides.
        further: others, with which it may be one condition, keep their outcomes there; or other sizes are larger.
        shapes: the last one before the change first.
    """

    place: str
    uniform: bool
    further: bool
    shapes: tuple[Shape, ...]

    @property
    def rank(self) -> tuple[bool, bool]:
        """Those come first that the shape alone decides, and the further ones last."""
        return self.further, not self.uniform


def boundaries(domain: Domain, unit: int, observe: Observe, effort: Effort = OF_BLOCKS) -> list[Boundary]:
    """The shapes at which comparisons change their outcome, by their rank.

    Args:
        domain: of the kernel; no shape is outside, and none is observed there.
        unit: K is a multiple of this.
    """
    search = _Search(domain, unit, observe, effort)
    first = search.first()
    found = {} if first is None else dict.fromkeys(search.boundaries(first))
    return sorted(found, key=lambda boundary: boundary.rank)


@dataclass(frozen=True)
class _Signal:
    """A number that a comparison's outcome depends on: it changes where this is `level`.

    Args:
        name: the field of `Operands`.
        end: 0 for the smallest value among the threads, 1 for the largest.
        of_range: 0 is a level because the comparison may be a range test.
    """

    name: str
    end: int
    level: float = 0
    of_range: bool = False

    def of(self, operands: Operands) -> float:
        return float(getattr(operands, self.name)[self.end])

    def sign(self, operands: Operands) -> int:
        """-1 below the level, 1 above it."""
        value = self.of(operands)
        return (value > self.level) - (value < self.level)


def _signals(operands: Sequence[Operands]) -> list[_Signal]:
    """The numbers that change along operands, each once: one of them if the other is constant, else a - b."""
    found: dict[tuple[float, ...], _Signal] = {}
    for end in (1, 0):
        for name, other in (("a", "b"), ("b", "a")):
            level, *others = {e for one in operands for e in getattr(one, other)}
            if not others:
                # a range test, C > x - D without a sign, changes at x = D and at x = C + D
                for signal in (_Signal(name, end, level), _Signal(name, end, 0, of_range=True)):
                    found.setdefault((*map(signal.of, operands), signal.level), signal)
                break
        else:
            signal = _Signal("apart", end)
            found.setdefault((*map(signal.of, operands), 0), signal)
    return [signal for (*values, _), signal in found.items() if len({*values}) > 1]


@dataclass(frozen=True)
class _Together:
    """A comparison that is solved anew while others keep their outcomes.

    Args:
        apart: lines between them.
        signs: of the others' a - b.
    """

    apart: int
    comparison: Comparison
    kept: tuple[Comparison, ...]
    signs: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, int, bool]:
        """Those of one line first, then those of few comparisons, then those where the others are equal."""
        return self.apart, len(self.kept), any(self.signs)


@dataclass
class _Search:
    domain: Domain
    unit: int
    observe: Observe
    effort: Effort
    _observed: dict[Shape, Compared | None] = field(default_factory=dict)
    #: The operands of a comparison wherever it was observed; its signals by their number; forms, and that number.
    _made: dict[Comparison, dict[Shape, Operands]] = field(default_factory=lambda: defaultdict(dict))
    _signals: dict[tuple[Comparison, int], list[_Signal]] = field(default_factory=dict)
    _forms: dict[tuple[Comparison, _Signal], tuple[int, Form | None]] = field(default_factory=dict)

    def at(self, shape: Shape) -> Compared | None:
        if shape not in self._observed:
            if len(self._observed) >= self.effort.observed:
                return None
            self._observed[shape] = self.observe(shape)
            for comparison, operands in (self._observed[shape] or {}).items():
                self._made[comparison][shape] = operands
        return self._observed[shape]

    def first(self) -> Shape | None:
        m, n, units = _BASE
        sizes = tuple(self.near(d, size) for d, size in enumerate((m, n, units * self.unit)))
        return None if None in sizes else sizes  # type: ignore[return-value]

    def near(self, d: int, size: int) -> int | None:
        """The next size of a dimension that is allowed."""
        extent = (self.domain.m, self.domain.n, self.domain.k)[d]
        return near(extent, size, self.unit if d == 2 else 1)

    @cached_property
    def steps(self) -> Shape:
        """The differences of allowed sizes."""
        return self.domain.m.multiple, self.domain.n.multiple, math.lcm(self.domain.k.multiple, self.unit)

    @cached_property
    def ranges(self) -> tuple[range, ...]:
        """The allowed sizes, counted in steps."""
        extents = zip((self.domain.m, self.domain.n, self.domain.k), self.steps, _LARGEST, strict=True)
        return tuple(
            range(max(1, -(-one.least // step)), min(one.most or most, most) // step + 1) for one, step, most in extents
        )

    def boundaries(self, first: Shape) -> Iterator[Boundary]:
        """Those of the comparisons at a shape, and of those that show at the shapes found."""
        waiting, seen, bases = deque[tuple[Shape, Comparison]](), set[Comparison](), 0
        together, tried = dict[_Together, Shape](), set[_Together]()
        shapes: list[tuple[Shape, tuple[Comparison, ...]]] = [(first, ())]
        while shapes or waiting or together:
            for shape, kept in shapes:
                here = self.at(shape) or {}
                new = [one for one in here if one not in seen]
                if new and bases < self.effort.bases:
                    bases += 1
                    seen |= {*new}
                    waiting += [(shape, one) for one in new]
                for one in here if all(other in here for other in kept) and kept else ():
                    apart = _lines_between((one, *kept)) if here[one].uniform and one not in kept else None
                    if apart is not None and apart <= _BESIDE:
                        key = _Together(apart, one, kept, tuple(here[other].sign for other in kept))
                        together.setdefault(key, shape)
            shapes, kept = [], ()
            if waiting:
                base, comparison = waiting.popleft()
            elif together and len(tried) < self.effort.together:
                key = min(together, key=lambda one: one.rank)
                base, comparison, kept = together.pop(key), key.comparison, key.kept
                if key in tried:
                    continue
                tried.add(key)
            else:
                return
            for boundary in self.around(base, comparison, kept):
                yield boundary
                shapes += [(one, (*kept, comparison) if boundary.uniform else ()) for one in boundary.shapes]

    def around(self, base: Shape, comparison: Comparison, kept: tuple[Comparison, ...]) -> Iterator[Boundary]:
        """The boundaries of a comparison: by its form, else from a base along each dimension.

        Args:
            kept: comparisons whose outcomes stay those at the base.
        """
        lines = [_Line(self, base, d, comparison) for d in range(3)] if not kept else []
        others = self.outcomes(base, comparison, kept)
        if others and len({(one.a, one.b) for one in self._made[comparison].values()}) < _FEW_VALUES:
            for counts in satisfying(others, self.count(base), self.ranges, _FEW_VALUES):
                self.at(self.shape(counts))
        without_form = False
        for signal in self.signals(comparison):
            form, shapes = self.solved(base, comparison, signal, kept)
            without_form |= form is None
            uniform = all(one.uniform for one in self._made[comparison].values())
            if shapes:
                yield Boundary(comparison.place, uniform, bool(kept), shapes)
            if uniform and shapes and not kept and form is not None:
                yield Boundary(comparison.place, True, True, tuple(self.larger(base, comparison, signal, form)))
        for line in lines if without_form else ():
            for signal in line.signals():
                for crossing in line.crossings(signal):
                    yield Boundary(comparison.place, line.uniform(crossing), False, line.beside(crossing))

    def solved(
        self, base: Shape, comparison: Comparison, signal: _Signal, kept: tuple[Comparison, ...]
    ) -> tuple[Form | None, tuple[Shape, ...]]:  # fmt: skip
        """The form of a signal and the shapes at which the outcome changes: what they show improves both."""
        shapes, tried, known = tuple[Shape, ...](), dict[Shape, None](), None
        for _ in range(_TRIES):
            form, others = self.form(comparison, signal), self.outcomes(base, comparison, kept)
            if form is None or (form, others) == known:
                break
            known = form, others
            target, near = Outcome(form, int(signal.level)), self.count(base)
            found = nearest(target, others, near, self.ranges)
            further = list[Steps]()
            if form.divisor and not any(target.distance(counts) == 0 for counts in found):
                # it may be a multiple of the true divisor
                further = satisfying((target, *others), near, self.ranges, _FEW_VALUES)
            shapes = tuple(map(self.shape, found))
            tried |= dict.fromkeys(shapes)
            for shape in (*shapes, *map(self.shape, further)):
                self.at(shape)
        # a call that failed there shows nothing, and is the more of interest
        tried = {shape: None for shape in tried if shape not in self._made[comparison] or shape in shapes}
        return form, () if form is None else tuple(tried)

    def larger(self, base: Shape, comparison: Comparison, signal: _Signal, form: Form) -> Iterator[Shape]:
        """Shapes with another outcome than at a base, whose other sizes are larger: it may only matter there."""
        target, others = Outcome(form, int(signal.level)), self.outcomes(base, comparison, ())
        sizes = [self.near(d, size) for d, size in enumerate(_LARGER)]
        near = self.count(tuple(size or of for size, of in zip(sizes, base, strict=True)))  # type: ignore[arg-type]
        for counts in nearest(target, others, near, self.ranges):
            if np.sign(target.distance(counts)) != np.sign(target.distance(self.count(base))):
                yield self.shape(counts)

    def count(self, shape: Shape) -> Steps:
        m, n, k = (size // step for size, step in zip(shape, self.steps, strict=True))
        return m, n, k

    def shape(self, counts: Steps) -> Shape:
        m, n, k = (count * step for count, step in zip(counts, self.steps, strict=True))
        return m, n, k

    def signals(self, comparison: Comparison) -> list[_Signal]:
        """The numbers that change its outcome, each once."""
        key = comparison, len(self._made[comparison])
        if key not in self._signals:
            changing = _signals([*self._made[comparison].values()])
            self._signals[key] = [
                one for one in changing if not (one.of_range and (form := self.form(comparison, one)) and form.divisor)
            ]
        return self._signals[key]

    def form(self, comparison: Comparison, signal: _Signal) -> Form | None:
        made = self._made[comparison]
        known, form = self._forms.get((comparison, signal), (0, None))
        new = [(self.count(shape), signal.of(operands)) for shape, operands in islice(made.items(), known, None)]
        if (form is None and known < _ENOUGH) or (form is not None and not all(form(at) == value for at, value in new)):
            every = ((self.count(shape), signal.of(operands)) for shape, operands in made.items())
            form = fitted([*every], self.steps) if is_whole(signal.level) else None
        self._forms[comparison, signal] = len(made), form
        return form

    def outcomes(self, base: Shape, comparison: Comparison, kept: tuple[Comparison, ...]) -> list[Outcome]:
        """The outcomes of a few others that explain where a comparison is made; of `kept`, those at a base."""
        here = self._made[comparison]
        elsewhere = {shape: at for shape, at in self._observed.items() if at and shape not in here}
        found, possible = list[Outcome](), list[tuple[set[Shape], Outcome]]()
        for other, operands in (self.at(base) or {}).items():
            made = self._made[other]
            guards = bool(elsewhere) and here.keys() <= made.keys()
            if other == comparison or not operands.uniform or not (other in kept or guards):
                continue
            for signal in self.signals(other):
                if (form := self.form(other, signal)) is None:
                    continue
                signs = frozenset(signal.sign(made[shape]) for shape in ([base] if other in kept else here))
                outcome = Outcome(form, int(signal.level), signs)
                if other in kept:
                    found.append(outcome)
                else:
                    without = {at for at in elsewhere if at in made and signal.sign(made[at]) not in signs}
                    possible.append((without, outcome))
        while possible:
            without, outcome = max(possible, key=lambda one: len(one[0]))
            if not without:
                break
            found.append(outcome)
            possible = [(others - without, one) for others, one in possible]
        return found


def _lines_between(comparisons: Collection[Comparison]) -> int | None:
    """The lines from the first comparison to the last one, in one file or expression; None if there are several."""
    if len({one.place for one in comparisons}) == 1:
        return 0
    places = [one.place.rpartition(":") for one in comparisons]
    if len({file for file, _, _ in places}) > 1 or not all(line.isdecimal() for _, _, line in places):
        return None
    lines = [int(line) for _, _, line in places]
    return max(lines) - min(lines)


@dataclass
class _Line:
    """The operands of a comparison along one dimension."""

    search: _Search
    base: Shape
    dimension: int
    comparison: Comparison

    def __post_init__(self) -> None:
        self.start, self.step = self.base[self.dimension], self.search.steps[self.dimension]
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

    def crossing(self, signal: _Signal) -> int | None:
        points = [(size, self.value(signal, size) or 0.0) for size in self.sizes]
        for (low, before), (high, after) in pairwise(points):
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
        steps = {self.search.steps[self.dimension], self.step}
        sizes = sorted({size, *(size + step * way for step in steps for way in (-1, 1) if size + step * way > 0)})
        return tuple(self.shape(one) for one in sizes if self.search.near(self.dimension, one) == one)
