"""Reports as workflow commands of GitHub Actions: what is wrong becomes an annotation of the run.

GitHub takes such lines from a step's standard output, and shows ten errors and ten warnings of a step. The format:
https://docs.github.com/actions/reference/workflow-commands-for-github-actions#setting-an-error-message
"""

from __future__ import annotations

from collections.abc import Iterable

from . import findings
from .findings import Finding
from .graph_words import seen
from .writer import Kind, Writer

#: Annotations of each level that GitHub shows of a step.
MOST = 10
_TITLE, _MESSAGE = 120, 900
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render(found: Iterable[Finding]) -> str:
    """A line for each finding that is not waived, as many as GitHub shows; and how many there are beyond these."""
    told: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for f in sorted(found, key=lambda f: f.level != "error"):
        if not f.waived:
            level = "error" if f.fails else _LEVELS[f.level]
            told[level].append(_command(level, f))
    lines = []
    for level, commands in told.items():
        shown = commands if len(commands) <= MOST else commands[: MOST - 1]
        lines += shown
        if len(commands) > len(shown):
            lines.append(f"::{level} title=gguf-verify::and {len(commands) - len(shown):,} more, see the report")
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, f: Finding) -> str:
    """Return the line of a finding. No text in it can end the line or begin another command."""
    title = _escaped(f.heading, _TITLE).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped(f'{f.scope}: {f.message}' if f.scope else f.message, _MESSAGE)}"


def _escaped(text: str, limit: int) -> str:
    return seen(text, limit).replace("%", "%25")


def _of_files(found: Iterable[Finding]) -> str:
    """Render the findings of audits without notes, which are about harmless things."""
    return render(f for f in found if f.level != "note" or f.rule is None)


WRITER = Writer(
    "annotations", "--annotations", "also write what is wrong as workflow commands of GitHub Actions",
    {
        Kind.RUN: lambda report, form: render(findings.of_run(report)),
        Kind.AUDIT: lambda audit, form: _of_files(findings.of_audit(audit)),
        Kind.AUDITS: lambda audits, form: _of_files(findings.of_audits(audits)),
        Kind.GRAPH: lambda report, form: render(findings.of_graph(report)),
    },
)  # fmt: skip
