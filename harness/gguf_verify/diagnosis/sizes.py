"""Common properties of wrong calls of several sizes: partial tiles, multiples, ranges, and rules that combine them.

A rule is learnt from calls: of all the rules that fit the calls so far, the shortest are kept, and the next call has
the size at which most of them predict other outputs to be wrong than the shortest one does. A rule is only reported if
no rule of about its length predicts anything else, and if it predicted further calls correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..kernels.domain import Extent
from ..results.diagnoses import FaultMatch
from .observed import observed
from .pattern import ranges
from .separation import DIVISORS, Question, Rule, Table, number, of_places, rules

Bools = npt.NDArray[np.bool_]

#: Sizes of tiles to look for.
_TILES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
#: A tile is named if the ends of this many calls are wrong.
_ENOUGH = 3
#: The most calls to learn a rule; the bits by which rivals of the shortest rule may be longer; the calls in a row that
#: a rule must predict before it is reported.
MOST_CALLS, _RIVAL, _CONFIRMED = 48, 8.0, 4
#: Items of a call, from each end, to which rules are fitted and where they are compared; all items of a further call
#: are compared with its prediction.
_ITEMS = 512
#: How far from a limit the next size is looked for that meets the other questions of a rule.
_FURTHEST = 4096
#: Items from each end of a call at which a rule is evaluated for many sizes.
_FEW = 8


class Calls(Protocol):
    """Calls of any size."""

    def __call__(self, n: int, first: int = 0, /) -> Bools:
        """Return which items of a call of size n are wrong, bool[n]; item i has the operands of item first + i."""


def each(sizes: Sequence[int], of: Calls) -> dict[int, Bools]:
    """Return size → which tokens (or rows) are wrong.

    Nothing if a second series of calls gives another answer, or if other operands make correct sizes wrong or wrong
    ones correct: then the operands matter and not the size.
    """
    found = {n: of(n) for n in sizes}
    if not all((of(n) == found[n]).all() for n in reversed(sizes)):
        return {}
    return found if all(of(n, n // 2 + 1).any() == found[n].any() for n in sizes) else {}


def around(
    wrong: dict[int, Bools], of: Callable[[int], Bools], own: int, most: int, domain: Extent
) -> dict[int, Bools]:
    """Add to `wrong` the sizes at which outputs become wrong below the size of the call, and correct again above it."""
    if own not in wrong or not wrong[own].any() or not any(not bad.any() for bad in wrong.values()):
        return wrong

    def is_wrong(n: int) -> bool:
        if n not in wrong:
            wrong[n] = of(n)
        return bool(wrong[n].any())

    def edge(right: int, bad: int) -> None:
        while abs(bad - right) > 1 and (middle := (right + bad) // 2) in domain:
            right, bad = (right, middle) if is_wrong(middle) else (middle, bad)

    below = max((n for n, bad in wrong.items() if n < own and not bad.any()), default=None)
    if below is not None:
        edge(below, own)
    step, last = 1, own
    while (above := own + step) <= most and above in domain:
        if not is_wrong(above):
            edge(above, last)
            break
        step, last = 2 * step, above
    return wrong


@dataclass(frozen=True)
class Axis:
    """What a size counts.

    Args:
        what: its items, "row" or "token"; "" if a call of some size is wrong or correct as a whole.
        size: its name.
        unit: the size of one item.
    """

    what: str
    size: str
    unit: int = 1

    def features(self, at: npt.NDArray[np.intp], sizes: npt.ArrayLike, only: Collection[str] | None = None) -> Table:
        """Return the features of items `at` of calls of some sizes: see `separation`; `only` these, or all."""
        whole = np.broadcast_to(np.asarray(sizes), at.shape)
        found = {self.size: number(self.size, whole * self.unit, remainders=True)}
        return found | of_places(at, whole, self.what, self.size, only) if self.what else found


TOKENS, ROWS = Axis("token", "M"), Axis("row", "N")


@dataclass(frozen=True)
class Series:
    """The common property of the wrong items of calls of several sizes.

    Args:
        fault: the name, if calls of some sizes are correct.
        learnt: the rule of the wrong items; None if none is certain.
    """

    fault: FaultMatch | None = None
    learnt: Learnt | None = None

    @property
    def place(self) -> str:
        """The rule in words, if it holds in calls of any size; else ""."""
        if self.learnt is None or self.learnt.axis.size in self.learnt.of_features:
            return ""
        axis = self.learnt.axis
        return f"{axis.what}s are wrong exactly where {self.learnt.condition}, in calls with any {axis.size} tried"


@dataclass(frozen=True)
class Learnt:
    """A rule of the wrong items of calls of any size."""

    rule: Rule
    axis: Axis

    def wrong(self, n: int, at: npt.NDArray[np.intp]) -> Bools:
        """Return which of the items `at` of a call of size n are predicted to be wrong, bool[len(at)]."""
        return self.rule.holds(self.axis.features(at, n, self.of_features))

    @property
    def condition(self) -> str:
        """The condition in words."""
        return self.rule.condition(self.axis.features(np.arange(1), 1))

    @property
    def of_features(self) -> set[str]:
        """The features that it compares."""
        return {question.feature for question in self.rule.questions}


def learn(wrong: Mapping[int, Bools], of: Calls, most: int, domain: Extent, axis: Axis) -> Learnt | None:
    """Return the rule of wrong items, after further calls; None if no rule is certain.

    Args:
        wrong: size → which items are wrong, bool[items], of the calls so far.
        of: makes a call of another size, up to `most`; the operands of its items are other ones, so that no rule
            holds that depends on them.
    """
    known, confirmed = dict(wrong), 0
    pool = {n for n in _pool(wrong, most) if n * axis.unit in domain}
    for _ in range(MOST_CALLS):
        found = rules(*_samples(known, axis))
        if not found:
            return None
        near = [rule for rule in found if rule.bits <= found[0].bits + _RIVAL]
        first, *rivals = (Learnt(rule, axis) for rule in (*near, *_with_other_limits(near[0], known, axis)))
        between = {n for rival in rivals for n in _limits(rival.rule, axis)}
        fresh = sorted(n for n in pool | between if n not in known and 0 < n <= most and n * axis.unit in domain)
        predicted = {n: first.wrong(n, _ends(n, axis)) for n in fresh}
        doubts = {
            n: sum(bool((rival.wrong(n, _ends(n, axis)) != expected).any()) for rival in rivals)
            for n, expected in predicted.items()
        }
        n = max(fresh, key=lambda n: doubts[n], default=None)
        if n is None or not doubts[n]:
            if confirmed >= _CONFIRMED:
                failed = max(n for n, bad in wrong.items() if bad.any())
                return first if (of(failed, failed // 2 + 1) == wrong[failed]).all() else None
            # a call that the rule predicts to be wrong tests it most
            n = min(fresh, key=lambda n: (not predicted[n].any(), abs(n - max(known))), default=None)
        if n is None:
            return None
        known[n] = of(n, n)
        confirmed = confirmed + 1 if (known[n] == first.wrong(n, np.arange(len(known[n])))).all() else 0
    return None


def _limits(rule: Rule, axis: Axis) -> Iterator[int]:
    """Yield the sizes that a rule compares with, and the next ones from there for which its other questions hold."""
    for i, question in enumerate(rule.questions):
        if question.feature == axis.size and not question.divisor:
            limit = int(question.value) // axis.unit
            yield limit
            yield from _meeting(_without(rule, i), axis, limit + np.arange(_FURTHEST))[:1].tolist()


def _without(rule: Rule, i: int) -> tuple[Question, ...]:
    return (*rule.questions[:i], *rule.questions[i + 1 :])


def _meeting(questions: Sequence[Question], axis: Axis, sizes: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the sizes whose calls have an item, among the first and the last, for which all questions hold."""
    sizes = sizes[sizes > 0]
    if not questions or not len(sizes):
        return sizes
    near = np.arange(_FEW)[:, None] + 0 * sizes
    at = np.clip(np.concatenate([near, sizes - 1 - near]), 0, sizes - 1) if axis.what else near[:1]
    table = axis.features(at, sizes, {question.feature for question in questions})
    meets = np.logical_and.reduce([question.holds(table) for question in questions])
    return sizes[np.asarray(meets, bool).any(axis=0)]


