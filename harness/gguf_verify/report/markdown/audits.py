"""Audits of several files: a row each, and what is wrong with the worst of them."""

from __future__ import annotations

from ...audit import Audit
from ...audit.many import PRECEDENCE, Audits
from .audit import LEVELS
from .page import LIMIT, MARKS, Page, escaped


def render(audits: Audits, limit: int = LIMIT) -> str:
    """The audits, below `limit` (at least 10,000) bytes."""
    page, verdict = Page(limit), audits.verdict
    page.add(f"## {MARKS[LEVELS.get(verdict, 'warn')]} {verdict[0].upper()}{verdict[1:]}", "")
    counts = ", ".join(f"{n:,} {word}" for word, n in audits.verdicts.most_common())
    page.add(f"{len(audits.audits):,} files: {counts}.", "")
    ordered = sorted(audits.audits, key=lambda a: (PRECEDENCE.index(a.exit_code), LEVELS.get(a.verdict) == "good"))
    rows = [
        (
            f"{MARKS[LEVELS.get(a.verdict, 'warn')]} {a.verdict}", escaped(str(a.path), 200),
            escaped(a.sentence if isinstance(a, Audit) else a.why),
        )
        for a in ordered
    ]  # fmt: skip
    page.table(("", "file", "how it is"), rows)
    return page.text
