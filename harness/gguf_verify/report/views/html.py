"""The few elements that fragments for a notebook consist of. All text is escaped here; nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

#: Colours that are legible on a light and on a dark ground.
_GOOD, _BAD, _WARN = "#1a7f37", "#cf222e", "#9a6700"


def block(*parts: str) -> str:
    """The fragment."""
    return f'<div class="gguf-verify">{"".join(parts)}</div>'


def verdict(words: str, exit_code: int, about: str) -> str:
    """The first line."""
    colour = {0: _GOOD, 1: _BAD, 4: _BAD}.get(exit_code, _WARN)
    return (
        f'<p><strong style="background:{colour};color:#fff;padding:0 .4em">{escape(words)}</strong> {escape(about)}</p>'
    )


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def listed(lines: Iterable[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
