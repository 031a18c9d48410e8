"""One verification from end to end: open the file, climb the rungs, say what was found."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Keeper
from .costs import measure, open_source, read_text
from .formats import ELEMENTS, FORMATS, WeightFormat
from .gguf.matrices import may_be_matrix
from .hosts.base import Host
from .invocation import command_of
from .kernels import DEFAULT_KERNEL, Candidate
from .kernels.shipped import ELEMENT_KERNELS
from .llama.backends import BACKENDS
from .processes import sandbox
from .processes.sandbox import sandboxed
from .results import (
    DrawnData,
    EndedBy,
    Environment,
    Failure,
    FileInfo,
    HostInfo,
    KernelInfo,
    Options,
    ReferenceInfo,
    Report,
    RungResult,
    SandboxInfo,
    Versions,
)
from .rungs import RUNGS, Run, Rung, asked_rungs, known_rungs, rungs_for
from .rungs.drawn import DRAWN_RUNGS, NONE, Drawn, DrawnRun
from .rungs.drawn import NAME as DRAWN_NAME
from .rungs.opening import open_run
from .support.errors import EnvironmentFault, HarnessError, NothingToVerify, UsageError, signal_of
from .support.supported import check_machine
from .support.text import printable
from .support.version import project_version
from .waivers import apply, read_waivers
from .waivers import today as current_day

#: What "verified" says of a kernel that is judged by an oracle of its author.
VERIFIED_BY_ITS_ORACLE = (
    "the kernel computes what an oracle of its author says; how near that is to llama.cpp's product, only the oracle's "
    "distances to the known definitions above tell"
)


class Watcher:
    """What is told of a run while it goes on. Each method does nothing here."""

    def begins(self, report: Report, rung: Rung) -> None:
        """A rung is begun."""

    def failed(self, result: RungResult, failure: Failure) -> None:
        """The first failure of a rung is known; the rung goes on."""

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
    if rungs is None and isinstance(path, Drawn):
        rungs = DRAWN_RUNGS
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
    references = [*BACKENDS, NONE] if isinstance(path, Drawn) else [*BACKENDS]
    if options.reference not in references:
        raise UsageError(f"no reference is called {options.reference}; there are: {', '.join(references)}")
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
        ):
            model = run.model
            chosen = asked_rungs(rungs, run.kernel.computes)
            asked = [rung.name for rung in chosen]
            if options.sanitize and (fault := run.kernel.check_fault()) is not None:
                raise EnvironmentFault(f"--sanitize: {fault}")
            if not any(map(may_be_matrix, model.tensors.values())):
                n = len(model.tensors)
                held = f"none of its {n} tensors is a matrix" if n else "it holds no tensor"
                name = printable(model.path.name)
                raise NothingToVerify(f"nothing to verify in {name}: {held}", "nothing-to-verify")
            before = None
            try:
                run.selected()
                before = None if source is None else open_source(source, model)
                drawn = run.data if isinstance(run, DrawnRun) else None
                report = Report(environment=_environment(run), command=command, drawn=drawn)
                if keeper is not None:
                    keeper.environment = report.environment
                climb = _Climb(run, report, chosen, lambda: apply(report, known, day), on_rung, watcher or Watcher())
                climb.all()
                if before is not None and not model.changed:
                    report.costs = measure(run, before, text)
                report.changed = model.altered()
                climb.over = True
            except KeyboardInterrupt as error:
                if climb is None or not interrupted_report:
                    raise
                climb.interrupted(signal_of(error))
            finally:
                run.close()
                if before is not None:
                    before.close()
    except KeyboardInterrupt as error:
        if not interrupted_report or (climb is not None and not climb.over):
            raise
        if climb is None:
            report = Report(environment=_unknown(path, kernel, host, options), command=command)
            report.drawn = DrawnData(seed=options.seed) if isinstance(path, Drawn) else None
            report.ended_by, report.not_climbed = signal_of(error), tuple(asked)
    if keeper is not None and report.rungs:
        report.rungs[-1].note(keeper.words)
    apply(report, known, day)
    report.seconds = time.perf_counter() - start
    return report


class _Climb:
    """The climb of some rungs, in order, into a report."""

    def __init__(
        self, run: Run, report: Report, rungs: Sequence[Rung], waive: Callable[[], None],
        on_rung: Callable[[Report, RungResult], None] | None, watcher: Watcher,
    ) -> None:  # fmt: skip
        self._run, self._report, self._rungs, self._waive = run, report, rungs, waive
        self._on_rung, self._watcher = on_rung, watcher
        self._under_way: RungResult | None = None
        self._told = False
        #: Nothing is left to do but to close what was opened.
        self.over = False
        run.tick = self._look

    def all(self) -> None:
        """Climb the rungs. The report is whole after each."""
        for i, rung in enumerate(self._rungs):
            self._told = False
            self._watcher.begins(self._report, rung)
            self._under_way = rung.empty()
            result = self._one(rung, self._under_way)
            self._look()
            self._report.rungs.append(result)
            self._under_way = None
            self._waive()
            if self._run.model.changed:
                result.fault = None  # it came of this, and this is said once
                return
            self._watcher.ends(self._report, result)
            if self._on_rung is not None:
                self._on_rung(self._report, result)
            left = self._rungs[i + 1 :]
            if left and result.verdict == "failed" and self._run.options.exit_first:
                self._report.ended_by = "first failure"
                self._report.not_climbed = tuple(rung.name for rung in left)
                return

    def _one(self, rung: Rung, result: RungResult) -> RungResult:
        """One rung. Where it is broken off, the result says why, and what was found before is not lost."""
        try:
            return rung.climb(self._run, result)
        except HarnessError as error:
            if not isinstance(error, EnvironmentFault) and not self._run.model.changed:
                raise
            self._run.close()  # the next rung gets a fresh process
            result.fault = str(error)
            result.fault_culprit = error.culprit if isinstance(error, EnvironmentFault) else "file"
            return result

    def _look(self) -> None:
        """Tell of the first failure of the rung that is under way, once it is known."""
        result = self._under_way
        if result is not None and not self._told and result.failures:
            self._told = True
            self._watcher.failed(result, result.failures[0])

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


#: What a report says of what was not yet asked when a signal ended the run.
UNKNOWN = "unknown"


def _unknown(
    path: Path | str | Drawn, kernel: Candidate | str | Callable[..., Any], host: Host | str, options: Options
) -> Environment:  # fmt: skip
    """The environment of a run that a signal ended before it was known: what was asked for, and no more."""
    where = HostInfo(name=host if isinstance(host, str) else host.name, device=UNKNOWN)
    name = kernel if isinstance(kernel, str) else getattr(kernel, "name", getattr(kernel, "__name__", UNKNOWN))
    try:
        size = 0 if isinstance(path, Drawn) else Path(path).stat().st_size
    except (OSError, ValueError):
        size = 0
    shown = DRAWN_NAME if isinstance(path, Drawn) else str(path)
    return Environment(
        versions=_versions(dict.fromkeys(("llama_cpp_python", "llama_cpp", "ggml", "system"), UNKNOWN)), host=where,
        kernel=KernelInfo(
            name=str(name), definition=UNKNOWN, judged_by=None, verified_means=None, order=UNKNOWN, covers=(),
            element_kernels={}, element_host=where,
        ),
        file=FileInfo(path=shown, size=size, sha256=(), architecture=UNKNOWN, tensor_types={}),
        reference=ReferenceInfo(where=UNKNOWN, definitions={}), sandbox=SandboxInfo(kind="off", by=UNKNOWN),
        options=options,
    )  # fmt: skip


def _versions(of_llama: Mapping[str, str]) -> Versions:
    return Versions(
        gguf_verify=project_version(), python=platform.python_version(), numpy=np.__version__,
        gguf=metadata.version("gguf"), llama_cpp_python=of_llama["llama_cpp_python"],
        llama_cpp=of_llama["llama_cpp"], ggml=of_llama["ggml"], llama_build=of_llama["system"],
        platform=f"{platform.system()} {platform.machine()}", byte_order=sys.byteorder,
    )  # fmt: skip


def _environment(run: Run) -> Environment:
    kernel = run.kernel
    return Environment(
        versions=_versions(run.versions),
        host=kernel.runs_on(),
        kernel=KernelInfo(
            name=kernel.name, definition=kernel.semantics, judged_by=kernel.judged_by,
            verified_means=VERIFIED_BY_ITS_ORACLE if kernel.definition.oracle is not None else None,
            computes=kernel.computes, order=kernel.order_in_words, code=kernel.code,
            covers=tuple(name for name, fmt in FORMATS.items() if kernel.covers(fmt)),
            element_kernels=_element_kernels(run), element_host=kernel.host.info(),
            hints=kernel.hints,
        ),
        file=run.file_info(),
        reference=ReferenceInfo(where=run.backend.describe(), definitions=_llama_definitions(run)),
        sandbox=_sandbox(run),
        options=run.options,
    )  # fmt: skip


def _sandbox(run: Run) -> SandboxInfo:
    """How llama.cpp is confined, and the kernel where that is otherwise."""
    found, of_kernel = sandbox.current(), run.kernel.sandbox
    if of_kernel in (None, found):
        return SandboxInfo(kind=found.kind, by=found.by, missing=found.missing)
    missing = (*found.missing, *(words for words in of_kernel.missing if words not in found.missing))
    return SandboxInfo(kind=of_kernel.kind, by=f"{found.by}; the kernel: {of_kernel.by}", missing=missing)


def _llama_definitions(run: Run) -> dict[str, str]:
    """Type → the definitions of llama.cpp's products with its matrices, in words."""
    held = {t.type.name for t in run.model.tensors.values() if may_be_matrix(t)}
    known: list[WeightFormat] = [*FORMATS.values(), *ELEMENTS.values()]
    return {fmt.name: run.backend.definitions_in_words(fmt) for fmt in known if fmt.name in held}


def _element_kernels(run: Run) -> dict[str, str]:
    """Type → the kernel of its matrices, for types that are not quantized and of which the file holds matrices."""
    kinds = {t.type.weights for t in run.model.tensors.values() if may_be_matrix(t) and not t.type.quantized}
    return {fmt.name: ELEMENT_KERNELS[fmt.name].name for fmt in ELEMENTS.values() if fmt in kinds}
