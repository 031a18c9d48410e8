"""Waivers at the terminal, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ...results.failures import WaiverState, WaiverUse
from ...support.text import printable
from .console import BAD, WARN, capped, said

MOST_LINES = 20
#: State → its mark and colour; what no longer counts comes first.
_MARKS: dict[WaiverState, tuple[str, str]] = {
    "expired": ("ERROR: WAIVER EXPIRED ", BAD), "applied": ("WAIVED ", WARN), "unused": ("UNUSED WAIVER ", WARN),
}  # fmt: skip


def lines(uses: Sequence[WaiverUse]) -> Iterator[Text]:
    """A line for each waiver."""
    told = [
        said(mark, printable(use.words, 600))
        for state, mark in _MARKS.items() for use in uses if use.state == state
    ]  # fmt: skip
    yield from capped(told, MOST_LINES, "more waivers")
