"""What a run that has ended means for its cell. A pass is exit code 0 and a report that says verified at all four
rungs: anything less, or anything that does not fit together, is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..gguf import printable
from ..report.json_report import SCHEMA_VERSION, read
from ..results import Environment, GemmRecord, Report
from ..rungs import RUNGS
from ..support.errors import EXIT_ENVIRONMENT, EXIT_MALFORMED, EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED
from ..support.supervised import Ended, signal_name
from .records import Cell, Key, Measure, Outcome

#: Bytes of JSON that are read.
MOST_REPORT = 1 << 28
_WORDS = 400
#: How `gguf_verify.support.errors.say` begins a line.
_OURS = "gguf-verify: "

_BY_EXIT = {
    EXIT_MISMATCH: Outcome.MISMATCH, EXIT_ENVIRONMENT: Outcome.BROKEN_OFF, EXIT_MALFORMED: Outcome.MALFORMED,
    EXIT_UNVERIFIED: Outcome.UNVERIFIED,
}  # fmt: skip


class _Unreadable(Exception):
    """The report is none."""


def broken_off(key: Key, words: str, exit_code: int | None = None, seconds: float = 0.0) -> Cell:
    """A cell that was not run to its end."""
    return Cell(key, Outcome.BROKEN_OFF, _line(words), exit_code, seconds)


def cell_of(key: Key, ended: Ended, path: Path, time_limit: float, version: str | None, keep_all: bool) -> Cell:
    """The record of a run.

    Args:
        path: of its JSON report, if it wrote one.
        version: of llama-cpp-python that it must have run with; None where that does not matter.
        keep_all: keep the report of a pass, too.
    """
    raw, report, flaw = None, None, ""
    try:
        raw, report = _read(path)
        facts = _facts(report)
    except _Unreadable as error:
        raw, report, flaw, facts = None, None, str(error), {}
    outcome, words = _judge(ended, raw, report, flaw, time_limit)
    ran_with = facts.get("versions", {}).get("llama-cpp-python")
    if report is not None and version is not None and ran_with != version:
        outcome, words = Outcome.BROKEN_OFF, f"ran with llama-cpp-python {ran_with}, not with {version}"
    code = None if ended.exit_code is None or ended.exit_code < 0 else ended.exit_code
    kept = raw if keep_all or outcome is not Outcome.VERIFIED else None
    return Cell(key, outcome, _line(words), code, ended.seconds, report=kept, **facts)


def _judge(
    ended: Ended, raw: dict[str, Any] | None, report: Report | None, flaw: str, time_limit: float
) -> tuple[Outcome, str]:
    code = ended.exit_code
    last = f": {ended.last_line.removeprefix(_OURS)}" if ended.last_line else ""
    if code is None:
        return Outcome.TIMED_OUT, f"not done within {time_limit:g} s{last}"
    if code < 0:
        return Outcome.CRASHED, f"died of {signal_name(code)}{last}"
    if code not in (EXIT_VERIFIED, *_BY_EXIT):
        return Outcome.BROKEN_OFF, f"exit code {code}{last}"
    if raw is None or report is None:
        if code == EXIT_VERIFIED:
            return Outcome.UNVERIFIED, f"exit code 0, but {flaw}"
        if code == EXIT_MISMATCH and not ended.last_line.startswith(_OURS):  # Python's own exit code for any error
            return Outcome.BROKEN_OFF, f"exit code 1 and no report{last}"
        return _BY_EXIT[code], last.removeprefix(": ") or f"exit code {code} and not a word"
    verdict = raw.get("verdict")
    if code != EXIT_VERIFIED:
        contradicts = f"exit code {code}, but its report says verified" if verdict == Outcome.VERIFIED else ""
        return _BY_EXIT[code], contradicts or _words(report) or last.removeprefix(": ")
    if verdict != Outcome.VERIFIED:
        known = {o.value: o for o in (Outcome.MISMATCH, Outcome.BROKEN_OFF, Outcome.UNVERIFIED)}
        return known.get(
            str(verdict), Outcome.UNVERIFIED
        ), f'exit code 0, but its report says "{printable(str(verdict), 60)}"'
    climbed = {rung.name: rung.verdict for rung in report.rungs}
    if lacking := [name for name in RUNGS if climbed.get(name) != "passed"]:
        return Outcome.UNVERIFIED, f"its report says verified, but not that these passed: {', '.join(lacking)}"
    if (
        raw.get("exit_code") != EXIT_VERIFIED
        or report.verdict != "verified"
        or any(r.failures or r.unverified or r.fault for r in report.rungs)
    ):
        return Outcome.UNVERIFIED, "its report says verified and contradicts itself"
    return Outcome.VERIFIED, ""


def _words(report: Report) -> str:
    """The first thing that is wrong, and how much more there is."""
    for rung in report.rungs:
        if rung.failures:
            more = f" (and {rung.n_failures - 1:,} more)" if rung.n_failures > 1 else ""
            return f"{rung.name}: {rung.failures[0].what}{more}"
    for rung in report.rungs:
        if rung.fault:
            return f"{rung.name}: {rung.fault}"
    for rung in report.rungs:
        if left := rung.unverified:
            more = f" (and {len(left) - 1:,} more)" if len(left) > 1 else ""
            return f"{rung.name}: {left[0].name}: {left[0].why}{more}"
    return ", ".join(f"{rung.name} {rung.verdict}" for rung in report.rungs)


def _read(path: Path) -> tuple[dict[str, Any], Report]:
    """Raises _Unreadable."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_REPORT + 1)
        if len(raw) > MOST_REPORT:
            raise _Unreadable("its report is larger than any")
        plain = json.loads(raw)
    except FileNotFoundError:
        raise _Unreadable("it wrote no report") from None
    except (OSError, ValueError, RecursionError, MemoryError):
        raise _Unreadable("its report is no JSON") from None
    try:
        return plain, read(plain)
    except ValueError as error:
        raise _Unreadable(f"its report is none of schema {SCHEMA_VERSION}: {error}") from None


