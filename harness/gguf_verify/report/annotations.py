"""Digests as workflow commands of GitHub Actions: findings become annotations of the run.

GitHub takes such lines from a step's standard output, and shows ten errors and ten warnings of a step. The format:
https://docs.github.com/actions/reference/workflow-commands-for-github-actions#setting-an-error-message
"""

from __future__ import annotations

from .digest import Digest, Finding, seen

#: Annotations of each level that GitHub shows of a step.
MOST = 10
_TITLE, _MESSAGE = 120, 900
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render(digest: Digest) -> str:
    """A line for each finding that is not waived, up to the number that GitHub shows, and the number of the others."""
    lines: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for f in sorted(digest.findings, key=lambda f: f.level != "error"):
        if f.level != "none" and not (f.waived or f.quiet):
            level = "error" if f.fails else _LEVELS[f.level]
            lines[level].append(_command(level, f))
    shown = []
    for level, commands in lines.items():
        most = len(commands) if len(commands) <= MOST else MOST - 1
        shown += commands[:most]
        if beyond := len(commands) - most:
            shown.append(f"::{level} title=gguf-verify::and {beyond:,} more, see the report")
    return "".join(f"{line}\n" for line in shown)


def _command(level: str, f: Finding) -> str:
    """Return the line of a finding. No text in it can end the line or begin another command."""
    title = _escaped(f.heading, _TITLE).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped(f'{f.scope}: {f.message}' if f.scope else f.message, _MESSAGE)}"


def _escaped(text: str, limit: int) -> str:
    return seen(text, limit).replace("%", "%25")
