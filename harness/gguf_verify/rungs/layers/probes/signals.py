"""Numbers that the outcome of a comparison depends on, among its operands at several shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....kernels.comparisons import Operands


@dataclass(frozen=True)
class Signal:
    """A number that a comparison's outcome depends on: it changes where this is `level`.

    Args:
        name: the field of `Operands`.
        end: 0 for the smallest value among the threads, 1 for the largest.
        of_range: 0 is a level because the comparison may be a range test.
    """

    name: str
    end: int
    level: float = 0
    of_range: bool = False

    def of(self, operands: Operands) -> float:
        return float(getattr(operands, self.name)[self.end])

    def sign(self, operands: Operands) -> int:
        """-1 below the level, 1 above it."""
        value = self.of(operands)
        return (value > self.level) - (value < self.level)


def signals_of(operands: Sequence[Operands]) -> list[Signal]:
    """The numbers that change along operands, each once: one of them if the other is constant, else a - b."""
    found: dict[tuple[float, ...], Signal] = {}
    for end in (1, 0):
        for name, other in (("a", "b"), ("b", "a")):
            level, *others = {e for one in operands for e in getattr(one, other)}
            if not others:
                # a range test, C > x - D without a sign, changes at x = D and at x = C + D
                for signal in (Signal(name, end, level), Signal(name, end, 0, of_range=True)):
                    found.setdefault((*map(signal.of, operands), signal.level), signal)
                break
        else:
            signal = Signal("apart", end)
            found.setdefault((*map(signal.of, operands), 0), signal)
    return [signal for (*values, _), signal in found.items() if len({*values}) > 1]
