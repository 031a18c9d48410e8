"""Comparisons in the code of a kernel, with the operands that they had in a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class Operands:
    """The operands of a comparison `a ? b` over the threads of a call: the smallest and the largest of each, and of
    a - b. Integers are read as signed."""

    a: Range
    b: Range
    apart: Range

    @classmethod
    def of(cls, a: float, b: float) -> Operands:
        """Return those of a comparison that is made once."""
        return cls((a, a), (b, b), (a - b, a - b))

    @property
    def uniform(self) -> bool:
        """Whether all threads compare the same two values."""
        return self.a[0] == self.a[1] and self.b[0] == self.b[1]


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
