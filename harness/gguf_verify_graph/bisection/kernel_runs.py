"""A version of NVRTC as a candidate: `gguf-verify MODEL --host gpu` with a kernel that this version compiles.

The run's outcome is determined as in a night (`nightly.outcomes`): a pass is good, a mismatch is bad, and everything
else cannot be tested. The child's output is not trusted.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gguf_verify.bisection_results import FirstFailure, Tried
from gguf_verify.hosts.nvrtc import CHOICE
from gguf_verify.processes.commands import Processes
from gguf_verify.results.report import Report
from gguf_verify.support.errors import EnvironmentFault, say
from gguf_verify.support.text import printable
from gguf_verify_nightly.compilers import Compilers
from gguf_verify_nightly.outcomes import MOST_CHARACTERS, cell_of
from gguf_verify_nightly.records import Cell, Key, Outcome
from gguf_verify_nightly.requirements import package_parent

from .candidates import Candidate

#: Seconds for a run to end by itself after its time limit.
_GRACE = 10.0
#: PyPI's package of CUDA 13 and later.
PACKAGE = "nvidia-cuda-nvrtc"


class KernelRuns:
    """The runs of a bisection over versions of NVRTC, one at a time.

    Args:
        model: the model's file.
        sha256: digests of its parts, which each report must have.
        arguments: arguments of `gguf-verify`, without the model.
        processes: runs the commands, and pip.
        time_limit, install_limit: seconds per run, and per download of a version.
        harness: command to run in place of `python -m gguf_verify verify`.
        fetch: returns the library of a version; None: from PyPI.
    """

    def __init__(
        self,
        model: Path,
        sha256: tuple[str, ...],
        arguments: Sequence[str],
        processes: Processes,
        time_limit: float,
        install_limit: float,
        harness: Sequence[str] = (),
        fetch: Callable[[str], Path] | None = None,
    ) -> None:
        self._model, self._sha256, self._arguments = os.path.abspath(model), sha256, arguments
        self._processes, self._time_limit, self._harness = processes, time_limit, harness
        self._compilers = Compilers(processes, install_limit)
        self._fetch = fetch or self._fetched

    def _fetched(self, version: str) -> Path:
        return self._compilers.ready(version, lambda: say(f"fetching NVRTC {version}"))

    def __call__(self, candidate: Candidate) -> Tried:
        """Try a version. Raises EnvironmentFault if no run can be started, whatever the version."""
        try:
            library = self._fetch(candidate.name)
        except EnvironmentFault as error:
            return Tried(outcome="skipped", exit_code=None, why=printable(str(error), MOST_CHARACTERS))
        work = None
        try:
            work = Path(tempfile.mkdtemp(prefix="bisect-"))
            report, temporary = work / "report.json", work / "tmp"
            temporary.mkdir()  # a run that is killed leaves its temporary files
            harness = self._harness or [sys.executable, "-P", "-m", "gguf_verify", "verify"]
            path = os.pathsep.join(filter(None, [str(package_parent()), os.environ.get("PYTHONPATH", "")]))
            env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path, CHOICE: str(library)}
            env.pop("PYTHONHOME", None)
            command = [*harness, self._model, *self._arguments, "-o", str(report)]
            ended = self._processes.run(command, self._time_limit, env, grace=_GRACE)
            key = Key(os.path.basename(self._model), "", "", "gpu", "", candidate.name)
            cell = cell_of(key, ended, report, self._time_limit, None, True, candidate.name)
        except OSError as error:
            raise EnvironmentFault(f"cannot start a run: {error.strerror}") from None
        finally:
            if work is not None:
                shutil.rmtree(work, ignore_errors=True)
        return tried_kernel(cell, self._sha256)


def tried_kernel(cell: Cell, sha256: tuple[str, ...]) -> Tried:
    """Return the outcome of a run on a model with these digests."""
    report = cell.report
    if cell.outcome not in (Outcome.VERIFIED, Outcome.MISMATCH) or not isinstance(report, Report):
        return _skipped(cell, cell.reason or cell.outcome.value)
    if report.environment.file.sha256 != sha256:
        return _skipped(cell, "its report is about another file")
    host = report.environment.host
    build = f"NVRTC {host.nvrtc}, {printable(host.device, 100)}"
    if cell.outcome is Outcome.VERIFIED:
        return Tried(outcome="good", exit_code=cell.exit_code, seconds=cell.seconds, build=build)
    first = _first(report)
    if first is None or first.culprit != "kernel":
        whose = "without a failure" if first is None else f"whose first failure is not the kernel's: {first.words}"
        return _skipped(cell, f"a mismatch {whose}")
    return Tried(outcome="bad", exit_code=cell.exit_code, seconds=cell.seconds, build=build, failure=first)


def _first(report: Report) -> FirstFailure | None:
    for rung in report.rungs:
        for failure in rung.failures:
            return FirstFailure(
                rung=rung.name,
                tensor=failure.tensor,
                words=printable(failure.what, MOST_CHARACTERS),
                culprit=failure.culprit,
            )
    return None


def _skipped(cell: Cell, why: str) -> Tried:
    return Tried(outcome="skipped", exit_code=cell.exit_code, why=printable(why, MOST_CHARACTERS), seconds=cell.seconds)
