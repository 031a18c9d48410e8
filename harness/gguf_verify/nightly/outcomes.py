"""What a run that has ended means for its cell. A pass is exit code 0 and a report that says verified at all four
rungs: anything less, or anything that does not fit together, is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..gguf import printable
from ..report.json_report import SCHEMA_VERSION
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
#: Of the header; the rest of it is no version.
_VERSIONS = (
    "gguf-verify", "llama-cpp-python", "llama.cpp", "ggml", "llama.cpp build", "python", "numpy", "gguf", "reference",
    "platform",
)  # fmt: skip


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
    report, flaw = None, ""
    try:
        report = _read(path)
        facts = _facts(report)
    except _Unreadable as error:
        report, flaw, facts = None, str(error), {}
    outcome, words = _judge(ended, report, flaw, time_limit)
    ran_with = facts.get("versions", {}).get("llama-cpp-python")
    if report is not None and version is not None and ran_with != version:
        outcome, words = Outcome.BROKEN_OFF, f"ran with llama-cpp-python {ran_with}, not with {version}"
    code = None if ended.exit_code is None or ended.exit_code < 0 else ended.exit_code
    kept = report if keep_all or outcome is not Outcome.VERIFIED else None
    return Cell(key, outcome, _line(words), code, ended.seconds, report=kept, **facts)


def _judge(ended: Ended, report: dict[str, Any] | None, flaw: str, time_limit: float) -> tuple[Outcome, str]:
    code = ended.exit_code
    last = f": {ended.last_line.removeprefix(_OURS)}" if ended.last_line else ""
    if code is None:
        return Outcome.TIMED_OUT, f"not done within {time_limit:g} s{last}"
    if code < 0:
        return Outcome.CRASHED, f"died of {signal_name(code)}{last}"
    if code not in (EXIT_VERIFIED, *_BY_EXIT):
        return Outcome.BROKEN_OFF, f"exit code {code}{last}"
    if report is None:
        if code == EXIT_VERIFIED:
            return Outcome.UNVERIFIED, f"exit code 0, but {flaw}"
        if code == EXIT_MISMATCH and not ended.last_line.startswith(_OURS):  # Python's own exit code for any error
            return Outcome.BROKEN_OFF, f"exit code 1 and no report{last}"
        return _BY_EXIT[code], last.removeprefix(": ") or f"exit code {code} and not a word"
    verdict = report["verdict"]
    if code != EXIT_VERIFIED:
        contradicts = f"exit code {code}, but its report says verified" if verdict == Outcome.VERIFIED else ""
        return _BY_EXIT[code], contradicts or _words(report) or last.removeprefix(": ")
    if verdict != Outcome.VERIFIED:
        known = {o.value: o for o in (Outcome.MISMATCH, Outcome.BROKEN_OFF, Outcome.UNVERIFIED)}
        return known.get(
            verdict, Outcome.UNVERIFIED
        ), f'exit code 0, but its report says "{printable(str(verdict), 60)}"'
    climbed = {rung["name"]: rung["verdict"] for rung in report["rungs"]}
    if lacking := [name for name in RUNGS if climbed.get(name) != "passed"]:
        return Outcome.UNVERIFIED, f"its report says verified, but not that these passed: {', '.join(lacking)}"
    if report["exit_code"] != EXIT_VERIFIED or any(
        r["failures"] or r["unverified"] or r["fault"] for r in report["rungs"]
    ):
        return Outcome.UNVERIFIED, "its report says verified and contradicts itself"
    return Outcome.VERIFIED, ""


def _words(report: dict[str, Any]) -> str:
    """The first thing that is wrong, and how much more there is."""
    for rung in report["rungs"]:
        if rung["failures"]:
            more = f" (and {rung['n_failures'] - 1:,} more)" if rung["n_failures"] > 1 else ""
            return f"{rung['name']}: {rung['failures'][0]['what']}{more}"
    for rung in report["rungs"]:
        if rung["fault"]:
            return f"{rung['name']}: {rung['fault']}"
    for rung in report["rungs"]:
        if left := rung["unverified"]:
            more = f" (and {len(left) - 1:,} more)" if len(left) > 1 else ""
            return f"{rung['name']}: {left[0]['name']}: {left[0]['why']}{more}"
    return ", ".join(f"{rung['name']} {rung['verdict']}" for rung in report["rungs"])


def _read(path: Path) -> dict[str, Any]:
    """Raises _Unreadable."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_REPORT + 1)
        if len(raw) > MOST_REPORT:
            raise _Unreadable("its report is larger than any")
        report = json.loads(raw)
    except FileNotFoundError:
        raise _Unreadable("it wrote no report") from None
    except (OSError, ValueError, RecursionError, MemoryError):
        raise _Unreadable("its report is no JSON") from None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA_VERSION:
        raise _Unreadable(f"its report is none of schema {SCHEMA_VERSION}")
    return report


def _facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell holds of a report. Raises _Unreadable where it lacks anything."""
    try:
        header, rungs = report["header"], report["rungs"]
        measures: list[Measure] = []
        figures: dict[str, float] = {}
        gemms: dict[str, float] = {}
        for rung in rungs:
            if rung["name"] not in RUNGS:
                raise ValueError
            _ = rung["verdict"], rung["fault"], [f["what"] for f in rung["failures"]], int(rung["n_failures"])
            _ = [(u["name"], u["why"]) for u in rung["unverified"]]
            for who, worst in rung["worst"].items():
                score = rung["score"].get(who)
                score = None if score is None else float(score)
                place = str(worst["where"])
                measures.append(Measure(rung["name"], str(who), float(worst["utilisation"]), score, place))
            figures |= {f"{rung['name']}: {name}": float(value) for name, value in rung["figures"].items()}
            if rung["name"] == "layers":
                for record in rung["details"]:
                    name, value = str(record["tensor"]), float(record["kernel"])
                    # not (a <= b): a NaN stays
                    if name not in gemms or not value <= gemms[name]:
                        gemms[name] = value
        int(report["exit_code"])
        return {
            "rung_seconds": {rung["name"]: float(rung["seconds"]) for rung in rungs},
            "versions": {name: str(header[name]) for name in _VERSIONS} | _of_host(str(header["host"])),
            "host": str(header["host"]), "measures": tuple(measures), "figures": figures, "gemms": gemms,
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _Unreadable("its report lacks what a report has") from None


def _of_host(host: str) -> dict[str, str]:
    """CuPy, NVRTC and the driver, as `CupyHost.describe` names them, or the compiler of `CpuHost.describe`."""
    host = host.rpartition("; ")[2]  # of a kernel of one's own: where its process is comes first
    parts = [part.strip() for part in host.partition(":")[2].split(",")]
    out = {}
    for part in parts:
        for name in ("CUDA driver", "NVRTC", "CuPy"):
            if part.startswith(f"{name} "):
                out[name] = part.removeprefix(f"{name} ")
    if host.startswith("cpu:") and len(parts) > 2:
        out["C++ compiler"] = ", ".join(parts[2:])
    return out


def _line(words: str) -> str:
    return printable(words, _WORDS)
