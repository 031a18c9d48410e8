"""The outcome of a cell from a run of `gguf-verify verify`.

A pass requires exit code 0 and a consistent report in which every rung passed. Anything less is not a pass.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf_verify.processes.commands import Ended, signal_name
from gguf_verify.read_report import Claims, UnreadableReport, read_report
from gguf_verify.results.failures import Failure
from gguf_verify.results.products import GemmRecord
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.registry import rungs_for
from gguf_verify.support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_INTERRUPTED,
    EXIT_MALFORMED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
)
from gguf_verify.support.text import ELLIPSIS, printable

from .records import Cell, Failed, Key, Measure, Outcome, facts

MOST_CHARACTERS = 400
#: The prefix of lines from `gguf_verify.support.errors.say`.
_OUR_PREFIX = "gguf-verify: "

BY_EXIT_CODE = {
    EXIT_MISMATCH: Outcome.MISMATCH, EXIT_ENVIRONMENT: Outcome.BROKEN_OFF, EXIT_MALFORMED: Outcome.MALFORMED,
    EXIT_UNVERIFIED: Outcome.UNVERIFIED,
}  # fmt: skip
BY_VERDICT = {outcome.value: outcome for outcome in (Outcome.MISMATCH, Outcome.BROKEN_OFF, Outcome.UNVERIFIED)}


#: Signals sent from outside: by the OOM killer, an administrator or a service manager. A crash has other signals. A
#: run that exceeds our own time limit has no exit code.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
#: A cell that was killed this often counts as crashed; otherwise a night might never end.
MOST_KILLS = 3


def killed(ended: Ended) -> str:
    """Describe the signal from outside that ended a run; "" for a run that ended otherwise."""
    for number in _FROM_OUTSIDE:
        if ended.exit_code == -number or (number != signal.SIGKILL and ended.exit_code == 128 + number):
            return f"killed from outside by {number.name}"
    return ""


def killed_for_good(key: Key, how: str, seconds: float) -> Cell:
    """Return the record of a cell whose runs were all killed."""
    return Cell(key, Outcome.CRASHED, f"{how}, like the {MOST_KILLS - 1} runs before; not tried again", None, seconds)


def broken_off(key: Key, reason: str) -> Cell:
    """Return the record of a cell whose run could not be started."""
    return Cell(key, Outcome.BROKEN_OFF, printable(reason, MOST_CHARACTERS))


@dataclass(frozen=True)
class Problem:
    """The first problem in a report: its sentence, and its identity if the report holds records of it."""

    words: str
    failed: Failed | None = None


@dataclass(frozen=True)
class Conclusion:
    """How a cell ended: see `records.Cell`."""

    outcome: Outcome
    reason: str = ""
    failed: Failed | None = None


@dataclass(frozen=True)
class Judged:
    """The decisions of a run's report about its cell.

    Args:
        claimed: its verdict.
        passing: verdicts that pass.
        passed: the conclusion if it claims such a verdict and the exit code agrees.
        problem: the first problem in it.
        differs: how the run differs from the requested one; "" if it does not.
        activity: what the run was doing when it was interrupted, after a comma; None if it was not.
        mismatch: whether both its verdict and its records have a mismatch.
        contents: fields of the cell.
    """

    claimed: str
    passing: tuple[str, ...]
    passed: Conclusion
    problem: Problem
    differs: str
    activity: str | None
    mismatch: bool
    contents: Mapping[str, Any]


def cell_of(
    key: Key, ended: Ended, path: Path, time_limit: float, version: str | None, keep_all: bool, nvrtc: str = ""
) -> Cell:  # fmt: skip
    """Return the record of a run that has ended.

    Args:
        path: the JSON report of the run.
        version: the required version of llama-cpp-python; None for any version.
        keep_all: also keep the reports of passing runs.
        nvrtc: the required version of NVRTC for the kernel; "" for any.
    """

    def read(end: str) -> Judged:
        report, claims = read_report(path)
        return Judged(
            claims.verdict,
            (Outcome.VERIFIED, Outcome.WAIVED),
            _passed(report, claims),
            _first_problem(report, end),
            _another(report, version, nvrtc),
            _activity(report),
            report.verdict == claims.verdict == Outcome.MISMATCH and report.n_failures > 0,
            _contents(report),
        )

    return judged_cell(key, ended, time_limit, keep_all, read)


def judged_cell(key: Key, ended: Ended, time_limit: float, keep_all: bool, read: Callable[[str], Judged]) -> Cell:
    """Return the record of a run that has ended.

    Args:
        read: reads its report, and ends the sentence of its problem with the given words. Raises UnreadableReport.
    """
    late = f"not finished within {time_limit:g} s" if ended.exit_code is None else ""
    try:
        judged, flaw = read(f"; {late}" if late else ""), ""
    except UnreadableReport as error:
        judged, flaw = None, str(error)
    found = _concluded(ended, late, judged, flaw)
    if judged is not None and judged.differs:
        found = Conclusion(Outcome.BROKEN_OFF, judged.differs)
    exit_code = None if ended.exit_code is None or ended.exit_code < 0 else ended.exit_code
    cell = Cell(key, found.outcome, printable(found.reason, MOST_CHARACTERS), exit_code, ended.seconds)
    if judged is None:
        return cell
    if found.outcome is Outcome.TIMED_OUT:  # its measures are incomplete
        return replace(cell, opened=judged.contents.get("opened", {}))
    cell = replace(cell, failed=found.failed, **judged.contents)
    return cell if keep_all or found.outcome is not Outcome.VERIFIED else replace(cell, report=None, graph=None)


def _concluded(ended: Ended, late: str, judged: Judged | None, flaw: str) -> Conclusion:
    """Return the conclusion of a run.

    Args:
        late: says that it exceeded its time limit; "" if it did not.
        flaw: says why there is no report.
    """
    code = ended.exit_code
    last = f": {ended.last_line.removeprefix(_OUR_PREFIX)}" if ended.last_line else ""
    if code is None:
        if judged is None or judged.activity is None:
            return Conclusion(Outcome.TIMED_OUT, late + last)
        if judged.mismatch:  # found before; nothing else of an interrupted run counts
            return Conclusion(Outcome.MISMATCH, judged.problem.words, judged.problem.failed)
        return Conclusion(Outcome.TIMED_OUT, late + judged.activity)
    if code < 0:
        return Conclusion(Outcome.CRASHED, f"died of {signal_name(code)}{last}")
    if code not in (EXIT_VERIFIED, *BY_EXIT_CODE):
        return Conclusion(Outcome.BROKEN_OFF, f"exit code {code}{last}")
    if judged is not None:
        # The conclusion of a run with a report: a pass if it claims one and nothing contradicts it.
        passes = judged.claimed in judged.passing
        if code == EXIT_VERIFIED:
            if passes:
                return judged.passed
            outcome = BY_VERDICT.get(judged.claimed, Outcome.UNVERIFIED)
            return Conclusion(outcome, f'exit code 0, but its report says "{printable(judged.claimed, 60)}"')
        if passes:
            return Conclusion(BY_EXIT_CODE[code], f"exit code {code}, but its report says {judged.claimed}")
        problem = judged.problem
        return Conclusion(BY_EXIT_CODE[code], problem.words or last.removeprefix(": "), problem.failed)
    if code == EXIT_VERIFIED:
        return Conclusion(Outcome.UNVERIFIED, f"exit code 0, but {flaw}")
    if code == EXIT_MISMATCH and not ended.last_line.startswith(_OUR_PREFIX):  # Python's own exit code for any error
        return Conclusion(Outcome.BROKEN_OFF, f"exit code 1 and no report{last}")
    return Conclusion(BY_EXIT_CODE[code], last.removeprefix(": ") or f"exit code {code} without a message")


# ---- a run of the rungs ----------------------------------------------------------------------------------------------


def _another(report: Report, version: str | None, nvrtc: str) -> str:
    """How the run differs from the requested one; "" if it does not."""
    ran_with, used = report.environment.versions.llama_cpp_python, report.environment.host.nvrtc
    if nvrtc and not f"{nvrtc}.".startswith(f"{used}." if used else "?"):
        return f"compiled by NVRTC {used or 'of unknown version'} instead of {nvrtc}"
    if version is not None and ran_with != version:
        return f"ran with llama-cpp-python {ran_with} instead of {version}"
    return ""


def _activity(report: Report) -> str | None:
    if report.ended_by not in EXIT_INTERRUPTED:
        return None
    rung = next((rung.name for rung in report.rungs if rung.fault), None)
    return "" if rung is None else f", in the {rung} rung"


def _contents(report: Report) -> dict[str, Any]:
    """The fields of the cell that the report holds."""
    return {
        "rung_seconds": {rung.name: rung.seconds for rung in report.rungs},
        "versions": _versions(report),
        "host": report.environment.host.words,
        "measures": tuple(
            Measure(rung.name, who, worst.utilisation, worst.score, worst.where, worst.of_kernel)
            for rung in report.rungs
            for who, worst in rung.worst.items()
        ),
        "figures": {f"{rung.name}: {name}": value for rung in report.rungs for name, value in rung.figures.items()},
        "gemms": _gemms(report),
        "report": report,
        "opened": {path: sha256 or "" for path, sha256 in report.environment.kernel.opened.files.items()},
    }


def _passed(report: Report, claims: Claims) -> Conclusion:
    """Return the conclusion of a run with exit code 0 whose report claims a pass."""
    if claims.verdict == Outcome.WAIVED:
        return Conclusion(*_waived(report, claims))
    if flaw := _flaw(report, claims):
        return Conclusion(Outcome.UNVERIFIED, flaw)
    return Conclusion(Outcome.VERIFIED, "; ".join([report.words] * bool(report.scope) + _never_ran(report)))


def _never_ran(report: Report) -> list[str]:
    """The first place of the kernel's code that no call executed, and the number of others; [] for none."""
    places, coverage = report.not_run, report.environment.kernel.coverage
    return [f"{places[0].words}{more(coverage.n_never)}"] if places and coverage else []