def _facts(report: Report) -> dict[str, Any]:
    """What a cell holds of a report. Raises _Unreadable where it has a rung that does not exist."""
    measures: list[Measure] = []
    figures: dict[str, float] = {}
    gemms: dict[str, float] = {}
    for rung in report.rungs:
        if rung.name not in RUNGS:
            raise _Unreadable("its report lacks what a report has")
        measures += [Measure(rung.name, who, w.utilisation, w.score, w.where) for who, w in rung.worst.items()]
        figures |= {f"{rung.name}: {name}": float(value) for name, value in rung.figures.items()}
        for record in rung.details:
            # not (a <= b): a NaN stays
            if isinstance(record, GemmRecord) and not record.own <= gemms.get(record.tensor, -1.0):
                gemms[record.tensor] = record.own
    return {
        "rung_seconds": {rung.name: rung.seconds for rung in report.rungs}, "versions": _versions(report.environment),
        "host": report.environment.host.words, "measures": tuple(measures), "figures": figures, "gemms": gemms,
    }  # fmt: skip


def _versions(env: Environment) -> dict[str, str]:
    """Name → version, of everything that has one."""
    v, host = env.versions, env.host
    found = {
        "gguf-verify": v.gguf_verify, "llama-cpp-python": v.llama_cpp_python, "llama.cpp": v.llama_cpp, "ggml": v.ggml,
        "llama.cpp build": v.llama_build, "python": v.python, "numpy": v.numpy, "gguf": v.gguf,
        "reference": env.reference.where, "platform": v.platform, "CUDA driver": host.driver, "NVRTC": host.nvrtc,
        "CuPy": host.cupy, "C++ compiler": host.compiler,
    }  # fmt: skip
    return {name: version for name, version in found.items() if version}


def _line(words: str) -> str:
    return printable(words, _WORDS)
