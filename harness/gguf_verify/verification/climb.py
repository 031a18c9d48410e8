"""Climbing the rungs of a verification, in order: a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from msgspec import structs

from ..results.failures import Failure
from ..results.report import EndedBy, Report
from ..results.rungs import RungResult
from ..rungs.explain import WrongOutput
from ..rungs.interface import Rung
from ..rungs.run import Run
from ..support.errors import EnvironmentFault, HarnessError
from .cases import NO_CASE


@dataclass(frozen=True)
class RungBegins:
    """A rung begins."""

    rung: Rung


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
        return tuple(rung.name for rung in self.rungs[len(self.results) :]) if self.ended_by else ()

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
    for i, rung in enumerate(found.rungs):
        if run.budget.over:
            yield replace(found, event=None, ended_by="budget")
            return
        budget = run.budget.share(1 if rung.whole else sum(not r.whole for r in found.rungs[i:]))
        yield replace(found, event=RungBegins(rung))
        found, stopped = yield from _climb_one(replace(run, budget=budget), rung, found, save, waived)
        result = found.results[-1]
        if run.model.changed:  # the fault is a consequence of the change, which the report says once
            yield replace(found.ended(structs.replace(result, fault=None)), event=None)
            return
        yield found
        more = i + 1 < len(found.rungs)
        if stopped or (more and result.verdict == "failed" and run.options.exit_first):
            yield replace(found, event=None, ended_by="first failure")
            return
    if any(left.why == run.budget.words for result in found.results for left in result.unverified):
        yield replace(found, event=None, ended_by="budget")


def _climb_one(
    run: Run, rung: Rung, found: Climbed, save: Callable[[WrongOutput], str], waived: Waived
) -> Generator[Climbed, None, tuple[Climbed, bool]]:
    """Climb one rung, and report failures as soon as they are known. Returns its end, and whether its first failure
    ended it (-x).

    If the rung breaks off, its result says why, and keeps what was found before.
    """
    result, counted, listed, n_waived = rung.empty(), 0, 0, 0
    found = replace(found, event=None, results=(*found.results, result), incomplete=True)
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
        with closing(rung.steps(run, result)) as steps:
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
