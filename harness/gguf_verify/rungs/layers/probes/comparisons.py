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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from ....kernels.comparisons import Compared, Comparison, Operands
from ....kernels.domain import Domain
from ...plan import near
from .along import LARGEST, Line, Shape
from .forms import Form, Outcome, Steps, fitted, is_whole, nearest, satisfying
from .signals import Signal, signals_of

#: The comparisons of a call of a shape; None if it cannot be made.
Observe = Callable[[Shape], Compared | None]

#: Lines between comparisons that may be parts of one condition.
_BESIDE = 1
#: Times that a form is fitted anew where it predicted another value; further values of one that few shapes showed.
_TRIES, _FEW_VALUES = 4, 6
#: Values without a form after which none is expected.
_ENOUGH = 32
#: The shape of the first base, in units of K.
_BASE = (3, 33, 2)
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


#: Of thread blocks, which cost the same at every size; of whole calls.
OF_BLOCKS = Effort(500, 20, 60, _OFFSETS)
OF_CALLS = Effort(1000, 40, 24, (0, 1, 6, 29, 617, 3137))
#: Of thread blocks with data of their own.
OF_DATA = Effort(160, 4, 8, (0, 1, 6, 29, 617, 3137))


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


def boundaries(
    domain: Domain, unit: int, observe: Observe, effort: Effort = OF_BLOCKS, start: Shape | None = None,
    known: Collection[Comparison] = (),
) -> list[Boundary]:  # fmt: skip
    """The shapes at which comparisons change their outcome, by their rank.

    Args:
        domain: of the kernel; no shape is outside, and none is observed there.
        unit: K is a multiple of this.
        start: a shape of the domain at which the search begins; None: a small one.
        known: comparisons that are not solved.
    """
    search = _Search(domain, unit, observe, effort, frozenset(known))
    first = start or search.first()
    found = {} if first is None else dict.fromkeys(search.boundaries(first))
    return sorted(found, key=lambda boundary: boundary.rank)


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
    known: frozenset[Comparison]
    _observed: dict[Shape, Compared | None] = field(default_factory=dict)
    #: The operands of a comparison wherever it was observed; its signals by their number; forms, and that number.
    _made: dict[Comparison, dict[Shape, Operands]] = field(default_factory=lambda: defaultdict(dict))
    _signals: dict[tuple[Comparison, int], list[Signal]] = field(default_factory=dict)
    _forms: dict[tuple[Comparison, Signal], tuple[int, Form | None]] = field(default_factory=dict)

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
        extents = zip((self.domain.m, self.domain.n, self.domain.k), self.steps, LARGEST, strict=True)
        return tuple(
            range(max(1, -(-one.least // step)), min(one.most or most, most) // step + 1) for one, step, most in extents
        )

    def boundaries(self, first: Shape) -> Iterator[Boundary]:
        """Those of the comparisons at a shape, and of those that show at the shapes found."""
        waiting, seen, bases = deque[tuple[Shape, Comparison]](), {*self.known}, 0
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
        lines = [Line(self, base, d, comparison, self.effort.offsets) for d in range(3)] if not kept else []
        others = self.outcomes(base, comparison, kept)
        if others and len({(one.a, one.b) for one in self._made[comparison].values()}) < _FEW_VALUES:
            for counts in satisfying(others, self.count(base), self.ranges, _FEW_VALUES):
                self.at(self.shape(counts))
        without_form = False
        for signal in self.signals(comparison):
            form, shapes = self.solved(base, comparison, signal, kept)
            without_form |= form is None and not comparison.to_float  # of data, no size takes it to its limit
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
        self, base: Shape, comparison: Comparison, signal: Signal, kept: tuple[Comparison, ...]
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

    def larger(self, base: Shape, comparison: Comparison, signal: Signal, form: Form) -> Iterator[Shape]:
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

    def signals(self, comparison: Comparison) -> list[Signal]:
        """The numbers that change its outcome, each once."""
        key = comparison, len(self._made[comparison])
        if key not in self._signals:
            changing = signals_of([*self._made[comparison].values()])
            self._signals[key] = [
                one for one in changing if not (one.of_range and self._is_no_range_test(comparison, one))
            ]
        return self._signals[key]

    def _is_no_range_test(self, comparison: Comparison, signal: Signal) -> bool:
        form = None if comparison.converts else self.form(comparison, signal)
        return comparison.converts or (form is not None and form.divisor != 0)

    def form(self, comparison: Comparison, signal: Signal) -> Form | None:
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
