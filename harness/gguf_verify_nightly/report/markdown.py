"""A night: the verdict, what changed, details folded."""

from __future__ import annotations

from collections.abc import Iterator

from gguf_verify.report.markdown.page import LIMIT, MARKS, Page, escaped

from ..records import Night
from ..summary import NightReport


def render(report: NightReport, limit: int = LIMIT) -> str:
    """The night that is reported, below `limit` (at least 10,000) bytes."""
    found, page, changes = report.verdict, Page(limit), report.changes
    page.add(f"## {MARKS[found.level]} {found.word[0].upper()}{found.word[1:]}", "")
    page.add(f"{escaped(report.title)}: {escaped(found.sentence)}.", "")
    if report.comparison is not None:
        against = escaped(report.comparison.against)
        page.add(f"### {'What changed' if changes else 'Nothing changed'} against {against}", "")
        if changes:
            rows = (
                (f"{MARKS[kind.level]} {kind.title}", escaped(str(change.key)), escaped(change.reason))
                for kind, listed in changes for change in listed
            )  # fmt: skip
            page.table(("", "cell", "how"), rows, limit // 3)
    cells = report.standings
    if wrong := [s for s in cells if not s.verified]:
        told = [(escaped(str(s.key)), f"{MARKS[s.level]} {s.outcome}", escaped(s.reason)) for s in wrong]
        page.fold(f"{len(wrong):,} not verified", ("cell", "outcome", "why"), told)
    if right := [s.cell for s in cells if s.verified and s.cell is not None]:
        times = [(escaped(str(cell.key)), f"{cell.seconds:.1f}") for cell in right]
        page.fold(f"{len(right):,} verified", ("cell", "seconds"), times)
    page.add(*_origin(report.night))
    return page.text


def _origin(night: Night) -> Iterator[str]:
    facts = {"project": night.project, "started": night.started, "finished": night.finished or "not finished"}
    told = [f"{name} {value}" for name, value in {**facts, **night.hardware}.items() if value]
    yield escaped(" · ".join(told), 600)