def _with_other_limits(rule: Rule, known: Mapping[int, Bools], axis: Axis) -> Iterator[Rule]:
    """Yield the rule with other limits of sizes: in the middle of the sizes around each that were tried and for which
    its other questions hold. A single size becomes the multiples of its divisors from such a limit on."""
    tried = np.array(sorted(known))
    for i, question in enumerate(rule.questions):
        if question.feature != axis.size or question.divisor:
            continue
        at, others = int(question.value) // axis.unit, _without(rule, i)
        round_ = [(*others, Question(axis.size, "=", 0.0, d)) for d in DIVISORS if question.value % d == 0]
        for kept in round_ if question.relation == "=" else [others]:
            sizes = _meeting(kept, axis, tried).tolist()
            below, above = max((n for n in sizes if n < at), default=0), min((n for n in sizes if n >= at), default=at)
            relation = "≥" if question.relation == "=" else question.relation
            for limit in {below + 1, (below + above + 1) // 2, above} - {at}:
                other = replace(question, relation=relation, value=float(limit * axis.unit))
                yield replace(rule, questions=(*kept, other))


def _ends(n: int, axis: Axis) -> npt.NDArray[np.intp]:
    """Return the first and the last items of a call of size n."""
    items = n if axis.what else 1
    return np.array([*range(min(items, _ITEMS)), *range(max(_ITEMS, items - _ITEMS), items)])


def _samples(known: Mapping[int, Bools], axis: Axis) -> tuple[Table, Bools]:
    """Return the features of items of all calls, and which are wrong; of large calls, the first and the last items."""
    at, sizes, wrong = [], [], []
    for n, of in known.items():
        kept = _ends(n, axis)
        at.append(kept)
        sizes.append(np.full(len(kept), n))
        wrong.append(of[kept])
    return axis.features(np.concatenate(at), np.concatenate(sizes)), np.concatenate(wrong)


def _pool(wrong: Mapping[int, Bools], most: int) -> list[int]:
    """Return the sizes of further calls: near those that failed, and at distances that divisors and tiles have."""
    failed = [n for n, of in wrong.items() if of.any()]
    steps = sorted({*range(4), *DIVISORS})
    near = {n + sign * step for n in (*failed[:2], *failed[-2:]) for step in steps for sign in (-1, 1)}
    return sorted(n for n in {*near, *DIVISORS} if 0 < n <= most)


def of_sizes(wrong: dict[int, Bools], of: Calls, most: int, domain: Extent, axis: Axis) -> Series:
    """Find the common property of the wrong tokens (or rows) of calls of several sizes: see `learn`."""
    what, size = axis.what, axis.size
    failed = [n for n, bad in wrong.items() if bad.any()]
    passed = [n for n, bad in wrong.items() if not bad.any()]
    if not failed:
        return Series()
    ends = {tile: {n: np.arange(n) >= n // tile * tile for n in wrong} for tile in _TILES}
    for tile in _TILES if passed else ():
        whole = any(n % tile == 0 for n in passed)
        fits = all((bad == ends[tile][n]).all() or (n < tile and not bad.any()) for n, bad in wrong.items())
        if whole and fits and len(failed) >= _ENOUGH:
            return Series(observed("partial-tile", f"{what}s past the last whole tile of {tile} are wrong"))
    for tile in _TILES:  # only some of those past the last whole tile, in every call that has any
        fits = all(bad.any() == bool(n % tile) and not (bad & ~ends[tile][n]).any() for n, bad in wrong.items())
        if fits and len(passed) > 1 and len(failed) > 1:
            words = f"{what}s past the last whole tile of {tile} are wrong: only where {size} is no multiple of {tile}"
            return Series(observed("partial-tile", words))
    if size == "N" and passed == [1]:
        return Series()  # rows that disturb each other do not show with one row
    learnt = learn(wrong, of, most, domain, axis)
    right_somewhere = np.zeros(max(wrong), bool)
    for n, bad in wrong.items():
        right_somewhere[:n] |= ~bad
    if all((bad & right_somewhere[:n]).any() for n, bad in wrong.items() if bad.any()):
        return Series(_window(axis, learnt, failed, passed), learnt)
    return Series(None, learnt)


def of_lengths(wrong: dict[int, bool], of: Callable[[int], bool], domain: Extent, unit: int) -> FaultMatch | None:
    """Find the common property of the K, in units, at which calls are wrong."""
    failed, passed = ([n for n, bad in wrong.items() if bad == kind] for kind in (True, False))
    if not failed or not passed:
        return None
    axis = Axis("", "K", unit)

    def call(n: int, first: int = 0, /) -> Bools:
        return np.array([of(n)])

    learnt = learn({n: np.array([bad]) for n, bad in wrong.items()}, call, max(wrong), domain, axis)
    return _window(axis, learnt, failed, passed)


def _window(axis: Axis, learnt: Learnt | None, failed: Sequence[int], passed: Sequence[int]) -> FaultMatch:
    """Return the fault that some sizes are wrong and others correct, with the condition and the sizes."""
    size, condition = axis.size, ""
    if learnt is not None and not axis.what:
        condition = f", those where {learnt.condition}"
    elif learnt is not None:
        of_size = learnt.of_features == {size}
        condition = f", those where {learnt.condition}" if of_size else f": {axis.what}s where {learnt.condition}"
    elif max(passed) < min(failed):
        condition = f", those from {size} = {min(failed) * axis.unit} on"
    elif max(failed) < min(passed):
        condition = f", those up to {size} = {max(failed) * axis.unit}"
    words = (
        f"only calls of some {size} are wrong{condition}: of the sizes that were tried, "
        f"{_listed(failed, axis)} are wrong and {_listed(passed, axis)} right, on the same operands"
    )
    return observed(f"window-of-{size.lower()}", words)


def _listed(sizes: Sequence[int], axis: Axis) -> str:
    return ranges(np.array(sorted(sizes)) * axis.unit, 12)
