"""Reports as GitHub-flavoured Markdown, for a job's summary, an issue or a model card; Hugging Face renders it too.

A page stays below `LIMIT` bytes, whatever it is of: rows that do not fit are counted.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..writer import Form, Kind, Render, Writer
from .page import LIMIT, escaped


def _render(module: str) -> Render:
    """The function `render` of a module of this package, which is imported when it is first used."""

    def render(result: Any, form: Form) -> str:
        return str(import_module(f".{module}", __package__).render(result))

    return render


WRITER = Writer(
    "Markdown", "--markdown", "also write the report as GitHub-flavoured Markdown",
    {
        Kind.RUN: _render("run"), Kind.AUDIT: _render("audit"), Kind.AUDITS: _render("audits"),
        Kind.NIGHT: _render("night"), Kind.GRAPH: _render("graph"),
    },
)  # fmt: skip

__all__ = ["LIMIT", "WRITER", "escaped"]