def _flaw(report: Report, claims: Claims) -> str:
    """Describe what contradicts a report that says verified; "" for nothing."""
    passed = {rung.name for rung in claims.rungs if rung.verdict == "passed"}
    if lacking := [name for name in rungs_for(report.environment.kernel.computes) if name not in passed]:
        return f"its report says verified, but not that these rungs passed: {', '.join(lacking)}"
    contradicted = any(
        rung.verdict != "passed" or rung.failures or rung.unverified or rung.fault for rung in report.rungs
    )
    if contradicted or claims.exit_code != EXIT_VERIFIED or report.verdict != claims.verdict:
        return "its report says verified and contradicts itself"
    return ""


def _waived(report: Report, claims: Claims) -> tuple[Outcome, str]:
    """Return the outcome of a run with exit code 0 whose report says that every failure is waived."""
    stated = {rung.name: rung.verdict for rung in claims.rungs}
    if lacking := [
        name for name in rungs_for(report.environment.kernel.computes) if stated.get(name) not in ("passed", "waived")
    ]:
        return Outcome.UNVERIFIED, f"its report says waived, but not that these rungs passed: {', '.join(lacking)}"
    derived = {rung.name: rung.verdict for rung in report.rungs}
    applied = [use for use in report.waivers if use.state == "applied"]
    agrees = report.verdict == claims.verdict and claims.exit_code == EXIT_VERIFIED
    if derived != stated or not agrees or sum(use.failures for use in applied) != report.n_waived:
        return Outcome.UNVERIFIED, "its report says waived and contradicts itself"
    return Outcome.WAIVED, "; ".join(use.words for use in applied)


