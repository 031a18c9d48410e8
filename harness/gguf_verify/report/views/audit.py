"""An audit in Python."""

from __future__ import annotations

from collections import Counter

from ...audit.record import Audit
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import counted, printable
from .. import json
from ..terminal import audit as terminal
from ..writer import Form, Kind
from .html import block, paragraph, table, verdict

_MOST = 10


def _counts(audit: Audit) -> str:
    found = Counter(f.severity for f in audit.findings)
    return ", ".join(counted(n, f"{severity}s") for severity, n in found.items()) or "no findings"


def line(audit: Audit) -> str:
    """Verdict and counts."""
    sample = f" {audit.sample.sentence}" if audit.sample else ""
    return f"Audit{sample}: {audit.verdict}; {counted(audit.n_tensors, 'tensors')}; {_counts(audit)}"


def html(audit: Audit) -> str:
    """Verdict and the first findings."""
    rows = [
        (f.severity, f.id, f"{f.start}-{f.stop}", printable(f.expected, 100), printable(f.found, 100))
        for f in audit.findings[:_MOST]
    ]
    parts = [verdict(audit.verdict, audit.exit_code, printable(audit.path.name, 100)), paragraph(_counts(audit))]
    parts += [paragraph(f"Broken off: {printable(audit.fault, 300)}")] if audit.fault else []
    parts += [paragraph(f"Not verified: {printable(n, 64)}: {printable(w, 200)}") for n, w in audit.unverified[:3]]
    if rows:
        parts.append(table(("severity", "id", "bytes", "expected", "found"), rows))
    return block(*parts)


def message(audit: Audit) -> str:
    """The first findings, and the command."""
    lines = [f"{printable(audit.path.name, 100)} is not clean: {audit.verdict}; {_counts(audit)}"]
    lines += [f"broken off: {printable(audit.fault, 200)}"] if audit.fault else []
    lines += [f"{f.severity}: {f.line()}"[:300] for f in audit.findings[:_MOST]]
    lines += [f"not verified: {printable(n, 64)}: {printable(w, 150)}" for n, w in audit.unverified[:3]]
    return "\n".join([*lines[:14], *([f"repeat with: {shown(audit.command)}"] if audit.command else [])])


VIEW = View(
    Audit, line, lambda audit: terminal.render(audit, Form()), html, json.of_audit, json.renders(Kind.AUDIT), message
)
