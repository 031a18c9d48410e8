"""The record of an operation behind a product, and the arithmetic of the bounds of sums and of factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..drawn import Place
from ..narrow import HALF
from ..sums import UNDERFLOW, UNIT_ROUNDOFF, Doubles, Product

#: Roundings of a sum that an operand may take part in besides those of K terms: see `sums.EXTRA_ROUNDINGS`.
_EXTRA = 8


@dataclass(frozen=True)
class Fused:
    """The context of an operation: properties of the call that it ends.

    Args:
        k: columns of the weights.
        companion: returns the product of the same activations and the operand `up`. Raises ValueError if there is none.
        roundoff: unit roundoff of the arithmetic between the product and the output: 2^-24, or 2^-11 of halves.
        behind: the order of the sum is declared, so an operand is no part of it.
    """

    k: int
    companion: Callable[[], Product]
    roundoff: float = UNIT_ROUNDOFF
    behind: bool = False

    @property
    def underflow(self) -> float:
        """η, the largest loss of a result below the normal halves; negligible for float32, so 0."""
        return HALF.underflow if self.roundoff == HALF.unit else 0.0


Apply = Callable[[Product, npt.NDArray[Any], Fused], Product]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation behind a product y[m, n].

    Args:
        name: its name in a declaration.
        title: its formula.
        operand: the name of its operand.
        place: the unit of the operand: one number, one for a row of weights, one for a token, one for an output; None
            for the rows of a second matrix of weights.
        as_output: the operand has the output's type, unless the kernel declares otherwise; else it is float32.
        neutral: the value of the operand with which the operation changes nothing; None if there is none.
        factor: the operand is a factor, so its random values do not depend on the size of the product.
        apply: (product before, the operand as float64, the call) → product after, without `ordered`.
    """

    name: str
    title: str
    operand: str
    place: Place | None
    as_output: bool = False
    neutral: float | None
    factor: bool = False
    apply: Apply


def still_lost(p: Product, factor: Doubles | float, fused: Fused) -> Doubles | float:
    """Return the underflow loss of p times a factor: its earlier loss, and that of the result."""
    if isinstance(p.underflow, float) and not p.underflow:
        return fused.underflow
    return np.broadcast_to(factor * p.underflow, p.exact.shape) + fused.underflow


def added(p: Product, addend: Doubles, fused: Fused) -> Product:
    """Return p + b, for b float64 that broadcasts to [M, N].

    The kernel may add b behind the product, which rounds once: u·|o + b| and the contribution of the product's error.
    Or it may begin its sum with b, which then is a part of every partial sum: γ_n·|b| with n = K + 8 roundings at most,
    as for any other term of a sum (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §4.2). The bound
    holds for both. The spread counts b as a part of n partial sums: u/√3·|b|·√n. Behind a sum of a declared order only
    the one rounding is left: n = 0.
    """
    u, n = fused.roundoff, 0 if fused.behind else fused.k + _EXTRA
    exact = p.exact + addend
    size = np.abs(addend)
    bound = p.bound + u * (np.abs(exact) + p.bound) + n * u / (1 - n * u) * size
    spread = np.sqrt(p.spread**2 + u**2 / 3 * (exact**2 + n * size**2))
    return Product(exact, bound, spread, None, underflow=still_lost(p, 1.0, fused))


def multiplied(p: Product, factor: Doubles, fused: Fused) -> Product:
    """Return α·p, for α float64 that broadcasts to [M, N].

    The kernel may multiply the result, which rounds once: |α|·β + u·|α|·(|o| + β), where β is the product's bound. Or
    it may multiply every scale or term beforehand, which adds u·Σ|t| before the factor: β is γ_n·Σ|t| or more with n ≥
    9, so that is at most β/9. The bound holds for both; η = 2^-150 is for a result that underflows. (Behind a sum of a
    declared order, whose β is 0, it only holds for the one rounding.)
    """
    u = fused.roundoff
    size = np.abs(factor)
    bound = size * (p.bound * (1 + 1 / 9) + u * (np.abs(p.exact) + p.bound)) + UNDERFLOW
    spread = size * np.sqrt(p.spread**2 + 2 * u**2 / 3 * p.exact**2) + UNDERFLOW
    return Product(p.exact * factor, bound, spread, None, underflow=still_lost(p, size, fused))
