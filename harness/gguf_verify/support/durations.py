"""Durations as words: "90", "90s", "2m", "1h"."""

from __future__ import annotations

import math
import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", re.ASCII)
#: The longest that a run may be given: about 114 years.
MOST_SECONDS = 3.6e9


def seconds_of(text: str) -> float:
    """The seconds of a number with a unit, which is seconds where there is none. Raises ValueError where it is none, or
    not above 0."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or not is_duration(seconds := float(found[1]) * _UNITS[found[2] or "s"]):
        raise ValueError(f"{text[:40]!a} is no time above 0, such as 90, 90s, 2m or 1h")
    return seconds


def is_duration(seconds: float) -> bool:
    """Whether something can take so long: more than no time, and not for ever."""
    return math.isfinite(seconds) and 0 < seconds <= MOST_SECONDS


def in_words(seconds: float) -> str:
    """As `seconds_of` takes it, in the largest unit of which it is a whole number."""
    for unit in ("h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds:.12g}s"
