"""Climbing the rungs of a verification, in order: a stream of events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ..results.costs import QuantizationCosts
from ..results.environment import Environment
from ..results.failures import Failure
from ..results.report import EndedBy, Report
from ..results.rungs import RungResult
from ..rungs import Run, Rung
from ..support.errors import EnvironmentFault, HarnessError
from .cases import NO_CASE, save_case


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


@dataclass
class Climbed:
    """The rungs of a run and what they have found so far, of which the pipeline makes the report."""

    environment: Environment
    rungs: Sequence[Rung]
    #: The command line that repeats the run.
    command: str
    #: Of each rung that was begun.
    results: list[RungResult] = field(default_factory=list)
    #: The last of the results is not complete.
    incomplete: bool = False
    ended_by: EndedBy = ""
    not_climbed: tuple[str, ...] = ()
    costs: QuantizationCosts | None = None
    changed: str | None = None
    #: What became of the case, in a sentence.
    case: str = NO_CASE
    #: Only what was opened remains to be closed.
    over: bool = False

    @property
    def ended(self) -> list[RungResult]:
        return self.results[:-1] if self.incomplete else self.results

    @property
    def under_way(self) -> list[RungResult]:
        return self.results[-1:] if self.incomplete else []

    def end(self, by: EndedBy) -> None:
        """Record why the run ends early."""
        self.ended_by = by
        self.not_climbed = tuple(rung.name for rung in self.rungs[len(self.results) :])

    def interrupt(self, signal: EndedBy, changed: bool) -> None:
        """Record that a signal ended the run: an incomplete rung has not passed."""
        if self.over:
            return
        for result in self.under_way:
            result.fault, result.fault_culprit = f"interrupted by {signal} before its end", "coverage"
        self.end(signal)
        if changed:
            self.changed = "its inode says so; it was not read again, because the run was interrupted"
        self.over = True


def climb(run: Run, found: Climbed, waive: Callable[[Climbed], None]) -> Iterator[Event]:
    """Climb the rungs in order."""
    for i, rung in enumerate(found.rungs):
        if run.budget.over:
            found.end("budget")
            return
        run.budget.share(1 if rung.whole else sum(not r.whole for r in found.rungs[i:]))
        yield RungBegins(rung)
        result = rung.empty()
        found.results.append(result)
        found.incomplete = True
        stopped = yield from _steps(run, rung, found, waive)
        found.incomplete = False
        waive(found)
        if run.model.changed:
            result.fault = None  # a consequence of the change, which the report says once
            return
        yield RungEnds(result)
        more = i + 1 < len(found.rungs)
        if stopped or (more and result.verdict == "failed" and run.options.exit_first):
            found.end("first failure")
            return
    if run.budget.cut:
        found.end("budget")


def _steps(run: Run, rung: Rung, found: Climbed, waive: Callable[[Climbed], None]) -> Generator[Event, None, bool]:
    """Climb one rung, and report failures as soon as they are known. Returns whether the first one ended it (-x).

    If the rung breaks off, its result says why, and keeps what was found before.
    """
    result, counted, listed = found.results[-1], 0, 0

    def news() -> Iterator[Failed]:
        nonlocal counted, listed
        if result.n_failures != counted:
            counted = result.n_failures
            waive(found)
            first, listed = listed, len(result.failures)
            for failure in result.failures[first:]:
                yield Failed(result, failure)

    stopped = False
    try:
        with closing(rung.steps(run, result)) as steps:
            for wrong in steps:
                if wrong is not None and found.case == NO_CASE:
                    folder = Path(run.options.save_case)
                    found.case = save_case(folder, wrong, run.model.path, found.command, found.environment)
                yield from news()
                stopped = run.options.exit_first and result.n_failures != result.n_waived
                if stopped:
                    break
    except HarnessError as error:
        if not isinstance(error, EnvironmentFault) and not run.model.changed:
            raise
        result.fault = str(error)
        result.fault_culprit = error.culprit if isinstance(error, EnvironmentFault) else "file"
        run.close()  # the next rung gets a new process
    if stopped:
        result.fault, result.fault_culprit = "ended at its first failure (-x)", "coverage"
        run.close()
    yield from news()
    return stopped
