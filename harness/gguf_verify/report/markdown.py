"""Digests as GitHub-flavoured Markdown, for a job's summary, an issue or a model card; Hugging Face renders it too.

A page stays below `LIMIT` bytes, whatever it is of: rows that do not fit are counted. Text stays text.
"""

from __future__ import annotations

import re

from .digest import Bullets, Digest, Marked, Section, Table, seen

#: Bytes of UTF-8. GitHub takes 1 MiB as a job's summary, and 65,536 characters as an issue.
LIMIT = 60_000

MARKS = {"good": "✅", "warn": "⚠️", "bad": "❌"}
_MARKUP = re.compile(r"[\\`*_\[\]()#!|<>&~$@:]|(?<=[wW])\.")


def escaped(text: str, limit: int = 600) -> str:
    """Text that stays text: no markup, HTML, table cell, link, @mention or #reference; cut after `limit` characters.

    Punctuation becomes character references, which Markdown never takes for markup; the empty comment keeps GitHub from
    a mention, which it looks for in what is already rendered.
    """
    shown = seen(text, limit)
    return _MARKUP.sub(lambda m: f"&#{ord(m[0])};" + ("<!-- -->" if m[0] in "@#" else ""), shown)


def render(digest: Digest) -> str:
    """The page of a digest."""
    page = _Page()
    page.add(f"## {MARKS[digest.level]} {escaped(digest.words[:1].upper() + digest.words[1:])}", "")
    for section in digest.sections:
        page.add_section(section)
    return "\n".join(page.lines) + "\n"


class _Page:
    """Lines, as long as there is room."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._left = LIMIT

    def add(self, *lines: str) -> None:
        self.lines += lines
        self._left -= sum(len(line.encode()) + 1 for line in lines)

    def add_section(self, section: Section) -> None:
        if isinstance(section, str):
            self.add(escaped(section), "")
        elif isinstance(section, Bullets):
            self.add(*([f"**{escaped(section.title, 300)}**:", ""] if section.title else []))
            self.add(*(f"- {escaped(line)}" for line in section.lines), "")
        elif section.folded:
            self.add(f"<details><summary>{escaped(section.title, 300)}</summary>", "")
            self._add_table(section)
            self.add("</details>", "")
        else:
            self.add(*([f"### {escaped(section.title, 300)}", ""] if section.title else []))
            self._add_table(section)

    def _add_table(self, table: Table) -> None:
        """As many rows as fit, and the number of the others."""
        self.add("| " + " | ".join(table.heads) + " |", "|" + " --- |" * len(table.heads))
        beyond = 0
        for row in table.rows:
            line = f"| {' | '.join(_cell(cell, table.width) for cell in row)} |"
            if beyond or self._left - len(line.encode()) < table.spare:
                beyond += 1
            else:
                self.add(line)
        self.add("", *([f"… and {beyond:,} more, which do not fit here.", ""] if beyond else []))


def _cell(cell: str | Marked, width: int) -> str:
    mark, text = (f"{MARKS[cell.level]} ", cell.text) if isinstance(cell, Marked) else ("", cell)
    return mark + "<br>".join(escaped(line, width) for line in text.split("\n"))
