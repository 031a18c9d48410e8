"""Reports as one HTML file that needs nothing else: no network, no font, no other file.

Everything is readable without JavaScript, which only sorts and filters. Text from a model's file stays text: templates
escape (jinja2, autoescape), what does not print is escaped before that, and the page's own policy (CSP) allows its one
style sheet and its one script by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ...nightly.records import Night
from ...results import Report
from ...support.text import printable
from ..nightly.summary import Comparison, worst
from . import charts, night, run

_FOLDER = Path(__file__).parent / "templates"


def render(nights: Sequence[Night], comparison: Comparison | None = None) -> str:
    """The last of the nights, and the history that they are. Raises ValueError without nights."""
    return _environment().get_template("night.html").render(page=night.of(nights, comparison))


def render_run(report: Report) -> str:
    """One run."""
    return _environment().get_template("run.html").render(run=run.of(report))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    made.globals |= {
        "style": Markup(style), "script": Markup(script),
        "policy": f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "shade": charts.shade, "most_rows": run.MOST_ROWS, "steps": charts.STEPS,
        "glyphs": {"good": "✓", "warn": "!", "bad": "✕"},
    }  # fmt: skip
    made.filters |= {
        "name": _name, "figure": charts.short, "rank": charts.rank, "worst": worst, "basename": _basename,
        "when": _when,
        "heading": lambda name: (name, "n"),
    }  # fmt: skip
    return made


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _shown(value: Any) -> Any:
    """What a template's expression becomes: text from anywhere with what does not print made visible."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _name(text: object, limit: int = 120) -> Markup:
    """A name that may be long, cut."""
    return escape(printable(str(text), limit))


def _when(at: str) -> str:
    """A time of a record, ISO 8601, as people write it; in UTC."""
    return at[:16].replace("T", " ") + " UTC"


def _basename(path: object) -> str:
    return str(path).rpartition("/")[2]
