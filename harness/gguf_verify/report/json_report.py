"""The report as JSON, and a report that is read back from JSON.

The JSON is the records of `gguf_verify.results`, field by field, with `schema` (2), and the `verdict` and `exit_code`
of the report and the `verdict` of each rung beside them; report/schemas/run.schema.json describes it. A record of a
rung's `details` says in `record` what it is of. Numbers that are not finite are the strings "NaN", "Infinity" and
"-Infinity". Names from the file are not escaped.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from ..results import Report

SCHEMA_VERSION = 2


def to_dict(report: Report) -> dict[str, Any]:
    """The report as plain objects that JSON can hold."""
    plain = msgspec.to_builtins(report)
    for rung, made in zip(report.rungs, plain["rungs"], strict=True):
        made["verdict"] = rung.verdict
    plain = {"schema": SCHEMA_VERSION, "verdict": report.verdict, "exit_code": report.exit_code, **plain}
    made = safe(plain)
    assert isinstance(made, dict)
    return made


def render(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(to_dict(report), indent=2, allow_nan=False) + "\n"


def read(plain: object) -> Report:
    """A report from the objects of its JSON. Raises ValueError, in one line, where they are none of this schema."""
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema != SCHEMA_VERSION:
        raise ValueError(f"a report of schema {schema}; this version reads schema {SCHEMA_VERSION}")
    return msgspec.convert(plain, Report, strict=False)


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
