"""Audits: the verdict, the findings, and what could not be judged; of several files a row each."""

from __future__ import annotations

from ...audit.many import PRECEDENCE, Audits
from ...audit.record import Audit
from ...support.text import counted
from ..shades import level
from .page import LIMIT, MARKS, Page, escaped, heading

_SEVERITIES = {"error": "bad", "warning": "warn"}


def render(audit: Audit, limit: int = LIMIT) -> str:
    """The audit, below `limit` (at least 10,000) bytes."""
    page = Page(limit)
    page.add(heading(audit.verdict, audit.words), "")
    tensors = f"{len(audit.contents):,} of {counted(audit.n_tensors, 'tensors')} read"
    page.add(f"{escaped(audit.path.name, 100)}: {audit.header.size:,} bytes, {tensors}.", "")
    if audit.sample:
        page.add(f"An audit {audit.sample.sentence}: {escaped(audit.sample.untold, 600)}.", "")
    if audit.fault:
        page.add(f"Broken off: {escaped(audit.fault)}.", "")
    if audit.findings:
        ordered = sorted(audit.findings, key=lambda f: ("error", "warning", "note").index(f.severity))
        rows = [
            (f"{MARKS.get(_SEVERITIES.get(f.severity, ''), '')} {f.severity}", escaped(f.id, 60), f"{f.start:,}",
             escaped(f.found), escaped(f.expected))
            for f in ordered
        ]  # fmt: skip
        page.table(("", "finding", "byte", "found", "expected"), rows)
    if audit.waivers:
        page.add(*(f"- Waiver, {use.state}: {escaped(use.words, 600)}" for use in audit.waivers), "")
    if audit.unverified:
        left = [(escaped(name, 100), escaped(why)) for name, why in audit.unverified]
        page.fold(f"{len(left):,} could not be judged", ("what", "why"), left)
    digests = "" if audit.header.sha256 is None else f" · SHA-256 {', '.join(audit.header.sha256)}"
    page.add(f"gguf-verify {audit.header.gguf_verify}{digests}")
    return page.text


def render_many(audits: Audits, limit: int = LIMIT) -> str:
    """Audits of several files, the worst first, below `limit` (at least 10,000) bytes."""
    page, verdict = Page(limit), audits.verdict
    page.add(heading(verdict, verdict), "")
    counts = ", ".join(f"{n:,} {word}" for word, n in audits.verdicts.most_common())
    page.add(f"{counted(len(audits.audits), 'files')}: {counts}.", "")
    ordered = sorted(audits.audits, key=lambda a: (PRECEDENCE.index(a.exit_code), level(a.verdict) == "good"))
    rows = [
        (
            f"{MARKS[level(a.verdict)]} {a.verdict}", escaped(str(a.path), 200),
            escaped(a.sentence if isinstance(a, Audit) else a.why),
        )
        for a in ordered
    ]  # fmt: skip
    page.table(("", "file", "how it is"), rows)
    return page.text
