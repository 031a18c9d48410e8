"""Names as users type them: in any case, and misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
#: Least similarity of a near miss, as difflib measures it without leading dashes: "--quiet" is not near "--budget".
_NEAR = 0.66


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'q8_1_dp4a'? " if a known name is near, otherwise ""; more text may follow it."""
    by_lower = {k.lower().lstrip("-"): k for k in known}
    found = difflib.get_close_matches(name[:200].lower().lstrip("-"), by_lower, 1, _NEAR)
    return f"did you mean '{by_lower[found[0]]}'? " if found else ""


def meant(name: str, known: Iterable[str]) -> str:
    """Return the same for the end of a line: "; did you mean 'q8_1_dp4a'?", or ""."""
    found = nearest(name, known).strip()
    return f"; {found}" if found else ""


def spelled_as(name: T, known: Iterable[T], also: Mapping[str, T] | None = None) -> T:
    """Return the known name that equals `name` apart from case, or `name` itself if there is none.

    Args:
        also: other names → known names.
    """
    known = list(known)
    if not isinstance(name, str) or name in known:
        return name
    lower = name.lower()
    same = [each for each in known if isinstance(each, str) and each.lower() == lower]
    return same[0] if len(same) == 1 else (also or {}).get(lower, name)
