"""Comparisons in the code of a kernel, with the operands that they had in a call."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The operands of a comparison `a ? b` over the threads of a call: the smallest and the largest of each, and of
    a - b. Integers are read as signed."""

    a: Range
    b: Range
    apart: Range


#: The comparisons of a call.
Compared = dict[Comparison, Operands]
