"""Every result at the terminal: `terminal` has a module for each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .writer import Form, Kind, Render, Writer


def _render(module: str, function: str = "render") -> Render:
    """A function of a module of `terminal`, which is imported when it is first used: a run needs one of them."""

    def render(result: Any, form: Form) -> str:
        return str(getattr(import_module(f".terminal.{module}", __package__), function)(result, form))

    return render


WRITER = Writer(
    "text", None, "the report on standard output",
    {
        Kind.RUN: _render("run"), Kind.AUDIT: _render("audit"),
        Kind.AUDITS: _render("audit", "render_many"), Kind.XRAY: _render("xray"),
        Kind.IDENTIFICATION: _render("identification"), Kind.NIGHT: _render("night"),
        Kind.JUDGEMENT: _render("judgement"), Kind.GRAPH: _render("graph"), Kind.BISECTION: _render("bisection"),
        Kind.COMPARISON: _render("night", "render_comparison"), Kind.HISTORY: _render("night", "render_history"),
    },
)  # fmt: skip
