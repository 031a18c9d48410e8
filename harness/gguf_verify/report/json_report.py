"""The report as JSON: the same facts as at the terminal, and every record behind them.

Schema version 1 (`harness/report/schemas/run.schema.json`), an object with

    schema           1
    verdict          "verified", "mismatch", "broken off" or "not everything verified"
    exit_code        0, 1, 3 or 5
    header           versions, host, file, sha256, seed, options: name → value
    seconds          of the whole run
    command          what repeats it
    rungs            a list of objects, in order:
        name, verdict ("passed", "failed", "unverified"), seconds
        fault                    what broke the rung off, or null
        checked, not_checked     kind → count
        unverified               list of {name, why}
        failures                 at most 20, with n_failures their total; see gguf_verify.results.Failure
        worst                    who → {utilisation, where};  score: who → number
        diagnosis                null, or what explains the first wrong GEMM of the graph: {tensor, where, who, row,
                                 token, block (of the first wrong output; null where no single one is), verdict,
                                 wrong, outputs, definitions, findings, nearest, lines}; see
                                 gguf_verify.diagnosis.Diagnosis
        heat_map                 null, or the utilisation of the first wrong GEMM: {tensor, where, who, M, N,
                                 tokens_per_cell, rows_per_cell, utilisation and wrong: lists of cells, a list a step of
                                 tokens}; a cell has the largest utilisation and how many outputs of it are wrong
        figures, notes, details  measured numbers, lines, one record a tensor, GEMM or token

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". Names from the file are not escaped.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from ..rungs import RungResult
from ..verification import Report

SCHEMA_VERSION = 1


def to_dict(report: Report) -> dict[str, Any]:
    """The report as plain objects that JSON can hold."""
    plain = {
        "schema": SCHEMA_VERSION,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "header": report.header,
        "seconds": report.seconds,
        "command": report.command,
        "rungs": [_rung(r) for r in report.rungs],
    }
    made = safe(plain)
    assert isinstance(made, dict)
    return made


def render(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(to_dict(report), indent=2, allow_nan=False) + "\n"


def _rung(rung: RungResult) -> dict[str, Any]:
    plain = asdict(rung)
    plain["verdict"] = rung.verdict
    plain["unverified"] = [{"name": name, "why": why} for name, why in rung.unverified]
    return plain


def safe(value: Any) -> Any:
    """`value` as plain objects that JSON can hold: see the module."""
    if isinstance(value, dict):
        return {safe(str(k)): safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [safe(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if hasattr(value, "item"):  # NumPy's scalars
        return safe(value.item())
    if isinstance(value, str):  # a name that was no UTF-8 holds surrogates, which JSON text cannot
        return value.encode("utf-8", "backslashreplace").decode()
    return value
