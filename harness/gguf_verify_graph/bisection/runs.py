"""A candidate's run: `gguf-verify backend` in its own process, and its outcome.

The child's output is not trusted: a build is good or bad only if the exit code, the report and the verdict that follows
from the report's records agree, and the report is about this model and this build.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gguf_verify.backend_results import GraphReport
from gguf_verify.bisection_results import Seen, Tried
from gguf_verify.processes.commands import Ended, Processes, signal_name
from gguf_verify.support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, EnvironmentFault
from gguf_verify.support.files import open_regular
from gguf_verify.support.text import printable
from gguf_verify_nightly.requirements import package_parent, package_path

from .candidates import Candidate

if TYPE_CHECKING:  # it imports llama-cpp-python, which builds in folders do not need
    from .versions import Versions

_MOST_BYTES, _MOST_SEEN, _MOST_CHARACTERS = 1 << 26, 1000, 400
#: Seconds for a run to end by itself after its time limit.
_GRACE = 10.0
#: Prefix of lines from `gguf_verify.support.errors.say`.
_OUR_PREFIX = "gguf-verify: "
#: Tries a candidate.
Runner = Callable[[Candidate], Tried]


class _Python(NamedTuple):
    """The Python that runs a candidate, the version of llama-cpp-python that it reports, and whether it is another
    Python than this one."""

    executable: str
    version: str
    separate: bool


class Runs:
    """The runs of a bisection, one at a time.

    Args:
        model: the model's file.
        sha256: digests of its parts, which each report must have.
        arguments: arguments of `gguf-verify backend`, without the model and the build.
        processes: runs the commands.
        versions: makes the Pythons of versions.
        time_limit: seconds per run.
        harness: command to run in place of `python -m gguf_verify backend`.
    """

    def __init__(
        self,
        model: Path,
        sha256: tuple[str, ...],
        arguments: Sequence[str],
        processes: Processes,
        versions: Callable[[], Versions],
        time_limit: float,
        harness: Sequence[str] = (),
    ) -> None:
        self._model, self._sha256, self._arguments = os.path.abspath(model), sha256, arguments
        self._processes, self._versions, self._time_limit = processes, versions, time_limit
        self._harness = harness

    def __call__(self, candidate: Candidate) -> Tried:
        """Try a candidate. Raises EnvironmentFault if no run can be started, whatever the candidate."""
        python = _Python(sys.executable, "none", separate=False)
        if candidate.path is None:
            try:
                made = self._versions().interpreter(candidate.name)
                python = _Python(made.python, made.llama_version, made.separate)
            except EnvironmentFault as error:
                return Tried(outcome="skipped", exit_code=None, why=str(error))
        work = None
        try:
            work = Path(tempfile.mkdtemp(prefix="bisect-"))
            return self._run(candidate, python, work)
        except OSError as error:
            raise EnvironmentFault(f"cannot start a run: {error.strerror}") from None
        finally:
            if work is not None:
                shutil.rmtree(work, ignore_errors=True)

    def _run(self, candidate: Candidate, python: _Python, work: Path) -> Tried:
        report, temporary, package = work / "report.json", work / "tmp", work / "package"
        temporary.mkdir()  # a run that is killed leaves its temporary files
        package.mkdir()
        build = [] if candidate.path is None else ["--llama", str(candidate.path)]
        harness = self._harness or [python.executable, "-P", "-m", "gguf_verify", "backend"]
        command = [*harness, self._model, *self._arguments, *build, "-o", str(report)]
        with ExitStack() as stack:
            # another Python sees only this package; this one also keeps its own path
            seen = [stack.enter_context(package_path(package)) if python.separate else str(package_parent())]
            if not python.separate and (own := os.environ.get("PYTHONPATH")):
                seen.append(own)
            env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(seen)}
            env.pop("PYTHONHOME", None)
            ended = self._processes.run(command, self._time_limit, env, grace=_GRACE)
        return tried(ended, report, self._time_limit, self._sha256, candidate, python.version)


def tried(
    ended: Ended, path: Path, time_limit: float, sha256: tuple[str, ...], candidate: Candidate, version: str
) -> Tried:
    """Return the outcome of a finished run.

    Args:
        path: its JSON report.
        version: of llama-cpp-python, which the report must have; "none" for a build in a folder.
    """
    code = ended.exit_code
    if code is None:
        return _skipped(ended, None, f"not finished within {time_limit:g} s")
    if code < 0:
        return _skipped(ended, None, f"died of {signal_name(code)}")
    if code not in (EXIT_VERIFIED, EXIT_MISMATCH, EXIT_UNVERIFIED):
        return _skipped(ended, code, _said(ended) or f"exit code {code}")
    report = _read(path)
    if isinstance(report, str):
        said = f": {_said(ended)}" if ended.last_line else ""
        return _skipped(ended, code, f"exit code {code}, but {report}{said}")
    if code == EXIT_UNVERIFIED:
        return _skipped(ended, code, _unverified(report) or _said(ended))
    if why := _contradiction(report, code, sha256, candidate, version):
        return _skipped(ended, code, f"exit code {code}, but {why}")
    return Tried(
        outcome="good" if code == EXIT_VERIFIED else "bad",
        exit_code=code,
        seconds=ended.seconds,
        build=f"llama.cpp {report.build.llama_cpp}, ggml {report.build.ggml}",
        first=report.wrong[0] if report.wrong else None,
        seen=tuple(
            Seen(
                operation=each.operation,
                device=each.device,
                nodes=each.nodes,
                wrong=each.wrong,
                utilisation=each.utilisation,
                exact=each.exact,
            )
            for each in report.operations[:_MOST_SEEN]
        ),
        graph=() if report.ended_by or report.fault else report.graph,  # an incomplete graph cannot be compared
    )


def _skipped(ended: Ended, code: int | None, why: str) -> Tried:
    return Tried(outcome="skipped", exit_code=code, why=printable(why, _MOST_CHARACTERS), seconds=ended.seconds)


def _said(ended: Ended) -> str:
    return ended.last_line.removeprefix(_OUR_PREFIX)


def _unverified(report: GraphReport) -> str:
    if not report.not_judged:
        return "not everything could be verified"
    first = report.not_judged[0]
    return f"not judged: {first.operation} on {first.device}: {first.why}"


def _contradiction(report: GraphReport, code: int, sha256: tuple[str, ...], candidate: Candidate, version: str) -> str:
    """Describe a contradiction between a report and the rest; "" if there is none."""
    if report.sha256 != sha256:
        return "its report is about another file"
    if candidate.path is None and report.build.llama_cpp_python != version:
        return f"it ran with llama-cpp-python {report.build.llama_cpp_python}"
    if candidate.path is not None and report.build.folder != printable(str(candidate.path), 400):
        return f"it ran with the libraries in {report.build.folder}"
    wrong = sum(each.wrong for each in report.operations)
    bad = code == EXIT_MISMATCH
    if report.exit_code != code or bool(wrong) != bad or bool(report.wrong) != bad:
        return f"the records of its report say {report.verdict}"
    return ""


def _read(path: Path) -> GraphReport | str:
    """Return the report, or why there is none."""
    try:
        with open_regular(path) as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError:
        return "it wrote no report"
    if len(raw) > _MOST_BYTES:
        return f"its report has more than {_MOST_BYTES:,} bytes"
    try:
        document: Any = msgspec.json.decode(raw)
        report = msgspec.convert(document, GraphReport, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        return f"its report cannot be read: {printable(str(error), 200)}"
    if document.get("kind") != "graph" or document.get("verdict") != report.verdict:
        return "its report contradicts itself"
    return report
