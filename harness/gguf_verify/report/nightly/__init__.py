"""Reports of a night, from its records: terminal (`lines`), JSON, JUnit XML, Markdown and one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...nightly.records import Night
from .summary import Change, Changes, Comparison, Verdict, verdict

__all__ = ["Change", "Changes", "Comparison", "Verdict", "verdict", "write_reports"]


def write_reports(
    nights: Sequence[Night],
    comparison: Comparison | None = None,
    html: Path | None = None,
    junit: Path | None = None,
    markdown: Path | None = None,
    json: Path | None = None,
) -> None:
    """Write what is asked for, each file whole or not at all.

    Args:
        nights: oldest first; the last is reported, the others are its history.
        comparison: what changed, see `summary.Comparison`.

    Raises:
        ValueError: no night.
        OSError: a file cannot be written.
    """
    from .. import html as page  # late: a run that writes none of them needs no templates
    from . import as_json
    from . import junit as as_junit
    from . import markdown as as_markdown

    for path, render in (
        (html, page.render), (junit, as_junit.render), (markdown, as_markdown.render), (json, as_json.render),
    ):  # fmt: skip
        if path is not None:
            made = path.with_name(f".{path.name}.part")
            made.write_text(render(nights, comparison), encoding="utf-8")
            made.replace(path)
