"""Reports as GitHub-flavoured Markdown, for a job's summary, an issue or a model card; Hugging Face renders it too.

A page stays below `LIMIT` bytes, whatever it is of: rows that do not fit are counted. Text stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...support.text import printable
from ..shades import level

#: Bytes of UTF-8. GitHub takes 1 MiB as a job's summary, and 65,536 characters as an issue.
LIMIT = 60_000
#: Kept for what comes after a table: headings and counts.
SPARE = 4_000

MARKS = {"good": "✅", "warn": "⚠️", "bad": "❌"}
_MARKUP = re.compile(r"[\\`*_\[\]()#!|<>&~$@:]|(?<=[wW])\.")


def escaped(text: str, limit: int = 300) -> str:
    """Text that stays text: no markup, HTML, table cell, link, @mention or #reference; cut after `limit` characters.

    Punctuation becomes character references, which Markdown never takes for markup; the empty comment keeps GitHub from
    a mention, which it looks for in what is already rendered.
    """
    shown = printable(text, limit)
    return _MARKUP.sub(lambda m: f"&#{ord(m[0])};" + ("<!-- -->" if m[0] in "@#" else ""), shown)


def heading(verdict: str, words: str) -> str:
    """The first line: how good the verdict is, and its words."""
    return f"## {MARKS[level(verdict)]} {words[0].upper()}{words[1:]}"


class Page:
    """Lines, as long as there is room: `spare` bytes are kept for what must come last."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.lines: list[str] = []
        self._left = limit

    def add(self, *lines: str) -> None:
        self.lines += lines
        self._left -= sum(len(line.encode()) + 1 for line in lines)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], spare: int = SPARE) -> None:
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

    def fold(self, name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table that is opened by a click."""
        self.add(f"<details><summary>{name}</summary>", "")
        self.table(head, rows)
        self.add("</details>", "")

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
