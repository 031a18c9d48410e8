"""Climbing the rungs of a verification, in order: a stream of events.

With a budget the order is that of `Rung.turn`, by what a second shows: the file's bytes, the model's own products, its
tokens, its blocks; and at the end `Rung.later`, which is other shapes, values and schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from msgspec import structs

from ..results.failures import Failure
from ..results.report import EndedBy, Report
from ..results.rungs import RungResult
from ..rungs.estimates import Estimate, Estimates
from ..rungs.explain import WrongOutput
from ..rungs.interface import Rung
from ..rungs.run import Run
from ..support.errors import EnvironmentFault, HarnessError
from .cases import NO_CASE


@dataclass(frozen=True)
class RungBegins:
    """A rung begins.

    Args:
        left: an estimate of the time until the end of the run, if progress is shown.
    """

    rung: Rung
    left: Estimate | None = None


@dataclass(frozen=True)
class Failed:
    """A rung has listed a failure, and goes on. Its other failures were reported before."""

    result: RungResult
    failure: Failure


@dataclass(frozen=True)
class RungEnds:
    """A rung has ended."""

    result: RungResult


@dataclass(frozen=True)
class Reported:
    """The last event: the report is complete."""

    report: Report


Event = RungBegins | Failed | RungEnds | Reported


@dataclass(frozen=True)
class Climbed:
    """The state of a climb after an event, of which the pipeline makes the report.

    Args:
        rungs: those to climb, in order.
        event: the event; None where there is none to report.
        results: of each rung that was begun.
        incomplete: the last of the results is of a rung that still adds to it.
        ended_by: why the run ended early.
        case: what became of the case, in a sentence.
    """

    rungs: Sequence[Rung]
    event: Event | None = None
    results: tuple[RungResult, ...] = ()
    incomplete: bool = False
    ended_by: EndedBy = ""
    case: str = NO_CASE

    @property
    def not_climbed(self) -> tuple[str, ...]:
        """The rungs that an early end skipped."""
        left = sorted(self.rungs[len(self.results) :], key=lambda rung: rung.order)
        return tuple(rung.name for rung in left) if self.ended_by else ()

    @property
    def in_order(self) -> list[RungResult]:
        """The results in the order of the rungs without a budget."""
        pairs = zip(self.rungs, self.results, strict=False)
        return [result for _, result in sorted(pairs, key=lambda pair: pair[0].order)]

    def resumed(self, name: str) -> Climbed:
        """With the result of this rung as the last one, and incomplete."""
        n = len(self.results)
        pairs = [*zip(self.rungs[:n], self.results, strict=True)]
        pairs.sort(key=lambda pair: pair[0].name == name)
        rungs, results = [rung for rung, _ in pairs], tuple(result for _, result in pairs)
        return replace(self, event=None, rungs=[*rungs, *self.rungs[n:]], results=results, incomplete=True)

    def ended(self, result: RungResult) -> Climbed:
        """After the last rung ended with this result."""
        return replace(self, event=RungEnds(result), results=(*self.results[:-1], result), incomplete=False)

    def interrupted(self, signal: EndedBy) -> Climbed:
        """After a signal: an incomplete rung has not passed."""
        if not self.incomplete:
            return replace(self, ended_by=signal)
        fault = f"interrupted by {signal} before its end"
        result = structs.replace(self.results[-1], fault=fault, fault_culprit="coverage")
        return replace(self.ended(result), ended_by=signal)


#: Results → the same results, with `waived` set.
Waived = Callable[[Sequence[RungResult]], Sequence[RungResult]]


def climb(run: Run, found: Climbed, save: Callable[[WrongOutput], str], waived: Waived) -> Generator[Climbed]:
    """Climb the rungs in order. `save` saves the first wrong call, and returns a sentence about it."""
    if run.budget.limited:
        found = replace(found, rungs=sorted(found.rungs, key=lambda rung: rung.turn or rung.order))
    over, times = False, Estimates(run) if run.options.progress or run.budget.limited else None
    for i, rung in enumerate(found.rungs):
        over = run.budget.over
        if over:
            break
        budget = run.budget.share(_parts(found.rungs, i))
        left = None
        if times is not None:
            times.measured(found.results)
            left = times.of_rungs(r.name for r in found.rungs[i:])
        yield replace(found, event=RungBegins(rung, left))
        begun = replace(found, event=None, results=(*found.results, rung.empty()), incomplete=True)
        at = replace(run, budget=budget, seconds_of_tokens=0.0 if times is None else times.tokens)
        found, stopped = yield from _climb_one(at, rung, begun, save, waived)
        result = found.results[-1]
        if run.model.changed:  # the fault is a consequence of the change, which the report says once
            yield replace(found.ended(structs.replace(result, fault=None)), event=None)
            return
        yield found
        more = i + 1 < len(found.rungs)
        if stopped or (more and result.verdict == "failed" and run.options.exit_first):
            yield replace(found, event=None, ended_by="first failure")
            return
    for rung, result in zip(found.rungs, found.results, strict=False) if run.budget.limited else ():
        if rung.later is None or result.fault or run.budget.over:
            continue
        at = replace(run, budget=run.budget.share(1))
        found, stopped = yield from _climb_one(at, rung, found.resumed(rung.name), save, waived, later=True)
        yield found
        if stopped:
            yield replace(found, event=None, ended_by="first failure")
            return
    if over or any(left.why == run.budget.words for result in found.results for left in result.unverified):
        yield replace(found, event=None, ended_by="budget")


def _parts(rungs: Sequence[Rung], i: int) -> int:
    """The number of equal parts of the time that is left of which a rung gets one: of what comes before the model's own
    products and after them, each leaves time for what follows."""
    if rungs[i].own or rungs[i].whole:
        return 1
    return len(rungs) - i + sum(rung.later is not None for rung in rungs[:i])


def _climb_one(
    run: Run, rung: Rung, found: Climbed, save: Callable[[WrongOutput], str], waived: Waived, later: bool = False
) -> Generator[Climbed, None, tuple[Climbed, bool]]:
    """Climb one rung, and report failures as soon as they are known. Returns its end, and whether its first failure
    ended it (-x).

    If the rung breaks off, its result says why, and keeps what was found before.

    Args:
        found: its last result is that of the rung, which is added to.
        later: do what the rung has left to the end of the run.
    """
    result = found.results[-1]
    counted, listed, n_waived = result.n_failures, len(result.failures), result.n_waived
    yield found

    def news() -> Iterator[Climbed]:
        nonlocal counted, listed, n_waived
        if result.n_failures != counted:
            counted = result.n_failures
            shown = waived(found.results)[-1]
            n_waived = shown.n_waived
            first, listed = listed, len(result.failures)
            for failure in result.failures[first:]:
                yield replace(found, event=Failed(shown, failure))

    stopped, broken = False, dict[str, str]()
    try:
        with closing((rung.later_steps if later else rung.steps)(run, result)) as steps:
            for wrong in steps:
                if wrong is not None and found.case == NO_CASE:
                    found = replace(found, case=save(wrong))
                    yield found
                yield from news()
                stopped = run.options.exit_first and result.n_failures != n_waived
                if stopped:
                    break
    except HarnessError as error:
        if not isinstance(error, EnvironmentFault) and not run.model.changed:
            raise
        culprit = error.culprit if isinstance(error, EnvironmentFault) else "file"
        broken = {"fault": str(error), "fault_culprit": culprit}
    if stopped:
        broken = {"fault": "ended at its first failure (-x)", "fault_culprit": "coverage"}
    if broken:
        run.close()  # the next rung gets a new process
    yield from news()
    return found.ended(structs.replace(waived(found.results)[-1], **broken)), stopped
