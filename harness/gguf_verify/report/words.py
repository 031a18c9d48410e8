"""Pieces of sentences that several reports have."""

from __future__ import annotations


def ends(numbers: str) -> str:
    """Ranges, such as those of an envelope, without most of those between the first and the last."""
    ranges = numbers.split(", ")
    if len(ranges) <= 3:
        return numbers or "none"
    return f"{ranges[0]}, {ranges[1]}, … {ranges[-1]} ({len(ranges)} ranges)"