def _first_problem(report: Report, end: str) -> Problem:
    """The first problem, the number of others, and the culprits. Only the problem is shortened."""
    found = _problem(report)
    who = (f"; {report.at_fault}" if report.culprits else "") + end
    problem, room = found.words, MOST_CHARACTERS - len(who) - 1
    if len(printable(problem)) > room:
        problem = problem[:room]
        while len(printable(problem)) > room:
            problem = problem[:-1]
        problem += ELLIPSIS
    return Problem(problem + who, found.failed)


def _problem(report: Report) -> Problem:
    if report.fault:
        return Problem(report.fault, Failed("run", kind="file changed"))
    expired = "".join(f" (a waiver expired on {use.until})" for use in report.waivers if use.state == "expired")
    for rung in report.rungs:
        if counting := [f for f in rung.failures if f.tensor not in rung.waived]:
            return _mismatch(rung, counting[0], expired)
    if report.ended_by == "budget":
        return Problem(report.unfinished or "", Failed("run", kind="budget"))
    for rung in report.rungs:
        if rung.fault:
            failed = Failed(rung.name, place=facts(rung.fault), kind=f"broken off, {rung.fault_culprit}")
            return Problem(f"{rung.name}: {rung.fault}", failed)
    for rung in report.rungs:
        if rung.unverified:
            first, n = rung.unverified[0], len(rung.unverified)
            failed = Failed(rung.name, first.tensor, first.name, f"not verified, {first.culprit}", n)
            return Problem(f"{rung.name}: {first.title}: {first.why}{more(n)}", failed)
    return Problem(", ".join(f"{rung.name} {rung.verdict}" for rung in report.rungs))


