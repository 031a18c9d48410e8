"""Probes at the shapes and with the data that a kernel's code compares with."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ....formats.block import BlockFormat
from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import CodeNumber, Compared, Comparison, Operands, in_words
from ....kernels.launches import Needs
from ....support.text import counted
from ...plan import Blocks, Probe, near
from ...run import Run
from .along import Shape
from .borders import shape_in_words
from .call_counts import CallCount, counts_of_calls
from .comparisons import OF_BLOCKS, OF_CALLS, Boundary, boundaries
from .huge import HugeProbes
from .kept_probes import is_same, kept_probes
from .observing import Observed
from .together import Together

#: Probes of one type of weights, and of those the ones at numbers of the code that no comparison showed; multiply-adds
#: of one whose outputs are all judged, and of all of these together.
_MOST, _MOST_GUESSED, _MOST_WORK, _MOST_TOGETHER = 60, 40, 1 << 24, 1 << 27
#: The same of a kernel in Python, where a call that was observed may be larger.
_MOST_SEEN, _MOST_WORK_UNSEEN, _MOST_WORK_SEEN, _MOST_TOGETHER_SEEN = 100, 1 << 22, 1 << 28, 1 << 30
#: Tokens, rows and units of K of a product that is made often.
_OF_CALLS_SHAPE = (16, 64, 4)
#: Other sizes of products with numbers of the code as sizes, in units of K; multiply-adds of one with one number, and
#: with two, of which single thread blocks run; and numbers that are taken in pairs.
_OF_NUMBERS_SHAPE, _MOST_OF_NUMBER, _MOST_OF_TWO, _FEW_NUMBERS = (2, 5, 1), 1 << 22, 1 << 36, 16
#: Integers in code below this are among the sizes of the plan.
_LEAST_SIZE = 34

_Needs = tuple[Needs, ...]
#: A probe that is not run, and what it would need, in words.
_Dropped = tuple[Probe, str]


@dataclass(frozen=True)
class ComparedProbes:
    """The probes that follow from a kernel's comparisons.

    Args:
        probes: each with the thread blocks of earlier launches that one needs, if only single ones run because the
            product is large; else None.
        shapes: how many of them have a shape of their own; the others have data of their own.
        left: the number of further shapes.
        kept: how many of the last ones failed in an earlier run.
        far: comparisons with a number of calls that is not reached, in words.
        too_large: comparisons of which a probe cannot be run, in words, and what it would need.
        why_not: why comparisons cannot be observed, or None.
        observed: observes further calls.
    """

    probes: tuple[tuple[Probe, _Needs | None], ...] = ()
    shapes: int = 0
    left: int = 0
    kept: int = 0
    far: tuple[str, ...] = ()
    too_large: tuple[tuple[str, str], ...] = ()
    why_not: str | None = None
    observed: Observed | None = None

    @property
    def words(self) -> str:
        """What is tried, in words."""
        data = len({probe.data for probe, _ in self.probes} - {()})
        tried = [counted(self.shapes, "shapes")] if self.shapes else []
        tried += [f"{probe.calls} calls" for probe, _ in self.probes if probe.calls > 1]
        tried += [f"{counted(self.kept, 'probes')} kept from earlier runs"] if self.kept else []
        tried += [f"data of {counted(data, 'comparisons')}"] if data else []
        return " and ".join(filter(None, (", ".join(tried[:-1]), tried[-1]))) if tried else "nothing"


def compared_probes(
    run: Run, fmt: WeightFormat, huge: HugeProbes, planned: Collection[Shape], with_data: bool = True
) -> ComparedProbes:
    """The probes of one type of weights.

    Args:
        huge: makes the operands of any size.
        planned: (M, N, K) that are tried anyway.
        with_data: search for data, too.
    """
    kernel, domain, unit = run.kernel.of(fmt, 1, 1, huge.unit), run.kernel.domain, huge.unit
    observed = Observed(run, fmt, huge)
    counts = counts_of_calls(observed) if kernel.compares != "launches" else {}
    observed.unsteady |= counts.keys()
    found = boundaries(domain, unit, observed.sizes, OF_CALLS if observed.calls else OF_BLOCKS)
    unseen = kernel.numbers if observed.calls or not observed.any_in_code else ()
    numbers = [number for number in unseen if _may_be_size(number) and number.value not in observed.values]
    guessed = boundaries(domain, unit, lambda shape: _as_sizes(numbers, shape))
    shapes = {shape: place for shape, place in _shapes(_preferred(observed, found)) if shape not in planned}
    first = dict(itertools.islice(shapes.items(), _MOST_SEEN if observed.calls else _MOST))
    others = _shapes(guessed)
    if not observed.calls and observed.any_in_code:
        others = _exactly(observed, [number for number in kernel.numbers if number.value not in observed.values])
    also = {shape: place for shape, place in others if shape not in planned and shape not in shapes}
    wanted = {
        shape: in_words(place, run.kernel.texts)
        for shape, place in (*first.items(), *itertools.islice(also.items(), _MOST_GUESSED))
    }
    of_shapes = [Probe((m,), n, k, because=because) for (m, n, k), because in wanted.items()]
    probes, too_large = _possible(of_shapes, observed)
    left = len(shapes) - len(first)
    of_calls = _counted(run, fmt, unit, counts.values())
    of_data = [*Together(run, fmt, observed, found).probes([*wanted])] if with_data else []
    further, others_too_large = _possible([*of_calls, *of_data], observed)
    own = [*probes, *further]
    kept_before = kept_probes(run, fmt, unit) if with_data else []
    new = [probe for probe in kept_before if all(not is_same(probe, other) for other, _ in own)]
    kept, kept_too_large = _possible(new, observed)
    why_not = None
    if kernel.compares == "thread blocks":
        why_not = observed.needs if isinstance(observed.needs, str) else None
        if not observed.any_in_code and observed.fault:
            why_not = why_not or observed.fault
    far = tuple({in_words(count.place, run.kernel.texts): None for count in counts.values() if count.calls is None})
    dropped = tuple(_in_words([*too_large, *others_too_large, *kept_too_large]))
    return ComparedProbes(
        (*own, *kept), len(probes), left, len(kept), far, dropped, observed.ended or why_not, observed
    )


def _counted(run: Run, fmt: WeightFormat, unit: int, counts: Collection[CallCount]) -> Iterator[Probe]:
    """A product that is made so often that comparisons with the number of calls have each outcome."""
    (m, n, units), domain = _OF_CALLS_SHAPE, run.kernel.domain
    near_m, near_n, near_k = near(domain.m, m), near(domain.n, n), near(domain.k, units * unit, unit)
    reached = [count for count in counts if count.calls is not None]
    if reached and near_m is not None and near_n is not None and near_k is not None:
        most = max(reached, key=lambda count: count.calls or 0)
        places = dict.fromkeys(in_words(count.place, run.kernel.texts) for count in reached)
        blocks: Blocks = "any bits" if isinstance(fmt, BlockFormat) else "the model's"
        because = "; ".join(itertools.islice(places, 3))
        yield Probe((near_m,), near_n, near_k, blocks=blocks, because=because, calls=most.calls or 1)


def compared_again(
    run: Run, fmt: WeightFormat, huge: HugeProbes, shape: Shape
) -> tuple[tuple[Probe, _Needs | None], ...]:  # fmt: skip
    """The probe of a shape that an earlier run found; none where it is outside the domain."""
    (m, n, k), domain = shape, run.kernel.domain
    if not all(shape) or m not in domain.m or n not in domain.n or k not in domain.k or k % huge.unit:
        return ()
    observed, probe = Observed(run, fmt, huge), Probe((m,), n, k)
    return ((probe, None),) if observed.calls else tuple(_possible([probe], observed)[0])


def _shapes(found: Collection[Boundary]) -> Iterator[tuple[Shape, str]]:
    """The shapes of boundaries, each once, with the place of the first comparison that has it."""
    seen = set[Shape]()
    for boundary in found:
        for shape in boundary.shapes:
            if shape not in seen:
                seen.add(shape)
                yield shape, boundary.place


def _preferred(observed: Observed, found: Collection[Boundary]) -> list[Boundary]:
    """The boundaries of each place in turn, by their rank; last those of places where a small product shows several
    outcomes already."""
    first = min((shape for boundary in found for shape in boundary.shapes), key=math.prod, default=None)
    small = {} if first is None else observed.sizes(first) or {}
    both = {one.place for one, of in small.items() if of.several_outcomes}
    turns, ranks = Counter[str](), list[tuple[bool, tuple[bool, bool], int]]()
    for boundary in found:
        ranks.append((boundary.place in both, boundary.rank, turns[boundary.place]))
        turns[boundary.place] += 1
    return [boundary for _, boundary in sorted(zip(ranks, found, strict=True), key=lambda one: one[0])]


def _in_words(dropped: Collection[_Dropped]) -> Iterator[tuple[str, str]]:
    """Each comparison once, with the smallest product that it would need."""
    of_places: dict[str, list[_Dropped]] = {}
    for one in dropped:
        of_places.setdefault(one[0].because, []).append(one)
    for place, all_of in of_places.items():
        _, why = min(all_of, key=lambda one: _work(one[0]))
        more = f" (and {len(all_of) - 1} larger)" if len(all_of) > 1 else ""
        yield place, f"it needs {why}{more}"


def _possible(
    probes: Collection[Probe], observed: Observed
) -> tuple[list[tuple[Probe, _Needs | None]], list[_Dropped]]:  # fmt: skip
    """Those that can be run, whole or in single thread blocks, and the others: small products are whole first."""
    left, whole, dropped = _MOST_TOGETHER_SEEN if observed.calls else _MOST_TOGETHER, set[Probe](), list[_Dropped]()
    for probe in sorted(probes, key=_work):
        shape, cost, most = (probe.tokens[0], probe.n, probe.k), _work(probe), _MOST_WORK
        if observed.calls and cost > _MOST_WORK_UNSEEN:
            if shape not in observed.costs:
                observed(shape)
            seen = shape in observed.costs or cost > _MOST_WORK_SEEN
            most = _MOST_WORK_SEEN if seen else _MOST_WORK_UNSEEN
            cost = observed.costs.get(shape, cost)
        took = observed.slow.get(shape)
        if cost <= min(most, left) and took is None:
            left -= cost
            whole.add(probe)
        elif observed.calls or isinstance(observed.needs, str):
            limit = f"more than {most:,}" if cost > most else f"of which {left:,} are left"
            if cost > most and shape not in observed.costs and observed.ended is not None:
                limit += f", and its cost was not observed: {observed.ended}"
            why = f"{cost:,} multiply-adds, {limit}" if took is None else f"it took {took:.0f} s"
            dropped.append((probe, f"a call of {shape_in_words(shape)}: {why}"))
    found = list[tuple[Probe, _Needs | None]]()
    for probe in probes:
        if probe in whole:
            found.append((probe, None))
        elif not observed.calls and not isinstance(observed.needs, str):
            found.append((probe, observed.needs))
    return found, dropped


def _work(probe: Probe) -> int:
    """Multiply-adds."""
    return probe.tokens[0] * probe.n * probe.k


def _may_be_size(number: CodeNumber) -> bool:
    """Whether the probe plan does not have it, and its neighbours, for other reasons."""
    return number.period > 1 or number.value >= _LEAST_SIZE


def _exactly(observed: Observed, numbers: Sequence[CodeNumber]) -> Iterator[tuple[Shape, str]]:
    """Shapes with numbers of the code as sizes, two of one line together, and beside them: code that compares nothing,
    `acc += ((N ^ 771) - 1) >> 31`, has no operands that show them."""
    (m, n, units), unit, domain = _OF_NUMBERS_SHAPE, observed.huge.unit, observed.run.kernel.domain
    base, extents = (m, n, units * unit), (domain.m, domain.n, domain.k)
    alone = not isinstance(observed.needs, str)  # then single thread blocks of large products run

    def shape(sizes: dict[int, int]) -> Shape | None:
        at = [near(extents[d], sizes.get(d, base[d]), unit if d == 2 else 1) or 0 for d in range(3)]
        few = 0 < math.prod(at) <= (_MOST_OF_TWO if alone and len(sizes) > 1 else _MOST_OF_NUMBER)
        return (at[0], at[1], at[2]) if few and all(at[d] == size for d, size in sizes.items()) else None

    wanted: list[tuple[CodeNumber, dict[int, int]]] = []
    for one, other in itertools.permutations(numbers[:_FEW_NUMBERS], 2):
        if one.place == other.place:
            wanted += [(one, {d: one.value, e: other.value}) for d, e in ((0, 1), (0, 2), (1, 2))]
    for beside in (0, 1, -1):
        wanted += [(number, {d: number.value + beside}) for number in numbers for d in (1, 0, 2)]
    for number, sizes in wanted:
        if (found := shape(sizes)) is not None:
            yield found, number.place


def _as_sizes(numbers: Collection[CodeNumber], shape: Shape) -> Compared:
    """Comparisons of each size with each number."""
    return {
        Comparison(number.place, 3 * i + d): Operands.of(size % number.period if number.period else size, number.value)
        for i, number in enumerate(numbers)
        for d, size in enumerate(shape)
    }
