"""A night as GitHub-flavoured Markdown, for a job's summary or an issue: the verdict, what changed, details folded.

It stays below `LIMIT` bytes, whatever the size of the matrix: rows that do not fit are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..nightly.records import Night
from ..nightly.summary import NightReport
from ..support.text import printable
from .writer import Kind, Writer

#: Bytes of UTF-8. GitHub takes 1 MiB as a job's summary, and 65,536 characters as an issue.
LIMIT = 60_000

_MARKS = {"good": "✅", "warn": "⚠️", "bad": "❌"}
_MARKUP = re.compile(r"[\\`*_\[\]()#!|<>&~$@:]|(?<=[wW])\.")


def escaped(text: str, limit: int = 300) -> str:
    """Text that stays text: no markup, HTML, table cell, link, @mention or #reference; cut after `limit` characters.

    Punctuation becomes character references, which Markdown never takes for markup; the empty comment keeps GitHub from
    a mention, which it looks for in what is already rendered.
    """
    shown = printable(text, limit)
    return _MARKUP.sub(lambda m: f"&#{ord(m[0])};" + ("<!-- -->" if m[0] in "@#" else ""), shown)


class _Page:
    """Lines, as long as there is room: `spare` bytes are kept for what must come last."""

    def __init__(self, limit: int) -> None:
        self.lines: list[str] = []
        self._left = limit

    def add(self, *lines: str) -> None:
        self.lines += lines
        self._left -= sum(len(line.encode()) + 1 for line in lines)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], spare: int) -> None:
        """As many rows as fit, and how many do not."""
        self.add("| " + " | ".join(head) + " |", "|" + " --- |" * len(head))
        left_out = 0
        for row in rows:
            line = "| " + " | ".join(row) + " |"
            if left_out or self._left - len(line.encode()) < spare:
                left_out += 1
            else:
                self.add(line)
        self.add("", *([f"… and {left_out:,} more, which do not fit here.", ""] if left_out else []))


#: Kept for what comes after a table: headings and counts.
_SPARE = 4_000


def render(report: NightReport, limit: int = LIMIT) -> str:
    """The night that is reported, below `limit` (at least 10,000) bytes."""
    found, page, changes = report.verdict, _Page(limit), report.changes
    page.add(f"## {_MARKS[found.level]} {found.word[0].upper()}{found.word[1:]}", "")
    page.add(f"{escaped(report.title)}: {escaped(found.sentence)}.", "")
    if report.comparison is not None:
        against = escaped(report.comparison.against)
        page.add(f"### {'What changed' if changes else 'Nothing changed'} against {against}", "")
        if changes:
            rows = (
                (f"{_MARKS[kind.level]} {kind.title}", escaped(str(change.key)), escaped(change.reason))
                for kind, listed in changes for change in listed
            )  # fmt: skip
            page.table(("", "cell", "how"), rows, limit // 3)
    cells = report.standings
    if wrong := [s for s in cells if not s.verified]:
        told = [(escaped(str(s.key)), f"{_MARKS[s.level]} {s.outcome}", escaped(s.reason)) for s in wrong]
        _fold(page, f"{len(wrong):,} not verified", ("cell", "outcome", "why"), told)
    if right := [s.cell for s in cells if s.verified and s.cell is not None]:
        times = [(escaped(str(cell.key)), f"{cell.seconds:.1f}") for cell in right]
        _fold(page, f"{len(right):,} verified", ("cell", "seconds"), times)
    page.add(*_origin(report.night))
    return "\n".join(page.lines) + "\n"


def _fold(page: _Page, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    page.add(f"<details><summary>{name}</summary>", "")
    page.table(head, rows, _SPARE)
    page.add("</details>", "")


def _origin(night: Night) -> Iterator[str]:
    facts = {"project": night.project, "started": night.started, "finished": night.finished or "not finished"}
    told = [f"{name} {value}" for name, value in {**facts, **night.hardware}.items() if value]
    yield escaped(" · ".join(told), 600)


WRITER = Writer(
    "Markdown", "--markdown", "also write the report as GitHub-flavoured Markdown",
    {Kind.NIGHT: lambda report, form: render(report)},
)  # fmt: skip
