"""Comparisons in the code of a kernel, with the operands that they had in a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..support.text import printable

Range = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """One comparison in the code of a kernel.

    Args:
        place: FILE:LINE in the author's files.
        number: distinguishes the comparisons at one place; one comparison of the source may be several in the code.
    """

    place: str
    number: int


@dataclass(frozen=True)
class Operands:
    """The operands of a comparison `a ? b` over the threads of a call. Integers are read as signed.

    Args:
        a, b, apart: the smallest and the largest of each, and of a - b.
        outcomes: those that occurred: bit 0: a < b, 1: a = b, 2: a > b; 3 to 5: the same of integers read as unsigned.
        times: how often it was made.
    """

    a: Range
    b: Range
    apart: Range
    outcomes: int = 0
    times: int = 1


#: The comparisons of a call.
Compared = dict[Comparison, Operands]


def in_words(place: str, texts: Mapping[str, str]) -> str:
    """FILE:LINE with the text of the line.

    Args:
        texts: the author's files.
    """
    file, _, number = place.rpartition(":")
    lines = texts.get(file, "").splitlines()
    text = lines[int(number) - 1].strip() if int(number) <= len(lines) else ""
    return f"{place}: {printable(text, 80)}" if text else place
