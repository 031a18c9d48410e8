"""The result of one rung."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from ..checks import BESIDE, BY_ID, Skipped, check_kind
from ..support import stages
from ..support.errors import Culprit
from .calls import OWN
from .diagnoses import LocatedDiagnosis
from .failures import Failure, Unverified
from .margins import Closer, Headroom, Sampled, Side, Worst
from .products import Detail, GemmRecord, OutputMap, TypeEnvelope

#: Failures that a rung records one by one; the rest is counted.
MAX_FAILURES = 20

RungVerdict = Literal["passed", "waived", "failed", "unverified"]

if TYPE_CHECKING:  # at run time, completion in notebooks (jedi) fails on a property of such a type
    Verdict = RungVerdict
    Outcome = Literal[RungVerdict, "broken off"]


class RungResult(msgspec.Struct, kw_only=True):
    """One rung of one run.

    Args:
        name: of the rung.
        question: that it answers.
        substance: kinds of `checked` of which at least one must have been checked, or nothing was verified.
        checked: number of checked things by kind, in the order of reports.
        not_checked: number of things that this rung does not check by design, by kind.
        unverified: things that should have been checked and could not be.
        failures: the first MAX_FAILURES; `n_failures` counts all.
        blamed: culprit → number of failures.
        failing: tensor → number of its failures; "" for failures of no tensor.
        causes: tensor → the cause of all its failures, as `LocatedDiagnosis.cause` or `Failure.cause` has it; "" where
            they have several or one is unknown. A tensor that is not listed has no failure whose cause is known.
        waived: tensor → number of its failures that a waiver covers.
        same: cause → number of failures that have it.
        worst: side → its worst output.
        figures: measured numbers that are not judged, by name.
        notes: notes for the reader, a line each.
        details: one record for each tensor, GEMM or token.
        envelopes: for each type, the products for which the rung holds in addition to the graph's.
        headroom: the half of the activations that is nearest to overflow; None without halves.
        sampled: the sample of large matrices that was judged element by element; None if everything was.
        closer: products that were judged more closely than by their bound; None without any.
        done: class of checks (`checks.CHECKS`) → number of things that were checked in addition to those of `checked`;
            0 if this rung has nothing of the class.
        skipped: classes of checks, or parts of them, that were not done, and why.
        diagnosis: the explanation of the most important wrong call; the model's own products come before other shapes,
            and these before limits.
        other_diagnoses: the same for each other type of weights.
        heat_map: the output of the call that `diagnosis` explains.
        fault: the fault that broke the rung off (for example a crash of llama.cpp), or None.
        fault_culprit: the culprit of that fault.
        seconds: duration.
        stages: stage of a call → seconds spent in it; see `support.stages`. They do not add up to `seconds`.
    """

    name: str
    question: str = ""
    substance: tuple[str, ...] = ()
    checked: dict[str, int] = {}
    not_checked: dict[str, int] = {}
    unverified: list[Unverified] = []
    failures: list[Failure] = []
    n_failures: int = 0
    blamed: dict[Culprit, int] = {}
    failing: dict[str, int] = {}
    causes: dict[str, str] = {}
    waived: dict[str, int] = {}
    same: dict[str, int] = {}
    worst: dict[str, Worst] = {}
    figures: dict[str, float] = {}
    notes: list[str] = []
    details: list[Detail] = []
    envelopes: list[TypeEnvelope] = []
    headroom: Headroom | None = None
    sampled: Sampled | None = None
    closer: Closer | None = None
    done: dict[str, int] = {}
    skipped: list[Skipped] = []
    diagnosis: LocatedDiagnosis | None = None
    other_diagnoses: tuple[LocatedDiagnosis, ...] = ()
    heat_map: OutputMap | None = None
    fault: str | None = None
    fault_culprit: Culprit = "environment"
    seconds: float = 0.0
    stages: dict[str, float] = {}

    #: Causes that `same` counts.
    most_causes: ClassVar[int] = MAX_FAILURES

    def __bool__(self) -> bool:
        """A rung is neither true nor false, because `if report.rung("layers"):` is ambiguous: use `rung.passed` or
        `rung is not None`. Raises TypeError."""
        raise TypeError("a RungResult is neither true nor false: ask for `passed`, or whether it `is not None`")

    @property
    def passed(self) -> bool:
        """Whether it has checked something, and everything that it should have, and found nothing wrong."""
        return self.verdict == "passed"

    @property
    def verdict(self) -> Verdict:
        """A rung that measured nothing has not passed, and one with a waived failure has not passed either."""
        if self.n_failures != self.n_waived:
            return "failed"
        if self.unverified or self.fault or not any(map(self.checked.get, self.substance)):
            return "unverified"
        return "waived" if self.n_failures else "passed"

    @property
    def n_waived(self) -> int:
        """Number of failures that a waiver covers."""
        return sum(self.waived.values())

    @property
    def outcome(self) -> Outcome:
        """The verdict, or that the rung was broken off."""
        return "broken off" if self.fault else self.verdict

    @property
    def worst_utilisation(self) -> float | None:
        """The largest of all sides; NaN counts as infinite. None if no bound was judged."""
        values = [math.inf if math.isnan(w.utilisation) else w.utilisation for w in self.worst.values()]
        return max(values, default=None)

    @property
    def gemms(self) -> list[GemmRecord]:
        """The records of GEMMs."""
        return [record for record in self.details if isinstance(record, GemmRecord)]

    @property
    def diagnoses(self) -> tuple[LocatedDiagnosis, ...]:
        """The diagnosis of each type, the most important first."""
        return () if self.diagnosis is None else (self.diagnosis, *self.other_diagnoses)

    def attribute(self, tensor: str, cause: str) -> None:
        """Record the cause of failures of a tensor; "": it is unknown."""
        self.causes[tensor] = cause if self.causes.get(tensor, cause) == cause else ""

    def explain(self, found: LocatedDiagnosis) -> bool:
        """Keep a diagnosis if it is more important than that of its type; whether it is."""
        kept = {d.type: d for d in self.diagnoses}
        if found.type in kept and kept[found.type].weight <= found.weight:
            return False
        kept[found.type] = found
        self.diagnosis, *others = sorted(kept.values(), key=lambda d: d.weight)
        self.other_diagnoses = tuple(others)
        return True

    def room(self, rank: int = OWN) -> int:
        """Number of further failures of calls of a rank that can be listed; they replace less important ones."""
        return max(0, MAX_FAILURES - sum(f.rank <= rank for f in self.failures))

    def _list(self, failure: Failure) -> None:
        """List a failure, if there is room and no failure of its cause is listed that is as important."""
        of_cause = next((i for i, f in enumerate(self.failures) if failure.cause and f.cause == failure.cause), None)
        if of_cause is not None and self.failures[of_cause].rank <= failure.rank:
            return
        if self.room(failure.rank):
            if of_cause is not None:
                del self.failures[of_cause]
            self.failures.append(failure)
            self._make_room()

    def _make_room(self) -> None:
        """Drop the least important of too many."""
        if len(self.failures) > MAX_FAILURES:
            del self.failures[max(range(len(self.failures)), key=lambda i: (self.failures[i].rank, i))]

    def count(self, kind: str, n: int = 1) -> None:
        """Record that n things were checked. Raises ValueError for a kind that belongs to no class of checks."""
        check_kind(kind, self.substance)
        self.checked[kind] = self.checked.get(kind, 0) + n

    def count_beside(self, kind: str, n: int, under_test: bool) -> None:
        """Record that n things were checked, by the kernel under test or by one that stands beside it."""
        self.count(kind if under_test else f"{kind}{BESIDE}", n)

    def did(self, check: str, n: int = 1) -> None:
        """Record that n things of a class of checks were done; 0: there is nothing of it in this rung. Raises KeyError
        for a class that does not exist."""
        self.done[BY_ID[check].id] = self.done.get(check, 0) + n

    def omit(self, check: str, why: str, scope: str = "") -> None:
        """Record, once, that a class of checks or a part of it was not done: see `Skipped`. Raises KeyError."""
        self._omit(Skipped(BY_ID[check].id, why, scope))

    def _omit(self, skipped: Skipped) -> None:
        if skipped not in self.skipped:
            self.skipped.append(skipped)

    def skip(self, kind: str, n: int = 1) -> None:
        """Record that n things are not for this rung to check."""
        self.not_checked[kind] = self.not_checked.get(kind, 0) + n

    def fail(self, failure: Failure, n: int = 1) -> None:
        """Record a failure that stands for n of them; one of a cause that is recorded is only counted. A call that was
        not made has not failed: it could not be checked."""
        if failure.culprit == "coverage":
            self.leave_products(failure.tensor or "the kernel", failure.cause or failure.what, failure.tensor, n)
            return
        self.fail_more(failure.culprit, n, failure.tensor)
        if failure.cause and failure.tensor:
            self.attribute(failure.tensor, failure.cause)
        if failure.cause in self.same or (failure.cause and len(self.same) < self.most_causes):
            self.same[failure.cause] = self.same.get(failure.cause, 0) + n
        self._list(failure)

    def fail_more(self, culprit: Culprit, n: int, tensor: str) -> None:
        """Count n further failures of a tensor ("" for none), which are not recorded one by one."""
        if n:
            self.n_failures += n
            self.blamed[culprit] = self.blamed.get(culprit, 0) + n
            self.failing[tensor] = self.failing.get(tensor, 0) + n

    def leave(self, name: str, why: str, tensor: str | None = None, culprit: Culprit = "coverage") -> None:
        """Record something that could not be checked, once; `tensor` is the tensor's name if `name` says more."""
        self._leave(Unverified(name, why, name if tensor is None else tensor, culprit))

    def leave_all(self, kind: str, why: str, culprit: Culprit = "coverage") -> None:
        """Record that nothing of a kind could be checked."""
        self._leave(Unverified(f"all {kind}", why, "", culprit))

    def leave_products(self, name: str, why: str, tensor: str, n: int = 1) -> None:
        """Record n products that could not be checked; those of one name, reason and tensor are counted together."""
        self._leave(Unverified(name, why, tensor, products=n))

    def _leave(self, left: Unverified) -> None:
        for i, known in enumerate(self.unverified):
            if left == msgspec.structs.replace(known, products=left.products):
                self.unverified[i] = msgspec.structs.replace(known, products=known.products + left.products)
                return
        self.unverified.append(left)

    def note(self, line: str, first: bool = False) -> None:
        """Record a note for the reader, once; `first`: before others, if it says that something was not searched."""
        if line not in self.notes:
            self.notes.insert(0 if first else len(self.notes), line)

    def keep_headroom(self, found: Headroom | None) -> None:
        """Keep the one that is nearest to its limit."""
        if found is not None and (self.headroom is None or found.ratio > self.headroom.ratio):
            self.headroom = found

    def measure(self, side: Side, utilisation: float, score: float, where: str) -> None:
        """Keep the worst utilisation and the worst score of a side; NaN counts as the worst."""
        last = self.worst.get(side.name)
        if last is not None:
            score = last.score if score <= last.score or math.isnan(last.score) else score
            if utilisation <= last.utilisation or math.isnan(last.utilisation):
                utilisation, where = last.utilisation, last.where
        self.worst[side.name] = Worst(utilisation, where, score, side.of_kernel)

    def join(self, part: PartialResult) -> None:
        """Add the findings of a part of the work after those recorded here. The diagnosis and the map of a part are not
        taken: the caller decides which are kept."""
        n = self.n_failures
        for failure in part.failures:
            self._list(failure)  # the part's own sums count them
        self.n_failures = n + part.n_failures
        for cause, n in part.same.items():
            if cause in self.same or len(self.same) < self.most_causes:
                self.same[cause] = self.same.get(cause, 0) + n
        for mine, theirs in (
            (self.checked, part.checked), (self.not_checked, part.not_checked), (self.figures, part.figures),
            (self.blamed, part.blamed), (self.failing, part.failing), (self.stages, part.stages),
            (self.done, part.done),
        ):  # fmt: skip
            _add(mine, theirs)
        for tensor, cause in part.causes.items():
            self.attribute(tensor, cause)
        for skipped in part.skipped:
            self._omit(skipped)
        for left in part.unverified:
            self._leave(left)
        for line in reversed(part.leading):
            self.note(line, first=True)
        for line in part.notes[len(part.leading) :]:
            if part.closer is None or line != part.closer.words:
                self.note(line)
        for name, worst in part.worst.items():
            self.measure(Side(name, worst.of_kernel), worst.utilisation, worst.score, worst.where)
        self.details += part.details
        self.envelopes += part.envelopes
        self.keep_headroom(part.headroom)
        if part.sampled is not None:
            self.keep_sampled(part.sampled)
        if part.closer is not None:
            self.keep_closer(part.closer)

    def keep_sampled(self, sampled: Sampled) -> None:
        """Add the sample of one more matrix."""
        self.sampled = sampled if self.sampled is None else self.sampled.joined(sampled)

    def keep_closer(self, closer: Closer) -> None:
        """Add products that were judged more closely, and note how many there are."""
        if self.closer is not None:
            self.notes.remove(self.closer.words)
            closer = self.closer.joined(closer)
        self.closer = closer
        self.note(closer.words)

    @contextmanager
    def timed(self) -> Iterator[RungResult]:
        """Add the time that the block takes to `seconds`, and that of its stages to `stages`."""
        start, before = time.perf_counter(), stages.seconds()
        try:
            yield self
        finally:
            self.seconds += time.perf_counter() - start
            for name, spent in stages.since(before).items():
                self.stages[name] = self.stages.get(name, 0.0) + spent


class PartialResult(RungResult, kw_only=True):
    """The findings of one part of a rung's work: see `RungResult.join`.

    Args:
        listed: known number of failures of the model's own products that the rung lists already.
        leading: the notes that come before others.
    """

    listed: int = 0
    leading: list[str] = []

    most_causes: ClassVar[int] = sys.maxsize

    def room(self, rank: int = OWN) -> int:
        """How many more failures may be listed: those of a known cause may be listed before, and take no room."""
        return max(0, MAX_FAILURES - self.listed - sum(not f.cause and f.rank <= rank for f in self.failures))

    def _make_room(self) -> None:
        """Nothing: the rung that it is joined to makes room."""

    def note(self, line: str, first: bool = False) -> None:
        """As `RungResult.note`."""
        if first and line not in self.notes:
            self.leading.insert(0, line)
        super().note(line, first)


def _add(sums: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    for key, n in more.items():
        sums[key] = sums.get(key, 0) + n
