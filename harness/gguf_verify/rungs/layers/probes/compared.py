"""Probes at the shapes and with the data that a kernel's code compares with: its comparisons are observed in single
thread blocks, or in whole calls of a kernel in Python. Those in the declaration of its launches count too."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import CodeNumber, Compared, Comparison, Operands, in_words
from ....kernels.interface import Kernel
from ....kernels.launches import Launched, Needs, SparseProduct
from ....support.errors import EnvironmentFault, KernelFault
from ...plan import Probe, near
from ...run import Run
from ...thread_blocks import dependence, too_many
from .compared_data import data_probes
from .comparisons import OF_BLOCKS, OF_CALLS, Boundary, Shape, boundaries
from .huge import HugeProbes

#: Probes of one type of weights, and of those the ones at numbers of the code that no comparison showed; multiply-adds
#: of one whose outputs are all judged, and of all of these together.
_MOST, _MOST_GUESSED, _MOST_WORK, _MOST_TOGETHER = 60, 40, 1 << 24, 1 << 27
#: The same of a kernel in Python, where a call that was observed to end soon may be larger.
_MOST_SEEN, _MOST_WORK_UNSEEN, _MOST_WORK_SEEN, _MOST_TOGETHER_SEEN = 100, 1 << 22, 1 << 28, 1 << 30
#: Seconds of observed calls together.
_MOST_SECONDS = 120.0
#: Seconds in which a call ends soon. A call of a probe is made two or three times, within the kernel's time limit.
_SOON = 10.0
#: Boundaries among which none is preferred.
_FEW = 10
#: Outputs of a thread block that is observed.
_MOST_OUTPUTS = 1 << 16
#: Shapes, in units of K, at which data are searched for first, and then if they show comparisons on other lines; the
#: most of all shapes; and the units of a probe, of which one has the data.
_SHAPES, _MOST_SHAPES, _UNITS = ((3, 7, 1), (1, 33, 2), (16, 64, 2), (130, 130, 2)), 6, 2
#: Products that are observed in a search for data at one shape.
_MOST_OBSERVED: dict[str, int] = {"thread blocks": 3000, "calls": 700}
#: Integers in code below this are among the sizes of the plan.
_LEAST_SIZE = 34

_Needs = tuple[Needs, ...]


@dataclass(frozen=True)
class ComparedProbes:
    """The probes that follow from a kernel's comparisons.

    Args:
        probes: each with the thread blocks of earlier launches that one needs, if only single ones run because the
            product is large; else None.
        shapes: how many of them have a shape of their own; the others have data of their own.
        left: the number of further shapes.
        why_not: why comparisons cannot be observed, or None.
    """

    probes: tuple[tuple[Probe, _Needs | None], ...] = ()
    shapes: int = 0
    left: int = 0
    why_not: str | None = None


def compared_probes(run: Run, fmt: WeightFormat, huge: HugeProbes, planned: Collection[Shape]) -> ComparedProbes:
    """The probes of one type of weights.

    Args:
        huge: makes the operands of any size.
        planned: (M, N, K) that are tried anyway.
    """
    kernel = run.kernel.of(fmt, 1, 1, huge.unit)
    observed = _Observed(run, fmt, huge)
    domain, unit = run.kernel.domain, huge.unit
    found = boundaries(domain, unit, observed, OF_CALLS if kernel.compares == "calls" else OF_BLOCKS)
    numbers = [number for number in kernel.numbers if _may_be_size(number) and number.value not in observed.values]
    guessed = boundaries(domain, unit, lambda shape: _as_sizes(numbers, shape))
    shapes = {shape: place for shape, place in _shapes(_preferred(run, found)) if shape not in planned}
    first = dict(itertools.islice(shapes.items(), _MOST_SEEN if kernel.compares == "calls" else _MOST))
    also = {shape: place for shape, place in _shapes(guessed) if shape not in planned and shape not in shapes}
    wanted = {**first, **dict(itertools.islice(also.items(), _MOST_GUESSED))}
    probes = [*_probes(run, kernel, wanted, observed)]
    left = len(shapes) - sum((probe.tokens[0], probe.n, probe.k) in shapes for probe, _ in probes)
    whole = [(probe.tokens[0], probe.n, probe.k) for probe, alone in probes if alone is None]
    with_data = [*_with_data(run, fmt, observed, whole)]
    why_not = None
    if kernel.compares == "thread blocks":
        why_not = observed.needs if isinstance(observed.needs, str) else None
        if not observed.any_in_code and observed.fault:
            why_not = why_not or observed.fault
    if observed.seconds > _MOST_SECONDS:
        why_not = f"its calls took {_MOST_SECONDS:.0f} s before all comparisons were observed"
    return ComparedProbes((*probes, *((probe, None) for probe in with_data)), len(probes), left, why_not)


def _with_data(run: Run, fmt: WeightFormat, observed: _Observed, found: list[Shape]) -> Iterator[Probe]:
    """The probes with data of their own. `found`: shapes that comparisons ask for."""
    compares = run.kernel.of(fmt, 1, 1, observed.huge.unit).compares
    if compares not in _MOST_OBSERVED or isinstance(observed.needs, str):
        return
    huge, done, domain = observed.huge, set[str](), run.kernel.domain
    for shape, product in _bases(run, fmt, observed, found):
        wide, words = near(domain.k, _UNITS * huge.unit, huge.unit), partial(in_words, texts=run.kernel.texts)
        observe = partial(observed, shape)
        most = _MOST_OBSERVED[compares]
        probes = data_probes(run.semantics(fmt), product, max(product.k, wide or 0), observe, words, most, done)
        yield from (replace(p, n=near(domain.n, p.n) or product.n) for p in probes)
        done |= {probe.because for probe in probes}


def _bases(
    run: Run, fmt: WeightFormat, observed: _Observed, found: list[Shape]
) -> Iterator[tuple[Shape, SparseProduct]]:  # fmt: skip
    """The shapes at which data are searched for, with ordinary products."""
    domain, unit, known, bases = run.kernel.domain, observed.huge.unit, set[str](), 0
    for m, n, k in itertools.chain(((m, n, units * unit) for m, n, units in _SHAPES), found):
        near_m, near_n, near_k = near(domain.m, m), near(domain.n, n), near(domain.k, k, unit)
        if near_m is None or near_n is None or near_k is None or bases >= _MOST_SHAPES:
            continue
        shape = near_m, near_n, near_k
        product = observed.huge.sparse(run.kernel.of(fmt, *shape), shape, observed.needs)  # type: ignore[arg-type]
        lines = {comparison.place for comparison in observed(shape, product) or ()}
        if lines - known:
            known |= lines
            bases += 1
            yield shape, product


def _shapes(found: Collection[Boundary]) -> Iterator[tuple[Shape, str]]:
    """The shapes of boundaries, each once, with the place of the first comparison that has it."""
    seen = set[Shape]()
    for boundary in found:
        for shape in boundary.shapes:
            if shape not in seen:
                seen.add(shape)
                yield shape, boundary.place


def _preferred(run: Run, found: Collection[Boundary]) -> list[Boundary]:
    """The boundaries of each place in turn, by their rank; last those whose line has a branch that was taken both
    ways."""
    taken = set[str]()
    execution = run.kernel.executed() if len(found) > _FEW else None
    for file, executed in () if execution is None else execution.files.items():
        open_lines = {line for (line, _), ways in executed.branches.items() if not all(ways)}
        taken |= {f"{file}:{line}" for line, _ in executed.branches if line not in open_lines}
    turns, ranks = Counter[str](), list[tuple[bool, tuple[bool, bool], int]]()
    for boundary in found:
        ranks.append((boundary.place in taken, boundary.rank, turns[boundary.place]))
        turns[boundary.place] += 1
    return [boundary for _, boundary in sorted(zip(ranks, found, strict=True), key=lambda one: one[0])]


def _probes(
    run: Run, kernel: Kernel, shapes: dict[Shape, str], observed: _Observed
) -> Iterator[tuple[Probe, _Needs | None]]:  # fmt: skip
    """The probes of shapes that can be run, whole or in single thread blocks."""
    calls = kernel.compares == "calls"
    left, whole = _MOST_TOGETHER_SEEN if calls else _MOST_TOGETHER, set[Shape]()
    for shape in sorted(shapes, key=math.prod):
        if calls and math.prod(shape) > _MOST_WORK_UNSEEN and shape not in observed.ended:
            observed(shape)
        most = _MOST_WORK if not calls else _MOST_WORK_SEEN if shape in observed.ended else _MOST_WORK_UNSEEN
        if (work := math.prod(shape)) <= min(most, left):
            left -= work
            whole.add(shape)
    for (m, n, k), place in shapes.items():
        probe = Probe((m,), n, k, because=in_words(place, run.kernel.texts))
        if (m, n, k) in whole:
            yield probe, None
        elif not calls and not isinstance(observed.needs, str):
            yield probe, observed.needs


@dataclass
class _Observed:
    """Observes the comparisons of products.

    Attributes:
        ended: the shapes of whole calls that ended soon.
        seconds: that whole calls took.
        values: that were compared.
        fault: the first of a call that was observed; "" if there is none.
        any_in_code: whether a call showed comparisons in the kernel's code.
    """

    run: Run
    fmt: WeightFormat
    huge: HugeProbes
    ended: set[Shape] = field(default_factory=set)
    seconds: float = 0.0
    values: set[float] = field(default_factory=set)
    fault: str = ""
    any_in_code: bool = False

    @cached_property
    def needs(self) -> _Needs | str:
        """The thread blocks of earlier launches that one needs; or why none can run by itself."""
        k = 2 * self.huge.unit
        kernel = self.run.kernel.of(self.fmt, 1, 1, k)
        if kernel.compares == "calls":
            return ()
        try:
            return dependence(kernel, self.fmt, k, lambda m, n, k: self.huge.sparse(kernel, (m, n, k)))
        except (KernelFault, EnvironmentFault) as error:
            return str(error)

    def __call__(self, shape: Shape, product: SparseProduct | None = None) -> Compared | None:
        """The comparisons of a product; of ordinary operands if it is None."""
        kernel = self.run.kernel.of(self.fmt, *shape)
        in_launches: Compared = {}
        try:
            in_launches = kernel.compared_in_launches(self.fmt, *shape)
            calls = kernel.compares == "calls"
            in_code = self._in_call(kernel, shape, product) if calls else self._in_blocks(kernel, shape, product)
        except (KernelFault, EnvironmentFault) as error:
            in_code = None
            self.fault = self.fault or str(error)
        self.any_in_code |= bool(in_code)
        found = {**(in_code or {}), **in_launches}
        self.values |= {
            end for operands in found.values() if operands.uniform for end in (operands.a[0], operands.b[0])
        }
        return found or None

    def _in_call(self, kernel: Kernel, shape: Shape, product: SparseProduct | None) -> Compared | None:
        if self.seconds > _MOST_SECONDS or self.run.budget.spent:
            return None
        begun = time.monotonic()
        try:
            found = kernel.compared(product or self.huge.sparse(kernel, shape), ())
        finally:
            took = time.monotonic() - begun
            self.seconds += took
        if took < _SOON:
            self.ended.add(shape)
        # the elements of arrays depend on data
        return found if product is not None else {one: of for one, of in (found or {}).items() if of.times == 1}

    def _in_blocks(self, kernel: Kernel, shape: Shape, product: SparseProduct | None) -> Compared | None:
        """Those of the first and the last thread block."""
        if kernel.compares == "launches":
            return None
        (m, n, _), needs, fmt = shape, self.needs, self.fmt
        if isinstance(needs, str):
            return None
        launched, earlier = kernel.only_launch(fmt, *shape), kernel.earlier(fmt, *shape)
        if not isinstance(launched, Launched) or launched.refused or m * n > _MOST_OUTPUTS * launched.blocks:
            return None
        if any(one.refused for one in earlier) or len(earlier) != len(needs) or too_many(earlier, needs):
            return None
        product = product or self.huge.sparse(kernel, shape, needs)
        return kernel.compared(product, sorted({0, launched.blocks - 1}))


def _may_be_size(number: CodeNumber) -> bool:
    """Whether the probe plan does not have it, and its neighbours, for other reasons."""
    return number.period > 1 or number.value >= _LEAST_SIZE


def _as_sizes(numbers: Collection[CodeNumber], shape: Shape) -> Compared:
    """Comparisons of each size with each number."""
    return {
        Comparison(number.place, 3 * i + d): Operands.of(size % number.period if number.period else size, number.value)
        for i, number in enumerate(numbers)
        for d, size in enumerate(shape)
    }
