"""Markdown tables, and the marked places in pages that are filled with them.

A page marks such a place with `<!-- KIND: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT

#: The pages with the tables of `bench` and `mutation`.
BENCHMARKS, EVIDENCE = CHECKOUT / "docs" / "benchmarks.md", CHECKOUT / "docs" / "evidence.md"


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Format a Markdown table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def listed(names: Sequence[str]) -> str:
    """Join names: "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def percent(part: int, whole: int, digits: int = 2) -> str:
    """Format a share, rounded down so that an incomplete one is never printed as 100 %; "none" if `whole` is 0."""
    return f"{10**digits * 100 * part // whole / 10**digits:g} %" if whole else "none"


def _place(kind: str, name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {kind}: {re.escape(name)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(text: str, made: Mapping[str, str], kind: str) -> str:
    """Return a page's text with these places filled. Raises UsageError if one is not marked exactly once."""
    for name, content in made.items():
        parts = _place(kind, name).split(text)
        if len(parts) != 5:
            raise UsageError(f"{len(parts) // 4} places are marked <!-- {kind}: {name} --> … <!-- end -->, 1 is needed")
        text = "".join([parts[0], parts[1], f"{content}\n", *parts[3:]])
    return text


def fill(path: Path, made: Mapping[str, str], kind: str) -> None:
    """Fill these places in a page."""
    path.write_text(filled(path.read_text(), made, kind))


def marked(text: str, kind: str, name: str) -> str:
    """Return the content of a place in a page's text. Raises ValueError if it is not marked."""
    found = _place(kind, name).search(text)
    if not found:
        raise ValueError(f"no place is marked <!-- {kind}: {name} -->")
    return found[2].rstrip("\n")
