"""Running errors: the float32 rounding error of each step of a recurrence, tracked along with the exact values.

A `Running` number has, in addition to its exact value:

    bound      largest error of a correct computation. An operation takes the bounds of its operands times their
               factors, and adds half an ulp of its result, u·(|o| + bound), u = 2^-24, and the error of underflow
               (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §3.3: a running error analysis).
    variance   of rounding errors that are independent of those of neighbouring elements. A rounding of o has a standard
               deviation of at most u·|o|/√3.
    common     variance of errors shared with neighbouring elements, such as that of a head's decay. In a sum the
               standard deviations are added, which covers any dependence.

A value of a step depends on the rounding errors of that step and, through the state, on those of earlier steps, which
are independent of them, so variances are added.

Running errors of states that are read and written by whole rows: the delta rules of RWKV-7 and gated DeltaNet.

    c = Σ_j a[j]·s[j];  δ = gain·c + offset;  s'[j] = d[j]·s[j] + extra[j] + b[j]·δ      for each row s of a head

An error e of a row becomes M·e with M = diag(d) + gain·b·aᵀ, the same for all rows of a head. The bound of an element,
|M|·e, would grow from token to token even where M does not increase the norm, so two more quantities are tracked:

    norm        largest 2-norm of a row's error: ‖M‖₂·norm, plus the norm of the error that a step adds. The error of an
                element is at most norm, and that of a read by a at most ‖a‖₂·norm.
    covariance  P ← M·P·Mᵀ plus the variances of a step's roundings, the largest of a head's rows. The standard
                deviation of a read by a is at most √(aᵀ·P·a).
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


@dataclass(frozen=True, eq=False)
class Rows:
    """A state [..., rows, elements] with its running errors: bound of the same shape, norm [..., rows] and covariance
    [..., elements, elements]."""

    value: Doubles
    bound: Doubles
    norm: Doubles
    covariance: Doubles

    @staticmethod
    def of(value: Doubles) -> Rows:
        """Return exact values."""
        n = value.shape[-1]
        zero = np.zeros(value.shape)
        return Rows(value, zero, zero[..., 0], np.zeros((*value.shape[:-2], n, n)))

    def running(self) -> Running:
        """Return the state as independent elements."""
        variance = np.einsum("...jj->...j", self.covariance)[..., None, :]
        return Running(self.value, self.bound, np.broadcast_to(variance, self.value.shape))

    def scaled(self, d: Doubles, error: Doubles, tiny: float) -> Rows:
        """Return the state times factors d > 0 [..., elements or 1] with a relative error, rounded.

        The error of one factor is common to a row x; its covariance ε²·x·xᵀ is at most n·ε²·diag(x²).
        """
        n = self.value.shape[-1]
        value = self.value * d[..., None, :]
        carried = self.bound * d[..., None, :]
        off = error[..., None, :]
        fresh = (off + (1 + off) * UNIT_ROUNDOFF) * (np.abs(value) + carried) + tiny
        bound = carried + fresh
        norm = np.minimum(d.max(axis=-1)[..., None] * self.norm + _norm(fresh), _norm(bound))
        common = n if d.shape[-1] == 1 else 1
        noise = (UNIT_ROUNDOFF**2 / 3 + common * off**2) * value**2 + tiny**2
        covariance = self.covariance * d[..., :, None] * d[..., None, :] + _diagonal(noise)
        return Rows(value, np.minimum(bound, norm[..., None]), norm, covariance)

    def read(self, a: Doubles, tiny: float) -> tuple[Running, Doubles]:
        """Return Σ_j a[j]·s[j] of each row, and the part of its bound that comes from the state's errors."""
        total, rounding, spread = (each[..., 0] for each in added(self.value * a[..., None, :], 1))
        n = a.shape[-1]
        carried = (np.abs(a)[..., None, :] * self.bound).sum(axis=-1)
        fresh = rounding + 2 * (n + 1) * UNIT_ROUNDOFF * carried + 2 * n * tiny
        carried = np.minimum(carried, np.sqrt((a**2).sum(axis=-1))[..., None] * self.norm)
        seen = np.einsum("...i,...ij,...j->...", a, self.covariance, a)[..., None]
        return Running(total, carried + fresh, spread**2 + np.maximum(seen, 0)), carried

    def mixed(
        self,
        d: Doubles | None,
        a: Doubles,
        b: Doubles,
        gain: Doubles,
        offset: Doubles,
        extra: Doubles,
        size: Doubles,
        tiny: float,
    ) -> Rows:
        """Return the next state, as above.

        Args:
            d: [..., elements]; None where it is 1 and nothing is multiplied.
            a, b: [..., elements].
            gain: [..., 1], of a head.
            offset: [..., rows].
            extra: [..., rows, elements], products rounded once; zeros where there are none.
            size: an upper bound of ‖M‖₂, [...].
        """
        c, carried = self.read(a, tiny)
        seen = gain * c.value
        delta = seen + offset
        # c; c scaled, as in some backends; the difference; its product
        rounded = np.abs(seen) + np.abs(gain) * c.bound
        rounded = UNIT_ROUNDOFF * (rounded + 2 * (np.abs(delta) + rounded))
        fresh = np.abs(gain) * (c.bound - carried) + rounded + 4 * tiny
        read_variance = np.einsum("...i,...ij,...j->...", a, self.covariance, a)[..., None]
        noise = gain**2 * np.maximum(c.variance - read_variance, 0) + UNIT_ROUNDOFF**2 * (seen**2 + 2 * delta**2) / 3

        column = b[..., None, :]
        own = self.value if d is None else self.value * d[..., None, :]
        held = self.bound if d is None else self.bound * np.abs(d)[..., None, :]
        written = column * delta[..., None]
        value = own + extra + written
        new = held + np.abs(column) * (np.abs(gain) * carried + fresh)[..., None]
        parts = np.abs(extra) + np.abs(written) + (0 if d is None else np.abs(own) + np.abs(own + extra))
        squares = extra**2 + written**2 + (0 if d is None else own**2 + (own + extra) ** 2)
        step = UNIT_ROUNDOFF * (parts + np.abs(value) + 3 * new) + 4 * tiny
        bound = new + step
        norm = size[..., None] * self.norm + np.sqrt((b**2).sum(axis=-1))[..., None] * fresh + _norm(step)
        norm = np.minimum(norm, _norm(bound))

        p = self.covariance if d is None else self.covariance * d[..., :, None] * d[..., None, :]
        reached = np.einsum("...ij,...j->...i", self.covariance, a)
        reached = reached if d is None else reached * d
        across = gain[..., None] * reached[..., :, None] * b[..., None, :]
        both = (gain**2)[..., None] * read_variance[..., None] + noise.max(axis=-1)[..., None, None]
        p = p + across + np.swapaxes(across, -1, -2) + both * b[..., :, None] * b[..., None, :]
        p = p + _diagonal(UNIT_ROUNDOFF**2 / 3 * (squares + value**2) + 16 * tiny**2)
        return Rows(value, np.minimum(bound, norm[..., None]), norm, p)


def _norm(rows: Doubles) -> Doubles:
    norm: Doubles = np.sqrt((rows**2).sum(axis=-1))
    return norm


def _diagonal(noise: Doubles) -> Doubles:
    """Return variances [..., rows, elements] as a covariance, the largest of all rows."""
    largest = noise.max(axis=-2)
    matrix: Doubles = largest[..., :, None] * np.eye(largest.shape[-1])
    return matrix
