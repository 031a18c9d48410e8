"""Comparisons in the code of a kernel, with the operands that they had in a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..support.text import printable

Range = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """One comparison in the code of a kernel, or in an expression of its declaration.

    Args:
        place: FILE:LINE in the author's files; or the expression.
        number: distinguishes the comparisons at one place; one comparison of the source may be several in the code.
    """

    place: str
    number: int

    @property
    def converts(self) -> bool:
        """Whether it compares a value with the largest that a type of fewer bits holds."""
        return self.number & _CONVERTS != 0

    @property
    def of_float(self) -> bool:
        """Whether this value is a float, or the type is."""
        return self.converts and self.number & 3 != 0

    @property
    def to_float(self) -> bool:
        """Whether the type is a float."""
        return self.converts and self.number & 2 != 0


#: A bit of a comparison's number (`kernels/emulator/comparisons.hpp`).
_CONVERTS = 1 << 31


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

    @classmethod
    def of(cls, a: float, b: float) -> Operands:
        """Return those of a comparison that is made once."""
        return cls((a, a), (b, b), (a - b, a - b))

    @property
    def uniform(self) -> bool:
        """Whether all threads compare the same two values."""
        return self.a[0] == self.a[1] and self.b[0] == self.b[1]

    @property
    def several_outcomes(self) -> bool:
        """Whether threads had different ones of a < b, a = b and a > b."""
        return (self.outcomes & 7).bit_count() > 1

    @property
    def sign(self) -> int:
        """That of the smallest a - b: -1, 0, or 1."""
        return (self.apart[0] > 0) - (self.apart[0] < 0)


#: The comparisons of a call.
Compared = dict[Comparison, Operands]
#: How comparisons are observed: in single thread blocks of a call; in whole calls; only in the declaration of its
#: launches, without a call.
Observation = Literal["thread blocks", "calls", "launches"]


@dataclass(frozen=True)
class CodeNumber:
    """An integer in a kernel's code that may be compared with a size, though no comparison was observed.

    Args:
        place: FILE:LINE in the author's files.
        value: the integer.
        period: of a condition `size % period == value`; 0 without a remainder.
    """

    place: str
    value: int
    period: int = 0


def in_words(place: str, texts: Mapping[str, str]) -> str:
    """FILE:LINE with the text of the line; or an expression of the declaration of launches.

    Args:
        texts: the author's files.
    """
    file, _, number = place.rpartition(":")
    lines = texts.get(file, "").splitlines() if number.isdecimal() else []
    text = lines[int(number) - 1].strip() if lines and int(number) <= len(lines) else ""
    return f"{place}: {printable(text, 80)}" if text else printable(place, 200)
