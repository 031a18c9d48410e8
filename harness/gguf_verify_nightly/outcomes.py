"""The outcome of a cell from a run of `gguf-verify verify`.

A pass requires exit code 0 and a consistent report in which every rung passed. Anything less is not a pass.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gguf_verify.processes.commands import Ended, signal_name
from gguf_verify.read_report import Claims, UnreadableReport, read_report
from gguf_verify.results.products import GemmRecord
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs import rungs_for
from gguf_verify.support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_INTERRUPTED,
    EXIT_MALFORMED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
)
from gguf_verify.support.text import ELLIPSIS, printable

from .records import Cell, Key, Measure, Outcome

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
    report = claims = None
    try:
        report, claims = read_report(path)
        flaw = ""
    except UnreadableReport as error:
        flaw = str(error)
    outcome, reason = concluded(
        ended, time_limit, flaw,
        lambda how, last: _timed_out(how, report, claims, last),
        None if report is None or claims is None else partial(_with_report, report, claims),
    )  # fmt: skip
    versions = {} if report is None else _versions(report)
    ran_with = versions.get("llama-cpp-python")
    if report is not None and version is not None and ran_with != version:
        outcome, reason = Outcome.BROKEN_OFF, f"ran with llama-cpp-python {ran_with} instead of {version}"
    used = "" if report is None else report.environment.host.nvrtc
    if report is not None and nvrtc and not f"{nvrtc}.".startswith(f"{used}." if used else "?"):
        outcome, reason = Outcome.BROKEN_OFF, f"compiled by NVRTC {used or 'of unknown version'} instead of {nvrtc}"
    reason, code = printable(reason, MOST_CHARACTERS), exit_code(ended)
    if report is None or outcome is Outcome.TIMED_OUT:  # its measures are incomplete
        return Cell(key, outcome, reason, code, ended.seconds, opened=_opened(report))
    return Cell(
        key, outcome, reason, code, ended.seconds, {rung.name: rung.seconds for rung in report.rungs}, versions,
        report.environment.host.words, _measures(report),
        {f"{rung.name}: {name}": value for rung in report.rungs for name, value in rung.figures.items()},
        _gemms(report), report if keep_all or outcome is not Outcome.VERIFIED else None, opened=_opened(report),
    )  # fmt: skip


def _opened(report: Report | None) -> dict[str, str]:
    """The files that the kernel opened, with their digests."""
    files = {} if report is None else report.environment.kernel.opened.files
    return {path: sha256 or "" for path, sha256 in files.items()}


def concluded(
    ended: Ended, time_limit: float, flaw: str, timed_out: Callable[[str, str], tuple[Outcome, str]],
    with_report: Callable[[int, str], tuple[Outcome, str]] | None,
) -> tuple[Outcome, str]:  # fmt: skip
    """Return the outcome of a run and its reason.

    Args:
        flaw: why there is no report.
        timed_out: judges a run that exceeded its time limit, from a description of that and the last line of output.
        with_report: judges a run with a report, from its exit code and the last line of output; None without a report.
    """
    code = ended.exit_code
    last = f": {ended.last_line.removeprefix(_OUR_PREFIX)}" if ended.last_line else ""
    if code is None:
        return timed_out(f"not finished within {time_limit:g} s", last)
    if code < 0:
        return Outcome.CRASHED, f"died of {signal_name(code)}{last}"
    if code not in (EXIT_VERIFIED, *BY_EXIT_CODE):
        return Outcome.BROKEN_OFF, f"exit code {code}{last}"
    if with_report is None:
        return _without_report(ended, code, flaw, last)
    return with_report(code, last)


def gated(
    code: int, last: str, claimed: str, passing: Sequence[str], problem: Callable[[], str], flaw: Callable[[], str]
) -> tuple[Outcome, str]:  # fmt: skip
    """Return the outcome of a run with a report: `VERIFIED` if it claims a passing verdict and nothing contradicts it.

    Args:
        code, last: its exit code and the last line of its output.
        claimed: the verdict in its report.
        passing: the verdicts that pass.
        problem: describes the first problem in the report; "" for none.
        flaw: describes what in the report contradicts a pass; "" for nothing.
    """
    if code != EXIT_VERIFIED:
        if claimed in passing:
            return BY_EXIT_CODE[code], f"exit code {code}, but its report says {claimed}"
        return BY_EXIT_CODE[code], problem() or last.removeprefix(": ")
    if claimed not in passing:
        return BY_VERDICT.get(
            claimed, Outcome.UNVERIFIED
        ), f'exit code 0, but its report says "{printable(claimed, 60)}"'
    found = flaw()
    return (Outcome.UNVERIFIED, found) if found else (Outcome.VERIFIED, "")


def out_of_time(how: str, last: str, wrote: bool, mismatch: str, where: str) -> tuple[Outcome, str]:
    """Return the outcome of a run that exceeded its time limit. Mismatches found before count; nothing else is a pass.

    Args:
        wrote: whether it ended by itself on request and wrote its report.
        mismatch: the first mismatch, if both the report's verdict and its records have one; "" otherwise.
        where: its activity at the end, after a comma; "" if not known.
    """
    if not wrote:
        return Outcome.TIMED_OUT, how + last
    return (Outcome.MISMATCH, mismatch) if mismatch else (Outcome.TIMED_OUT, how + where)


def exit_code(ended: Ended) -> int | None:
    """The exit code of a run that ended by itself, otherwise None."""
    return None if ended.exit_code is None or ended.exit_code < 0 else ended.exit_code


def _timed_out(how: str, report: Report | None, claims: Claims | None, last: str) -> tuple[Outcome, str]:
    if report is None or claims is None or report.ended_by not in EXIT_INTERRUPTED:
        return out_of_time(how, last, False, "", "")
    wrong = report.verdict == claims.verdict == Outcome.MISMATCH.value and report.n_failures
    under_way = next((rung.name for rung in report.rungs if rung.fault), None)
    return out_of_time(
        how, last, True, _first_problem(report, f"; {how}") if wrong else "",
        "" if under_way is None else f", in the {under_way} rung",
    )  # fmt: skip


def _without_report(ended: Ended, code: int, flaw: str, last: str) -> tuple[Outcome, str]:
    if code == EXIT_VERIFIED:
        return Outcome.UNVERIFIED, f"exit code 0, but {flaw}"
    if code == EXIT_MISMATCH and not ended.last_line.startswith(_OUR_PREFIX):  # Python's own exit code for any error
        return Outcome.BROKEN_OFF, f"exit code 1 and no report{last}"
    return BY_EXIT_CODE[code], last.removeprefix(": ") or f"exit code {code} without a message"


def _with_report(report: Report, claims: Claims, code: int, last: str) -> tuple[Outcome, str]:
    waived = claims.verdict == Outcome.WAIVED
    outcome, reason = gated(
        code, last, claims.verdict, (Outcome.VERIFIED, Outcome.WAIVED), lambda: _first_problem(report),
        lambda: "" if waived else _flaw(report, claims),
    )  # fmt: skip
    if waived and outcome is Outcome.VERIFIED:
        return _waived(report, claims)
    return outcome, reason or (report.words if outcome is Outcome.VERIFIED and report.scope else "")


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


def _first_problem(report: Report, end: str = "") -> str:
    """Describe the first problem, count the others, and say what is at fault. Only the problem is shortened."""
    who = (f"; {report.at_fault}" if report.culprits else "") + end
    problem, room = _problem(report), MOST_CHARACTERS - len(who) - 1
    if len(printable(problem)) > room:
        problem = problem[:room]
        while len(printable(problem)) > room:
            problem = problem[:-1]
        problem += ELLIPSIS
    return problem + who


def _problem(report: Report) -> str:
    if report.fault:
        return report.fault
    expired = "".join(f" (a waiver expired on {use.until})" for use in report.waivers if use.state == "expired")
    for rung in report.rungs:
        counting = [f for f in rung.failures if f.tensor not in rung.waived]
        if counting:
            return f"{rung.name}: {counting[0].what}{more(rung.n_failures - rung.n_waived)}{_diagnosis(rung)}{expired}"
    if report.ended_by == "budget":
        return report.unfinished or ""
    for rung in report.rungs:
        if rung.fault:
            return f"{rung.name}: {rung.fault}"
    for rung in report.rungs:
        if rung.unverified:
            first = rung.unverified[0]
            return f"{rung.name}: {first.title}: {first.why}{more(len(rung.unverified))}"
    return ", ".join(f"{rung.name} {rung.verdict}" for rung in report.rungs)


def _diagnosis(rung: RungResult) -> str:
    """The explanation of a rung's failures: the ids of faults or the names of definitions."""
    found = rung.diagnosis
    if found is None:
        return ""
    named = [fault.id for fault in found.faults] or [*found.definitions] or [found.verdict]
    return f"; diagnosis: {', '.join(named)}"


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


def _measures(report: Report) -> tuple[Measure, ...]:
    return tuple(
        Measure(rung.name, who, worst.utilisation, worst.score, worst.where, worst.of_kernel)
        for rung in report.rungs
        for who, worst in rung.worst.items()
    )


def _gemms(report: Report) -> dict[str, float]:
    """Tensor → the kernel's largest utilisation in the layers rung."""
    gemms: dict[str, float] = {}
    for rung in report.rungs:
        for record in rung.details:
            if isinstance(record, GemmRecord):
                gemms[record.tensor] = max(gemms.get(record.tensor, 0.0), record.worst)
    return gemms
