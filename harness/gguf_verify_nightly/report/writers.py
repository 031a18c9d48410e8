"""The kinds of results of `gguf-verify nightly`, and their writers."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gguf_verify.report import json, writers
from gguf_verify.report.writer import Render
from gguf_verify.report.writers import late, late_at_terminal


class NightKind(StrEnum):
    """NIGHT is a `summary.NightReport`, COMPARISON a `compare.Comparison`, HISTORY a mapping of names to
    `records.Night`."""

    NIGHT = "night"
    COMPARISON = "comparison"
    HISTORY = "history"


def _late(module: str) -> dict[StrEnum, Render]:
    return {NightKind.NIGHT: late(f"{__package__}.{module}")}


HTML = replace(writers.HTML, renders=_late("html"))
JSON = replace(json.WRITER, renders=_late("json"))
JUNIT = replace(writers.JUNIT, renders=_late("junit"))
MARKDOWN = replace(writers.MARKDOWN, renders=_late("markdown"))
TEXT = replace(
    writers.TEXT,
    renders={
        NightKind.NIGHT: late_at_terminal(f"{__package__}.terminal"),
        NightKind.COMPARISON: late_at_terminal(f"{__package__}.terminal", "render_comparison"),
        NightKind.HISTORY: late_at_terminal(f"{__package__}.terminal", "render_history"),
    },
)
