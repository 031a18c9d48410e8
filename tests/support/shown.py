"""Results as reports show them, without a command line."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from gguf_verify.report.writer import Form, terminal, writers


def text_of(kind: StrEnum, result: Any, **form: Any) -> str:
    """What standard output shows of a result; `form` as `report.writer.Form` has it."""
    return terminal(kind, result, Form(**form))


def last_line(text: str) -> str:
    """The last line of a report, which holds the verdict; "" of no report."""
    return text.rstrip("\n").rpartition("\n")[2]


def written(flag: str, kind: StrEnum, result: Any, suffix: str = "") -> str | bytes:
    """What the writer of a flag, such as "--html", makes of a result."""
    writer = next(w for w in writers(kind) if w.flag == flag)
    return writer.renders[kind](result, Form(suffix=suffix))


def json_of(kind: StrEnum, result: Any) -> Any:
    """The JSON report, parsed."""
    return json.loads(written("--json", kind, result))
