"""The kinds of results of `gguf-verify nightly`, and their writers."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gguf_verify.report import json, junit, markdown, writers
from gguf_verify.report.writer import Render
from gguf_verify.report.writers import late, late_at_terminal, of_digest


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
JUNIT = replace(writers.JUNIT, renders={NightKind.NIGHT: of_digest(junit.render, f"{__package__}.digest", "digest")})
MARKDOWN = replace(
    writers.MARKDOWN, renders={NightKind.NIGHT: of_digest(markdown.render, f"{__package__}.digest", "digest")}
)
TEXT = replace(
    writers.TEXT,
    renders={
        NightKind.NIGHT: late_at_terminal(f"{__package__}.terminal"),
        NightKind.COMPARISON: late_at_terminal(f"{__package__}.terminal", "render_comparison"),
        NightKind.HISTORY: late_at_terminal(f"{__package__}.terminal", "render_history"),
    },
)
