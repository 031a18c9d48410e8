"""Running errors: the float32 rounding error of each step of a recurrence, tracked along with the exact values.

A `Running` number has, in addition to its exact value:

    bound      largest error of a right computation. An operation takes the bounds of its operands times their factors,
               and adds half an ulp of its result, u·(|o| + bound), u = 2^-24, and the error of underflow (Higham,
               "Accuracy and Stability of Numerical Algorithms", 2nd ed., §3.3: a running error analysis).
    variance   of rounding errors that are independent of those of neighbouring elements. A rounding of o has a standard
               deviation of at most u·|o|/√3.
    common     variance of errors shared with neighbouring elements, such as that of a head's decay. In a sum the
               standard deviations are added, which covers any dependence.

A value of a step depends on the rounding errors of that step and, through the state, on those of earlier steps, which
are independent of them, so variances are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from gguf_verify.llama.node import Doubles, Node, Operand, demand
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, added, arithmetic
from .judging import Judged, within


def _none() -> Doubles:
    return np.zeros(())


@dataclass(frozen=True, eq=False)
class Running:
    """Values with their running errors; arrays that NumPy broadcasts to the values' shape."""

    value: Doubles
    bound: Doubles = field(default_factory=_none)
    variance: Doubles = field(default_factory=_none)
    common: Doubles = field(default_factory=_none)

    def at(self, index: Any) -> Running:
        """Return the values at a NumPy index."""
        parts = (self.bound, self.variance, self.common)
        bound, variance, common = (np.broadcast_to(each, self.value.shape)[index] for each in parts)
        return Running(self.value[index], bound, variance, common)

    def shared(self) -> Running:
        """Return the same values with all errors treated as common to the elements of a sum."""
        return replace(self, variance=_none(), common=self.variance + self.common)

    def rounded(self, tiny: float) -> Running:
        """Return the values after one rounding."""
        bound = self.bound + UNIT_ROUNDOFF * (np.abs(self.value) + self.bound) + tiny
        own = (UNIT_ROUNDOFF * self.value) ** 2 / 3 + tiny**2
        return replace(self, bound=bound, variance=self.variance + own)

    def times(self, other: Running, tiny: float) -> Running:
        """Return a product."""
        x, z = np.abs(self.value), np.abs(other.value)
        value = self.value * other.value
        bound = x * other.bound + z * self.bound + self.bound * other.bound
        variance = x**2 * other.variance + z**2 * self.variance
        return Running(value, bound, variance, x**2 * other.common + z**2 * self.common).rounded(tiny)

    def plus(self, other: Running, tiny: float) -> Running:
        """Return a sum."""
        return Running(
            self.value + other.value,
            self.bound + other.bound,
            self.variance + other.variance,
            self.common + other.common,
        ).rounded(tiny)

    def dot(self, weights: Doubles, tiny: float, axis: int = -1) -> Running:
        """Return Σ of the values times exact weights along an axis.

        A single lane is assumed, as in the scalar loops of most recurrences; its bound is the widest.
        """
        terms = self.value * weights
        size = np.abs(weights)
        n = terms.shape[axis]
        total, bound, spread = added(terms, 1, axis)
        carried = (size * self.bound).sum(axis=axis, keepdims=True)
        bound = bound + carried * (1 + 2 * (n + 1) * UNIT_ROUNDOFF) + 2 * n * tiny
        variance = spread**2 + (size**2 * self.variance).sum(axis=axis, keepdims=True)
        variance = variance + (size * np.sqrt(self.common)).sum(axis=axis, keepdims=True) ** 2
        return Running(*(np.squeeze(each, axis) for each in (total, bound, variance)))


def exp_error(backend: str, x: Doubles) -> Doubles:
    """Return the relative error of the scalar exponential of a recurrence's decay: the C library's on the CPU."""
    return np.full_like(x, ULP) if backend == "CPU" else arithmetic(backend).exp_error(x)


def joined(node: Node, definition: str, parts: Sequence[Running]) -> Judged:
    """Judge an output in which results and new states follow each other, in any shape.

    If the parts are shorter than the output, the operation leaves the rest unwritten: it is not judged.
    """
    size = sum(part.value.size for part in parts)
    demand(node.output.contiguous, f"{node.op} with an output that is not contiguous")
    demand(node.output.span_is_whole() and size <= prod(node.output.ne), f"{node.op} with too small an output")
    flat = node.output.data.reshape(-1)[:size]
    ne0 = node.output.ne[0]
    whole = flat.reshape((1, 1, -1, ne0) if ne0 and size % ne0 == 0 else (1, 1, 1, -1))
    with np.errstate(all="ignore"):
        exact = _flat([part.value for part in parts], parts)
        bound = _flat([part.bound for part in parts], parts)
        spread = np.sqrt(_flat([part.variance + part.common for part in parts], parts))
    written = replace(node, output=Operand.of(whole, node.output.type_id, node.output.name))
    shape = whole.shape
    return within(written, definition, exact.reshape(shape), bound.reshape(shape), spread.reshape(shape))


def _flat(arrays: Sequence[Doubles], parts: Sequence[Running]) -> Doubles:
    shaped = (np.broadcast_to(a, part.value.shape).reshape(-1) for a, part in zip(arrays, parts, strict=True))
    return np.concatenate(list(shaped))


def stacked(parts: Sequence[Running], axis: int) -> Running:
    """Return the values of several steps stacked along a new axis; an empty axis for no steps."""
    if not parts:
        return Running(np.zeros(0))
    whole = [[np.broadcast_to(a, p.value.shape) for a in (p.value, p.bound, p.variance, p.common)] for p in parts]
    return Running(*(np.stack(each, axis) for each in zip(*whole, strict=True)))
