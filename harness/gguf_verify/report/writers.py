"""Writers of several modules each, which are imported when they are first used: a command needs one of many."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .writer import Form, Kind, Render, Writer


def late(module: str, function: str = "render") -> Render:
    """A function of a module that is imported when it is first called, of the result alone."""

    def render(result: Any, form: Form) -> str:
        write: Callable[[Any], str] = getattr(import_module(module), function)
        return write(result)

    return render


def late_at_terminal(module: str, function: str = "render") -> Render:
    """Likewise of the result and the form."""

    def render(result: Any, form: Form) -> str:
        write: Callable[[Any, Form], str] = getattr(import_module(module), function)
        return write(result, form)

    return render


def _late(module: str, function: str = "render") -> Render:
    return late(f"{__package__}.{module}", function)


def _at_terminal(module: str, function: str = "render") -> Render:
    return late_at_terminal(f"{__package__}.terminal.{module}", function)


HTML = Writer(
    "HTML", "--html", "also write the report as one HTML file that needs no other file",
    {
        Kind.RUN: _late("html.page", "run"),
        Kind.AUDIT: _late("html.page", "audit"), Kind.AUDITS: _late("html.page", "audit"),
        Kind.GRAPH: _late("html.page", "graph"), Kind.BISECTION: _late("html.page", "bisection"),
    },
)  # fmt: skip
JUNIT = Writer(
    "JUnit", "--junit", "also write the report as JUnit XML",
    {Kind.GRAPH: _late("junit.graph")},
)  # fmt: skip
MARKDOWN = Writer(
    "Markdown", "--markdown", "also write the report as GitHub-flavoured Markdown",
    {
        Kind.RUN: _late("markdown.run"), Kind.AUDIT: _late("markdown.audit"),
        Kind.AUDITS: _late("markdown.audit", "render_many"), Kind.GRAPH: _late("markdown.graph"),
    },
)  # fmt: skip
TEXT = Writer(
    "text", None, "the report on standard output",
    {
        Kind.RUN: _at_terminal("run"), Kind.AUDIT: _at_terminal("audit"),
        Kind.AUDITS: _at_terminal("audit", "render_many"), Kind.XRAY: _at_terminal("xray"),
        Kind.IDENTIFICATION: _at_terminal("identification"),
        Kind.JUDGEMENT: _at_terminal("judgement"), Kind.GRAPH: _at_terminal("graph"),
        Kind.BISECTION: _at_terminal("bisection"),
    },
)  # fmt: skip
