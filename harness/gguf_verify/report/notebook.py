"""Digests as fragments of HTML for a notebook. All text is escaped here; nothing is loaded."""

from __future__ import annotations

from html import escape
from itertools import islice

from .digest import Bullets, Digest, Marked, Section, Table, seen

#: Colours that are legible on a light and on a dark ground.
_COLOURS = {"good": "#1a7f37", "bad": "#cf222e", "warn": "#9a6700"}
#: Rows of a table; more are counted.
_MOST = 40


def render(digest: Digest) -> str:
    """The fragment of a digest."""
    colour = _COLOURS[digest.level]
    head = f'<strong style="background:{colour};color:#fff;padding:0 .4em">{_text(digest.words)}</strong>'
    parts = [f"<p>{head}</p>", *map(_section, digest.sections)]
    if digest.repeat:
        parts.append(f"<p>repeat with: <code>{escape(digest.repeat)}</code></p>")
    return f'<div class="gguf-verify">{"".join(parts)}</div>'


def _text(text: str, limit: int = 600) -> str:
    return escape(seen(text, limit))


def _section(section: Section) -> str:
    if isinstance(section, str):
        return f"<p>{_text(section)}</p>"
    title = f"<p>{_text(section.title)}:</p>" if section.title else ""
    if isinstance(section, Bullets):
        return f"{title}<ul>{''.join(f'<li>{_text(line)}</li>' for line in section.lines)}</ul>"
    if section.folded:
        return f"<details><summary>{_text(section.title)}</summary>{_table(section)}</details>"
    return title + _table(section)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.heads)
    rows = iter(table.rows)
    shown = [
        f"<tr>{''.join(f'<td>{_cell(cell, table.width)}</td>' for cell in row)}</tr>" for row in islice(rows, _MOST)
    ]
    beyond = sum(1 for _ in rows)
    more = f"<p>… and {beyond:,} more</p>" if beyond else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(shown)}</tbody></table>{more}"


def _cell(cell: str | Marked, width: int) -> str:
    text = cell.text if isinstance(cell, Marked) else cell
    made = "<br>".join(_text(line, width) for line in text.split("\n"))
    return f'<span style="color:{_COLOURS[cell.level]}">{made}</span>' if isinstance(cell, Marked) else made
