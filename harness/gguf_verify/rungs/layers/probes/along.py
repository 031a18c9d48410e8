"""The operands of a comparison along one dimension of the shape, and the sizes at which its outcome changes.

This serves comparisons whose operands have no form (`forms`): the slope, and bisection where the sign changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ....kernels.comparisons import Compared, Comparison, Operands
from .signals import Signal

Shape = tuple[int, int, int]

#: Counts over which a period is searched: sizes of tiles that kernels have first.
_PERIOD = 256
_TILES = tuple(tile << i for tile in (1, 3) for i in range(9) if tile << i <= _PERIOD)
#: The largest sizes that are observed.
LARGEST = (1 << 21, 1 << 21, 1 << 16)


class Sizes(Protocol):
    """Observations of the sizes that a kernel allows."""

    @property
    def steps(self) -> Shape:
        """Return the differences of allowed sizes."""

    def at(self, shape: Shape) -> Compared | None:
        """Return the comparisons of a call of a shape."""

    def near(self, d: int, size: int) -> int | None:
        """Return the next size of a dimension that is allowed."""


@dataclass
class Line:
    """The operands of a comparison along one dimension.

    Args:
        base: a shape of the line.
        offsets: steps from it at which the operands are observed first.
    """

    search: Sizes
    base: Shape
    dimension: int
    comparison: Comparison
    offsets: Sequence[int]

    def __post_init__(self) -> None:
        self.start, self.step = self.base[self.dimension], self.search.steps[self.dimension]
        sizes = (self.start + steps * self.step for steps in self.offsets)
        self.sizes = [size for size in sizes if self.operands(size) is not None]

    def shape(self, size: int) -> Shape:
        m, n, k = (size if d == self.dimension else other for d, other in enumerate(self.base))
        return m, n, k

    def operands(self, size: int) -> Operands | None:
        if not 0 < size <= LARGEST[self.dimension] or self.search.near(self.dimension, size) != size:
            return None
        return (self.search.at(self.shape(size)) or {}).get(self.comparison)

    def uniform(self, size: int) -> bool:
        operands = self.operands(size)
        return operands is not None and operands.uniform

    def value(self, signal: Signal, size: int) -> float | None:
        operands = self.operands(size)
        return None if operands is None else float(getattr(operands, signal.name)[signal.end])

    def signals(self) -> list[Signal]:
        """The signals that change along the line, each once."""
        seen = [operands for operands in map(self.operands, self.sizes) if operands is not None]
        found: dict[tuple[float, ...], Signal] = {}
        for name, other in (("apart", ""), ("a", "b"), ("b", "a")):
            # a range test, C > x - D without a sign, changes at x = D and at x = C + D
            if other and len({end for operands in seen for end in getattr(operands, other)}) > 1:
                continue
            for end in (1, 0):
                values = tuple(getattr(operands, name)[end] for operands in seen)
                if len({*values}) > 1:
                    found.setdefault(values, Signal(name, end))
        return list(found.values())

    def crossings(self, signal: Signal) -> tuple[int, ...]:
        """The first size found at which the signal is 0 or has changed its sign; and where it ceases to be 0."""
        first = self.crossing(signal)
        if first is None or self.value(signal, first) != 0 or self.value(signal, first + self.step) != 0:
            return () if first is None else (first,)
        steps = 2
        while self.value(signal, first + steps * self.step) == 0:
            steps *= 2
        last, end = first + steps // 2 * self.step, first + steps * self.step
        if self.value(signal, end) is None:
            return (first,)
        while end - last > self.step:
            middle = last + (end - last) // (2 * self.step) * self.step
            last, end = (middle, end) if self.value(signal, middle) == 0 else (last, middle)
        return first, end

    def crossing(self, signal: Signal) -> int | None:
        points = [(size, self.value(signal, size) or 0.0) for size in self.sizes]
        for (low, before), (high, after) in pairwise(points):
            if before and before * after <= 0:
                return self.bisected(signal, low, high)
        (first, value), *others = points
        if value == 0:
            return first
        for size, other in (others[0], others[-1]):  # the local slope, and the slope of the whole
            slope = (other - value) / (size - first)
            if slope and (found := self.refined(signal, first, value, slope)) is not None:
                return found
        slopes = {(other - value) / (size - first) for size, other in others}
        remainder = signal.name == "apart" and len(slopes) > 1 and self.uniform(first)
        return self.scanned(signal, value) if remainder else None

    def refined(self, signal: Signal, first: int, value: float, slope: float) -> int | None:
        """The size that the slope predicts, if the signal is 0 or of another sign there."""
        steps = round(-value / slope / self.step)
        there = first + steps * self.step
        after = self.value(signal, there)
        if after is None or steps == 0:
            return None
        return self.bisected(signal, min(first, there), max(first, there)) if after * value <= 0 else None

    def bisected(self, signal: Signal, low: int, high: int) -> int:
        """The smallest size at which the signal has not the sign that it has at `low`, if it changes once."""
        before = self.value(signal, low) or 0.0
        while high - low > self.step:
            middle = low + (high - low) // (2 * self.step) * self.step
            there = self.value(signal, middle)
            if there is not None and there * before > 0:
                low = middle
            else:
                high = middle
        return high

    def scanned(self, signal: Signal, value: float) -> int | None:
        """A size within a period with 0 or another sign: multiples of likely tiles first."""
        multiples = (-(-self.start // (tile * self.step)) * tile * self.step for tile in _TILES)
        for size in (*multiples, *(self.start + steps * self.step for steps in range(1, _PERIOD))):
            there = self.value(signal, size)
            if there is not None and there * value <= 0:
                return size
        return None

    def beside(self, size: int) -> tuple[Shape, ...]:
        """A size and its neighbours: in the domain, and among those at which the comparison is made."""
        sizes = (size + self.step * way for way in (-1, 0, 1) if size + self.step * way > 0)
        return tuple(self.shape(one) for one in sizes if self.search.near(self.dimension, one) == one)
