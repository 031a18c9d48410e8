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
    """The operands of a comparison `a ? b` over the threads of a call. Integers are read as signed.

    Args:
        a, b, apart: the smallest and the largest of each, and of a - b.
        signs: those of a - b that occurred: -1, 0, 1.
        times: how often it was made.
    """

    a: Range
    b: Range
    apart: Range
    signs: frozenset[int] = frozenset()
    times: int = 1


#: The comparisons of a call.
Compared = dict[Comparison, Operands]
