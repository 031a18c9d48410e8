"""The numbers that blocks of weights and activations store, which a search for data sets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...field_classes import Places, classes

#: Numbers of at least this width are floating-point ones: a sign, and all ones in the exponent for no finite number.
_OF_FLOATS, _EXPONENTS = 16, {16: 0x7C00, 32: 0x7F80_0000}
#: Up to this width every pattern of a number is observed.
_EVERY_PATTERN = 4


class Data(NamedTuple):
    """One block of weights and one of activations, which all blocks of a product are: their bytes, little-endian."""

    weights: int
    x: int

    def of(self, weights: bool) -> int:
        return self.weights if weights else self.x


@dataclass(frozen=True)
class Number:
    """A number that a block stores, or several numbers of one name, which get the same bits.

    Args:
        weights: of a block of weights, else of activations.
        places: of each bit of each of them, its place in the block and in the number.
    """

    weights: bool
    places: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def width(self) -> int:
        return len(self.places[0])

    @property
    def floating(self) -> bool:
        return self.width >= _OF_FLOATS

    @property
    def singles(self) -> list[Number]:
        return [Number(self.weights, (one,)) for one in self.places]

    @cached_property
    def _masks(self) -> list[int]:
        """Of each bit of the number, its bits in the block."""
        masks = [0] * (1 + max(of for _, of in self.places[0]))
        for at, of in itertools.chain(*self.places):
            masks[of] |= 1 << at
        return masks

    def set(self, data: Data, pattern: int) -> Data:
        block = data.of(self.weights)
        for bit, mask in enumerate(self._masks):
            block = block | mask if pattern >> bit & 1 else block & ~mask
        return Data(block, data.x) if self.weights else Data(data.weights, block)

    def get(self, data: Data) -> int | None:
        """The pattern; None if the numbers differ."""
        block = data.of(self.weights)
        found = {sum((block >> at & 1) << of for at, of in places) for places in self.places}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def runs(self) -> list[list[int]]:
        """Patterns to observe: runs in which the value rises or falls all along."""
        patterns = [int(p) for p in classes(self.width, self.width <= _EVERY_PATTERN)]
        if not self.floating:
            return [sorted(patterns)]
        sign = 1 << self.width - 1
        return [sorted(p for p in patterns if p & sign == side) for side in (0, sign)]

    @cached_property
    def few(self) -> list[int]:
        """Patterns of `runs` that show whether anything depends on the number: the ends, and one between them."""
        return [run[i] for run in self.runs for i in sorted({1 if self.floating else 0, len(run) // 2, len(run) - 1})]

    def finite(self, pattern: int) -> bool:
        ones = _EXPONENTS.get(self.width, 0)
        return 0 <= pattern < 1 << self.width and (not ones or pattern & ones != ones)

    # ---- codes -------------------------------------------------------------------------------------------------------

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest code: those of bytes are signed."""
        half = 1 << self.width - 1
        return (-half, half - 1) if self.width == 8 else (0, 2 * half - 1)

    def code(self, data: Data) -> int:
        """The code of a single number."""
        pattern = self.get(data) or 0
        return pattern if pattern <= self.ends[1] else pattern - (1 << self.width)

    def pattern(self, code: int) -> int:
        """The bits of the nearest code."""
        least, most = self.ends
        return max(least, min(code, most)) & (1 << self.width) - 1


def numbers(weights: bool, stored: dict[str, list[Places]]) -> list[Number]:
    """The numbers of a block (`numbers_of`): those of each name together."""
    return [Number(weights, tuple(tuple(one) for one in members)) for members in stored.values()]
