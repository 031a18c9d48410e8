"""Durations as text: "90", "90s", "2m", "1h"."""

from __future__ import annotations

import math
import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", re.ASCII)
#: Longest duration of a run: about 114 years.
MOST_SECONDS = 3.6e9


def seconds_of(text: str) -> float:
    """Parse a number with an optional unit (s, m, h; default s) into seconds.

    Raises ValueError if the text is no such number, or not above 0.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or not is_duration(seconds := float(found[1]) * _UNITS[found[2] or "s"]):
        raise ValueError(f"{text[:40]!a} is not a duration above 0, such as 90, 90s, 2m or 1h")
    return seconds


def is_duration(seconds: float) -> bool:
    """Whether a number of seconds is a valid duration: above 0, finite, and not absurdly long."""
    return math.isfinite(seconds) and 0 < seconds <= MOST_SECONDS


def in_words(seconds: float) -> str:
    """Format seconds as `seconds_of` reads them, in the largest unit that gives a whole number."""
    for unit in ("h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds:.12g}s"
