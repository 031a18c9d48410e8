"""One verification from end to end: open the file, climb the rungs, say what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from .cases import Keeper
from .costs import Text, measure, open_source, read_text
from .distributed import judges
from .environment import completed, environment_of, unknown_environment
from .gguf.matrices import may_be_matrix
from .gguf.model import Model
from .hosts.base import Host
from .invocation import command_of
from .kernels.families import DEFAULT_KERNEL
from .kernels.interface import Candidate
from .processes.sandbox import sandboxed
from .results.costs import QuantizationCosts
from .results.failures import Failure
from .results.options import Options
from .results.products import DrawnData
from .results.report import EndedBy, Report
from .results.rungs import RungResult
from .rungs import RUNGS, Run, Rung, asked_rungs, known_rungs, rungs_for
from .rungs.budget import Budget
from .rungs.compiling import compile_ahead, scanners_ahead, steps_ahead
from .rungs.drawn import DRAWN_RUNGS, Drawn, DrawnRun, check_reference
from .rungs.opening import open_run
from .support.durations import is_duration
from .support.errors import EnvironmentFault, HarnessError, NothingToVerify, UsageError, signal_of
from .support.supported import check_machine
from .support.text import printable
from .waivers import apply, read_waivers, refuse_everything
from .waivers import today as current_day


class Watcher:
    """What is told of a run while it goes on. Each method does nothing here."""

    def begins(self, report: Report, rung: Rung) -> None:
        """A rung is begun."""

    def failed(self, result: RungResult, failure: Failure) -> None:
        """A failure that a rung records is known; the rung goes on. The others of its rung were told before."""

    def ends(self, report: Report, result: RungResult) -> None:
        """A rung is over; the report holds its result."""


def verify(
    path: Path | str | Drawn,
    kernel: Candidate | str | Callable[..., Any] = DEFAULT_KERNEL,
    host: Host | str = "auto",
    rungs: Sequence[str] | None = None,
    options: Options | None = None,
    command: str = "",
    on_rung: Callable[[Report, RungResult], None] | None = None,
    source: Path | str | None = None,
    source_text: Path | str | None = None,
    waivers: Path | str | None = None,
    today: date | None = None,
    watcher: Watcher | None = None,
    interrupted_report: bool = False,
    clock: Callable[[], float] = time.monotonic,
    ray: str | None = None,
    jobs: int | None = None,
) -> Report:
    """Verify a GGUF model with a kernel.

    Args:
        path: the file, or the first part of a split one; or `Drawn` data, where no model is at hand. Such a report says
            "verified on drawn data".
        kernel: the name of a shipped kernel or family; a foreign kernel, as FILE.py:NAME, as FILE.cu:SYMBOL, or as a
            function or object that declares itself (see `gguf_verify.kernels.foreign`); or a Candidate.
        host: where the kernel runs, unless it is a Candidate: the name of a host, or a Host.
        rungs: the rungs to climb; None for all that there are for what the kernel computes; on drawn data "blocks" and
            "layers".
        options: prompt, threads and further choices.
        command: the command line that repeats the run, for the report; where it is "", it is made of the other
            arguments, if it can be (a kernel that is a function of another function cannot be named).
        on_rung: called after each rung.
        source: the model that this one was quantized from: the report then has `costs`.
        source_text: a file of UTF-8, whose predictions are compared with the source's; None for the prompt.
        waivers: a file of known mismatches, which do not fail the run until their last day.
        today: the day that waivers are compared with; None for today in UTC.
        watcher: told of the run while it goes on.
        interrupted_report: where a KeyboardInterrupt ends the run, return what was found so far instead of raising it;
            `Report.ended_by` and `Report.not_climbed` say what is missing. Before the first rung that is nothing, and
            most of the report's environment is "unknown". A run that was over by then is whole.
        clock: what time it is in seconds, for `Options.budget`.
        ray: the address of a cluster of Ray, whose processes judge tensors and GEMMs, or "local" for processes of this
            machine; None for this process. The report is the same.
        jobs: without Ray, processes of this machine that judge tensors and GEMMs; None for as many as pay: several
            where a card multiplies a large model, if model, kernel and host are given by their names, else this process
            alone. The report is the same.

    The file is read again at the end: `Report.changed` says where it is no longer the one that was verified.

    Raises:
        MalformedFile: the file cannot be read safely.
        NothingToVerify: it holds no matrix.
        EnvironmentFault: there is no such host, or llama.cpp cannot be used at all. What breaks off a single rung
            (llama.cpp crashes on this model, a build fails) is recorded in that rung's result.
        UsageError: no such kernel or rung, the options select nothing, or the source is another model's.
    """
    check_machine()
    start = time.perf_counter()
    options = options or Options()
    if options.budget is not None and not is_duration(options.budget):
        raise UsageError(f"a budget is a time above 0, not {options.budget:g} seconds")
    # one call that is made alone takes what it takes
    budget = Budget(None if options.only_call else options.budget, clock)
    command = command or command_of(
        path, kernel, host, rungs, options, source=source, source_text=source_text, waivers=waivers
    )
    if rungs is not None:
        known_rungs(rungs)
    if isinstance(path, Drawn):
        if left := [name for name in rungs or () if name not in DRAWN_RUNGS]:
            raise UsageError(f"the {left[0]} rung needs a model; on drawn data there are: {', '.join(DRAWN_RUNGS)}")
        if (source, waivers, options.save_case) != (None, None, ""):
            raise UsageError("a source, waivers and a saved case belong to a model, not to drawn data")
    check_reference(path, options)
    if source_text is not None and source is None:
        raise UsageError("a text for costs (--source-text) needs the model's source (--source)")
    if options.only_call and (rungs is None or len(rungs) != 1):
        raise UsageError("--only-call needs the rung of the call: --rungs RUNG, as a report prints it")
    text = None if source_text is None else read_text(source_text)
    known = () if waivers is None else read_waivers(waivers)
    keeper = Keeper(Path(options.save_case), str(path), command) if options.save_case else None
    asked, day = [name for name in RUNGS if name in (rungs or rungs_for())], today or current_day()
    climb: _Climb | None = None
    try:
        with (
            sandboxed(options.sandbox, options.kernel_memory),
            open_run(path, kernel, host, options, None if keeper is None else keeper.keep) as run,
            judges(ray, run, path, kernel, host, options, jobs) as run.judges,
        ):
            model = run.model
            chosen = asked_rungs(rungs, run.kernel.computes)
            if isinstance(path, Drawn):
                chosen = [rung for rung in chosen if rung.name in DRAWN_RUNGS]
            asked = [rung.name for rung in chosen]
            if options.sanitize and (fault := run.kernel.check_fault()) is not None:
                raise EnvironmentFault(f"--sanitize: {fault}")
            if not any(map(may_be_matrix, model.tensors.values())):
                n = len(model.tensors)
                held = f"none of its {n} tensors is a matrix" if n else "it holds no tensor"
                name = printable(model.path.name)
                raise NothingToVerify(f"nothing to verify in {name}: {held}", "nothing-to-verify")
            matrices = [name for name, tensor in model.tensors.items() if may_be_matrix(tensor)]
            looking = [name for name in rungs_for(run.kernel.computes) if name != "tokens"]
            refuse_everything(known, model.path.name, run.kernel.name, matrices, looking)
            before, ahead = None, ExitStack()
            try:
                run.selected()
                before = None if source is None else open_source(source, model)
                drawn = run.data if isinstance(run, DrawnRun) else None
                run.budget = budget
                if budget.limited:
                    begun = clock()
                    run.file_info()
                    budget.reserve(clock() - begun)  # for reading the whole file once more, at the end
                if not options.only_call:
                    compile_ahead(run)
                    if "bytes" in asked and not run.judges.scans:
                        ahead.enter_context(scanners_ahead(run))
                environment = environment_of(run, hashed=keeper is not None)
                report = Report(environment=environment, command=command, drawn=drawn)
                if keeper is not None:
                    keeper.environment = report.environment
                waive = partial(apply, report, known, day)
                climb = _Climb(run, report, chosen, waive, on_rung, watcher or Watcher())
                if not options.only_call:
                    ahead.enter_context(steps_ahead(run))
                climb.all()
                if before is not None and not model.changed:
                    report.costs = _costs(run, before, text)
                report.environment = completed(report.environment, run)
                report.changed = model.altered()
                climb.over = True
            except KeyboardInterrupt as error:
                if climb is None or not interrupted_report:
                    raise
                report.environment = completed(report.environment, run, wait=False)
                climb.interrupted(signal_of(error))
            finally:
                ahead.close()
                run.close()
                if before is not None:
                    before.close()
    except KeyboardInterrupt as error:
        if not interrupted_report or (climb is not None and not climb.over):
            raise
        if climb is None:
            report = Report(environment=unknown_environment(path, kernel, host, options), command=command)
            report.drawn = DrawnData(seed=options.seed) if isinstance(path, Drawn) else None
            report.ended_by, report.not_climbed = signal_of(error), tuple(asked)
    if keeper is not None and report.rungs:
        report.rungs[-1].note(keeper.words)
    apply(report, known, day)
    report.seconds = time.perf_counter() - start
    return report


def _costs(run: Run, source: Model, text: Text | None) -> QuantizationCosts:
    """The costs of the quantization, where a budget leaves time for them."""
    if not run.budget.over:
        return measure(run, source, text)
    return QuantizationCosts(source=source.info(), left=(("costs", run.budget.words),))


class _FirstFailure(BaseException):
    """The rung under way has a failure that no waiver covers, at which `Options.exit_first` ends the run. No rung takes
    it for an error of its own."""


class _Climb:
    """The climb of some rungs, in order, into a report.

    Args:
        waive: waives failures of the report, and of the rungs under way that it is given.
    """

    def __init__(
        self, run: Run, report: Report, rungs: Sequence[Rung], waive: Callable[[Sequence[RungResult]], None],
        on_rung: Callable[[Report, RungResult], None] | None, watcher: Watcher,
    ) -> None:  # fmt: skip
        self._run, self._report, self._rungs, self._waive = run, report, rungs, waive
        self._on_rung, self._watcher = on_rung, watcher
        self._under_way: RungResult | None = None
        #: Failures of the rung under way: those that were counted, and recorded ones that were told.
        self._counted = self._told = 0
        #: Nothing is left to do but to close what was opened.
        self.over = False
        run.tick = self._look

    def all(self) -> None:
        """Climb the rungs. The report is whole after each."""
        for i, rung in enumerate(self._rungs):
            if self._run.budget.over:
                self._end("budget", i)
                return
            self._counted = self._told = 0
            self._run.budget.share(1 if rung.whole else sum(not r.whole for r in self._rungs[i:]))
            self._watcher.begins(self._report, rung)
            self._under_way = rung.empty()
            result, stopped = self._one(rung, self._under_way)
            self._tell()
            self._report.rungs.append(result)
            self._under_way = None
            self._waive(())
            self._report.environment = completed(self._report.environment, self._run, wait=False)
            if self._run.model.changed:
                result.fault = None  # it came of this, and this is said once
                return
            self._watcher.ends(self._report, result)
            if self._on_rung is not None:
                self._on_rung(self._report, result)
            more = i + 1 < len(self._rungs)
            if stopped or (more and result.verdict == "failed" and self._run.options.exit_first):
                self._end("first failure", i + 1)
                return
        if self._run.budget.cut:
            self._end("budget", len(self._rungs))

    def _end(self, by: EndedBy, begun: int) -> None:
        """The run is ended when so many rungs were begun."""
        self._report.ended_by = by
        self._report.not_climbed = tuple(rung.name for rung in self._rungs[begun:])

    def _one(self, rung: Rung, result: RungResult) -> tuple[RungResult, bool]:
        """One rung, and whether its first failure ended it. Where it is broken off, the result says why, and what was
        found before is not lost."""
        try:
            return rung.climb(self._run, result), False
        except _FirstFailure:
            self._run.close()
            result.fault, result.fault_culprit = "ended at its first failure (-x)", "coverage"
            return result, True
        except HarnessError as error:
            if not isinstance(error, EnvironmentFault) and not self._run.model.changed:
                raise
            self._run.close()  # the next rung gets a fresh process
            result.fault = str(error)
            result.fault_culprit = error.culprit if isinstance(error, EnvironmentFault) else "file"
            return result, False

    def _look(self) -> None:
        """Tell of the failures of the rung that is under way. Raises _FirstFailure where one ends the run."""
        self._tell()
        result = self._under_way
        if result is not None and self._run.options.exit_first and result.n_failures != result.n_waived:
            raise _FirstFailure

    def _tell(self) -> None:
        """Tell of each failure of the rung that is under way, once it is known."""
        result = self._under_way
        if result is None or result.n_failures == self._counted:
            return
        self._counted = result.n_failures
        self._waive((result,))
        told, self._told = self._told, len(result.failures)
        for failure in result.failures[told:]:
            self._watcher.failed(result, failure)

    def interrupted(self, signal: EndedBy) -> None:
        """Keep what the rung under way has found, which is no pass, and name those that were not begun."""
        report, result = self._report, self._under_way
        if self.over:
            return
        self.over = True
        if result is not None and all(result is not rung for rung in report.rungs):
            result.fault, result.fault_culprit = f"interrupted by {signal} before its end", "coverage"
            report.rungs.append(result)
        report.ended_by = signal
        report.not_climbed = tuple(rung.name for rung in self._rungs[len(report.rungs) :])
        changed = self._run.model.changed
        report.changed = (
            "its inode says so; it was not read again, because the run was interrupted" if changed else None
        )
