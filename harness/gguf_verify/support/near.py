"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'q8_1_dp4a'? " if a known name is near, otherwise ""; more text may follow it."""
    by_lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name[:200].lower(), by_lower, 1, 0.6)
    return f"did you mean '{by_lower[found[0]]}'? " if found else ""


def meant(name: str, known: Iterable[str]) -> str:
    """Return the same for the end of a line: "; did you mean 'q8_1_dp4a'?", or ""."""
    found = nearest(name, known).strip()
    return f"; {found}" if found else ""