def _mismatch(rung: RungResult, first: Failure, end: str) -> Problem:
    """A mismatch in a rung, with its explanation in front: the ids of faults or the names of definitions."""
    named: list[str] = []
    if (found := rung.diagnosis) is not None:
        named = [fault.id for fault in found.faults] or [*found.definitions] or [found.verdict]
    n = rung.n_failures - rung.n_waived
    cause = f"{'cause unknown' if named == ['unknown'] else ', '.join(named)}: " if named else ""
    at = {name: getattr(first, name) for name in ("row", "block", "token")}
    place = ", ".join(f"{name} {value}" for name, value in at.items() if value is not None)
    failed = Failed(rung.name, first.tensor, place or facts(first.what), ", ".join([first.culprit, *named]), n)
    return Problem(f"{rung.name}: {cause}{first.what}{more(n)}{end}", failed)


def more(n: int) -> str:
    """Return " (and N more)" if there are more than one."""
    return f" (and {n - 1:,} more)" if n > 1 else ""


def _versions(report: Report) -> dict[str, str]:
    """Name → version of everything that may affect a result."""
    versions, host = report.environment.versions, report.environment.host
    of_host = {"C++ compiler": host.compiler, "CUDA driver": host.driver, "NVRTC": host.nvrtc, "CuPy": host.cupy}
    return {
        "gguf-verify": versions.gguf_verify, "llama-cpp-python": versions.llama_cpp_python,
        "llama.cpp": versions.llama_cpp, "ggml": versions.ggml, "llama.cpp build": versions.llama_build,
        "python": versions.python, "numpy": versions.numpy, "gguf": versions.gguf,
        "reference": report.environment.reference.where, "platform": versions.platform,
    } | {name: version for name, version in of_host.items() if version}  # fmt: skip


def _gemms(report: Report) -> dict[str, float]:
    """Tensor → the kernel's largest utilisation in the layers rung."""
    gemms: dict[str, float] = {}
    for rung in report.rungs:
        for record in rung.details:
            if isinstance(record, GemmRecord):
                gemms[record.tensor] = max(gemms.get(record.tensor, 0.0), record.worst)
    return gemms
