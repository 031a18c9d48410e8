"""A night at the terminal: what changed, then the cells that are not verified, then the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ...container.text import printable
from ...nightly.records import Night
from .summary import Comparison, Standing, changes, last, standings, title, verdict

_WIDTH = 110
#: Lines of a list; more are counted.
MOST_LINES = 40


def render(nights: Sequence[Night], comparison: Comparison | None = None) -> str:
    """The last of the nights, as plain text of lines no wider than 110 characters. Raises ValueError without nights."""
    night = last(nights)
    return "\n".join([*_header(night), "", *_changes(comparison), *_cells(night), *_end(night, comparison)]) + "\n"


def _header(night: Night) -> Iterator[str]:
    finished = night.finished or "not finished"
    yield _cut(f"{title(night)} · {night.started} to {finished} · {night.project or 'unknown version'}")
    if night.hardware:
        yield _cut("on " + ", ".join(f"{name} {value}" for name, value in night.hardware.items()))


def _changes(comparison: Comparison | None) -> Iterator[str]:
    if comparison is None:
        return
    found = list(changes(comparison))
    yield _cut(f"{'nothing changed' if not found else 'changed'} against {comparison.against}")
    for kind, cells in found:
        yield f"{kind.title.upper()} ({len(cells):,})"
        for cell in cells[:MOST_LINES]:
            yield _cut(f"  {cell.key}")
            yield _cut(f"      {cell.words}")
        yield from _more(len(cells))
    yield ""


def _cells(night: Night) -> Iterator[str]:
    wrong = [s for s in standings(night) if not s.verified]
    if not wrong:
        return
    shown = wrong[:MOST_LINES]
    names = [printable(str(s.key), 64) for s in shown]
    wide = max(map(len, names))
    yield f"{'not verified':<{wide}}  {'':24}{'seconds':>8}"
    for name, standing in zip(names, shown, strict=True):
        yield f"{name:<{wide}}  {standing.outcome:<24}{_seconds(standing)}".rstrip()
        if standing.words:
            yield _cut(f"    {standing.words}")
    yield from _more(len(wrong))
    yield ""


def _seconds(standing: Standing) -> str:
    return "" if standing.cell is None else f"{standing.cell.seconds:>8.1f}"


def _more(n: int) -> Iterator[str]:
    if n > MOST_LINES:
        yield f"  … and {n - MOST_LINES:,} more"


def _end(night: Night, comparison: Comparison | None) -> Iterator[str]:
    found = verdict(night, comparison)
    spent = sum(cell.seconds for cell in night.cells.values())
    yield from textwrap.wrap(f"{found.word.upper()}: {found.sentence} · {spent:,.1f} s in cells", _WIDTH)


def _cut(line: str) -> str:
    indent = len(line) - len(line.lstrip(" "))
    return line[:indent] + printable(line[indent:], _WIDTH - indent - 1)
