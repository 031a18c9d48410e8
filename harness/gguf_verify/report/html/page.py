"""Pages of HTML from templates.

Everything is readable without JavaScript, which only sorts and filters. Text from a model's file stays text: templates
escape (jinja2, autoescape), what does not print is escaped before that, and the page's own policy (CSP) allows its one
style sheet and its one script by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ...audit.many import Audits
from ...audit.record import Audit
from ...backend_results import GraphReport
from ...bisection_results import Bisection
from ...results.report import Report
from ...support.stages import STAGES
from ...support.text import counted, printable
from .. import run_words, scene, shades
from ..published import published
from . import audit as of_audit
from . import bisection as of_bisection
from . import graph as of_graph
from . import run as of_run

TEMPLATES = Path(__file__).parent / "templates"


def run(report: Report) -> str:
    """One run."""
    return (
        environment().get_template("run.html").render(run=of_run.of(report), report=report, costs=of_run.costs(report))
    )


def audit(result: Audit | Audits) -> str:
    """One audit, or those of several files."""
    return environment().get_template("audit.html").render(page=of_audit.of(result))


def graph(report: GraphReport) -> str:
    """A graph that was judged node by node."""
    return environment().get_template("graph.html").render(page=of_graph.of(report))


def bisection(found: Bisection) -> str:
    """The search for the first bad build."""
    return environment().get_template("bisection.html").render(page=of_bisection.of(found))


def style() -> str:
    """The style sheet of every page."""
    sheets = ("style.css", "audit.css")
    return "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in sheets) + scene.style()


@cache
def environment(*folders: Path) -> Environment:
    """The environment of the templates here and in further folders."""
    made = Environment(
        loader=FileSystemLoader([TEMPLATES, *folders]), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    sheet, script = style(), (TEMPLATES / "script.js").read_text(encoding="utf-8")
    made.globals |= {
        "style": Markup(sheet), "script": Markup(script),
        "policy": f"default-src 'none'; style-src '{_digest(sheet)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'",
        "shade": shades.shade, "is_wrong": shades.is_wrong, "steps": shades.STEPS, "wrong_shades": shades.WRONG,
        "stages": STAGES, "most_rows": of_run.MOST_ROWS, "counted": counted,
        "glyphs": {"good": "✓", "warn": "!", "bad": "✕"},
    }  # fmt: skip
    made.filters |= {
        "name": _name,
        "level": shades.level,
        "figure": shades.short,
        "rank": shades.rank,
        "basename": lambda path: str(path).rpartition("/")[2],
        "when": _when,
        "heading": lambda name: (name, "n"),
        "numbered": lambda name: (name, "n"),
        "ranges": run_words.ends,
    }
    return made


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _shown(value: Any) -> Any:
    """Make unprintable characters in the value of a template's expression visible, and omit folders of this machine."""
    return printable(published(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _name(text: object, limit: int = 120) -> Markup:
    """A name that may be long, cut; a path is the name of its file."""
    return escape(printable(published(str(text)), limit))


def _when(at: str) -> str:
    """A time of a record, ISO 8601, as people write it; in UTC."""
    return at[:16].replace("T", " ") + " UTC"
