"""Random conditions of faults: comparisons of sizes, of products of sizes, of data, and of numbers of calls.

A fault that only runs under such a condition stands for those that no list of probes knows. A condition is one
comparison, or a conjunction of two, from this grammar:

    guard      = comparison | comparison "&&" comparison
    comparison = q "==" v | q "<" v | q ">=" v | q ">=" v "&&" q "<" v (a window) | q "%" v "==" v (whole numbers)

Each is drawn around the values of a witness, so that it can be satisfied. Sizes and widths are log-uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Rng = np.random.Generator
Form = Literal["==", "<", ">=", "window", "remainder"]

#: Draws after which a bound on the requested side of the witness is given up.
_TRIES = 64
#: Divisors of remainders: half of them are sizes of tiles that kernels have.
TILES = tuple(tile << i for tile in (1, 3) for i in range(1, 9) if tile << i <= 512)
_LARGEST_DIVISOR = 1000
_TWO_COMPARISONS = 0.3


@dataclass(frozen=True)
class Quantity:
    """Something that a kernel can compare.

    Args:
        name: an expression of the kernel's language.
        kind: the class of guards that it makes: "M", "product", "data", …
        draw: returns a random value that it can have.
        whole: whether it is a whole number.
    """

    name: str
    kind: str
    draw: Callable[[Rng], float]
    whole: bool = True


@dataclass(frozen=True)
class Comparison:
    """A comparison of a quantity.

    Args:
        quantity, kind: its name and its kind.
        form: which comparison.
        numbers: the number that it is compared with; both ends of a window; divisor and remainder.
        whole: whether these are whole numbers.
    """

    quantity: str
    kind: str
    form: Form
    numbers: tuple[float, ...]
    whole: bool = True

    @property
    def text(self) -> str:
        """The comparison in C++."""
        name = f"({self.quantity})" if " " in self.quantity else self.quantity
        first, *others = map(self._number, self.numbers)
        if self.form == "window":
            return f"{name} >= {first} && {name} < {others[0]}"
        return f"{name} % {first} == {others[0]}" if self.form == "remainder" else f"{name} {self.form} {first}"

    def _number(self, value: float) -> str:
        if self.whole:
            return f"{int(value)}" + ("ll" if abs(value) >= 1 << 31 else "")
        text = str(np.float32(value))
        return f"{text if '.' in text or 'e' in text else text + '.0'}f"

    def holds(self, value: Any) -> Any:
        """Whether it holds for a value, or for each of an array of values."""
        first = self.numbers[0]
        if self.form == "window":
            return (value >= first) & (value < self.numbers[1])
        if self.form == "remainder":
            return np.fmod(value, first) == self.numbers[1]  # with the sign of the dividend, as in C++
        return value == first if self.form == "==" else value < first if self.form == "<" else value >= first


@dataclass(frozen=True)
class Guard:
    """A condition: all its comparisons hold."""

    comparisons: tuple[Comparison, ...]

    @property
    def text(self) -> str:
        """The condition in C++."""
        return " && ".join(one.text for one in self.comparisons)

    @property
    def kind(self) -> str:
        """The class of the guard: those of its quantities."""
        return " and ".join(sorted({one.kind for one in self.comparisons}))

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of its comparisons."""
        return tuple(one.form for one in self.comparisons)

    def holds(self, values: Mapping[str, Any]) -> Any:
        """Whether it holds for values of its quantities, or for each of arrays of values."""
        return reduce(np.logical_and, (one.holds(values[one.quantity]) for one in self.comparisons))


def log_uniform(rng: Rng, low: float, high: float) -> int:
    """Return a whole number from low to high, whose logarithm is uniform."""
    return min(int(high), int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def guard(rng: Rng, quantities: Sequence[Quantity], values: Mapping[str, float]) -> Guard:
    """Return a random condition of one or two comparisons.

    Args:
        quantities: those that it may be about.
        values: their values for the witness, for which it holds.
    """
    count = min(len(quantities), 1 + int(rng.random() < _TWO_COMPARISONS))
    chosen = rng.choice(len(quantities), size=count, replace=False)
    return Guard(tuple(comparison(rng, quantities[i], values[quantities[i].name]) for i in chosen))


def comparison(rng: Rng, of: Quantity, value: float) -> Comparison:
    """Return a random comparison of a quantity that holds for a value."""
    forms: tuple[Form, ...] = ("==", "<", ">=", "window", "remainder") if of.whole else ("==", "<", ">=", "window")
    form = forms[rng.integers(len(forms))]

    def beside(above: bool) -> float | None:
        drawn = (of.draw(rng) for _ in range(_TRIES))
        return next((other for other in drawn if (other > value if above else other <= value)), None)

    if form == "remainder":
        tile = rng.random() < 0.5
        divisor = int(rng.choice(TILES)) if tile else log_uniform(rng, 2, _LARGEST_DIVISOR)
        numbers: tuple[float | None, ...] = divisor, math.fmod(value, divisor)
    elif form == "window" and of.whole:
        width = log_uniform(rng, 1, max(1.0, abs(value)))
        start = value - int(rng.integers(width))
        numbers = start, start + width
    elif form == "window":
        numbers = beside(False), beside(True)
    else:
        numbers = (value if form == "==" else beside(form == "<"),)
    if None in numbers:
        return Comparison(of.name, of.kind, "==", (value,), of.whole)
    return Comparison(of.name, of.kind, form, tuple(float(one) for one in numbers if one is not None), of.whole)
