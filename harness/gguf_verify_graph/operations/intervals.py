"""Intervals that hold every value which the formula of an element can give in a backend's float32.

The formula is evaluated step by step. Each step computes the interval of its result from those of its operands: the
exact results at the ends, moved outward by the error of the step (Moore, Kearfott and Cloud, "Introduction to Interval
Analysis", ch. 4). With an error of k ulps:

    [a, b]  →  [a - k·2^-23·|a| - 2k·2^-150,  b + k·2^-23·|b| + 2k·2^-150],   beyond float32's range: infinite

A compiler that contracts a product and a sum omits one of these steps, and stays within the interval. The bound of an
element is the distance from its exact result, which is computed separately, to the farther end. Errors in ulps are
those of `arithmetic`. For further functions:

    CPU      expf, expm1f, erff, sinf, cosf: 1 ulp (glibc manual, "Errors in Math Functions"); ggml_v_expf as there, and
             it may overflow above 88.37 (vec.h)
    CUDA     erff 2 ulps, expm1f 1 ulp; sine and cosine between -100·π and 100·π: 2^-14.7 (CUDA C++ Programming Guide,
             "Mathematical Functions"; PTX ISA, "sin.approx")
    Vulkan   SPIR-V has neither erf nor expm1: the shaders compute them from other functions
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gguf_verify.llama.node import Array, Doubles, Node, NoDefinition

from .arithmetic import NORMAL, ULP, Arithmetic, arithmetic
from .judging import OVERFLOWS, UNDERFLOW, Judged, within

#: An exponential above this is infinite in float32 whatever its error in ulps; it is still finite in float64.
_ENDLESS = 100.0
#: Number of elements judged at a time, so that the intervals of the steps stay small.
_PART = 1 << 18

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, eq=False)
class Interval:
    """A closed interval, by its ends."""

    low: Doubles
    high: Doubles

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def at_most(self, limit: float) -> Interval:
        return Interval(np.minimum(self.low, limit), np.minimum(self.high, limit))

    def at_least(self, limit: float) -> Interval:
        return Interval(np.maximum(self.low, limit), np.maximum(self.high, limit))

    def increasing(self, of: Callable[[Doubles], Doubles]) -> Interval:
        """Return the interval of a function that never decreases and is not rounded."""
        return Interval(of(self.low), of(self.high))


def point(value: Array | float | np.float32) -> Interval:
    """Return the interval of a known value, such as a constant."""
    exact = np.asarray(value, np.float64)
    return Interval(exact, exact)


def where(condition: Array, a: Interval, b: Interval) -> Interval:
    return Interval(np.where(condition, a.low, b.low), np.where(condition, a.high, b.high))


@dataclass(frozen=True)
class Steps:
    """Steps of a formula on a backend.

    Args:
        backend: ggml's name.
        arithmetic: of the backend.
    """

    backend: str
    arithmetic: Arithmetic

    @staticmethod
    def of(backend: str) -> Steps:
        """Return the steps of a backend. Raises NoDefinition."""
        return Steps(backend, arithmetic(backend))

    def source(self, x: Doubles) -> Interval:
        """Return the value read from a source: a subnormal number may be flushed to zero."""
        if not self.arithmetic.flushes:
            return point(x)
        small = np.abs(x) < NORMAL
        return Interval(np.where(small, np.minimum(x, 0), x), np.where(small, np.maximum(x, 0), x))

    def rounded(self, exact: Interval, ulps: float = 0.5) -> Interval:
        """Return a result with an error of this number of ulps."""
        tiny = NORMAL if self.arithmetic.flushes else 2 * ulps * UNDERFLOW
        return _widened(exact, ulps * ULP, tiny, OVERFLOWS["F32"])

    def half(self, value: Interval) -> Interval:
        """Return the value rounded to float16."""
        return _widened(value, 2.0**-11, 2.0**-25, OVERFLOWS["F16"])

    def add(self, a: Interval, b: Interval) -> Interval:
        return self.rounded(Interval(a.low + b.low, a.high + b.high))

    def subtract(self, a: Interval, b: Interval) -> Interval:
        return self.add(a, -b)

    def multiply(self, a: Interval, b: Interval) -> Interval:
        return self.rounded(_hull(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high))

    def divide(self, a: Interval, b: Interval) -> Interval:
        """Return a/b, where b does not contain zero."""
        quotient = _hull(a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high)
        zero = np.maximum(np.abs(b.low), np.abs(b.high)) >= self.arithmetic.vanishes
        if zero.any():
            low, high = np.minimum(quotient.low, 0), np.maximum(quotient.high, 0)
            quotient = Interval(np.where(zero, low, quotient.low), np.where(zero, high, quotient.high))
        return self.rounded(quotient, self.arithmetic.division)

    def exp(self, x: Interval, vector: bool = False) -> Interval:
        """Return e^x. Args: vector: whether the CPU backend uses ggml_v_expf rather than the C library."""
        x = x.at_most(_ENDLESS)
        low, high = np.exp(x.low), np.exp(x.high)
        if self.backend == "CPU":
            result = self.rounded(Interval(low, high), self.arithmetic.exponential[0] if vector else 1.0)
            if vector:
                result = Interval(result.low, np.where(x.high > 88.37, np.inf, result.high))
        else:
            # a relative error is meaningless where the exponential underflows
            downward = np.where(low > 0, low * np.minimum(self.arithmetic.exp_error(x.low), 1), 0)
            upward = np.where(high > 0, high * self.arithmetic.exp_error(x.high), 0)
            result = self.rounded(Interval(low - downward, high + upward), 0)
        return result.at_least(0.0)

    def expm1(self, x: Interval) -> Interval:
        """Return e^x - 1 of the C library, or of CUDA."""
        return self.rounded(x.increasing(np.expm1), 1.0).at_least(-1.0)

    def log(self, x: Interval) -> Interval:
        logarithm = self.rounded(x.increasing(np.log), self.arithmetic.logarithm)
        near = np.where((x.high >= 0.5) & (x.low <= 2), self.arithmetic.near_one, 0.0)
        return Interval(logarithm.low - near, logarithm.high + near)

    def tanh(self, x: Interval) -> Interval:
        return self.rounded(x.increasing(np.tanh), self.arithmetic.tanh).at_least(-1.0).at_most(1.0)

    def erf(self, x: Interval) -> Interval:
        """Return erf; the ends move by the steepest slope, 2/√π·exp(-x²) at the end nearest to zero."""
        middle = np.where(np.isinf(x.low), x.low, (x.low + x.high) / 2)
        width = np.where(np.isinf(x.low), 0.0, (x.high - x.low) / 2)
        width = width * 2 / np.sqrt(np.pi) * np.exp(-(np.minimum(np.abs(x.low), np.abs(x.high)) ** 2))
        value = erf(middle)
        ulps = 2.0 if self.backend == "CUDA" else 1.0
        return self.rounded(Interval(value - width, value + width), ulps).at_least(-1.0).at_most(1.0)

    def square_root(self, x: Interval) -> Interval:
        return self.rounded(x.increasing(np.sqrt), self.arithmetic.square_root)

    def circular(self, of: Callable[[Doubles], Doubles], angle: Interval) -> Interval:
        """Return sine or cosine, whose slope is at most 1. Raises NoDefinition for an angle for which the backend
        states no error."""
        middle, width = (angle.low + angle.high) / 2, (angle.high - angle.low) / 2
        value = of(middle)
        exact = Interval(value - width, value + width)
        if not self.arithmetic.angle:
            return self.rounded(exact, 1.0)
        size = np.maximum(np.abs(angle.low), np.abs(angle.high))
        largest = float(np.max(size, initial=0.0))
        if largest > (100 * np.pi if self.backend == "CUDA" else np.pi):
            raise NoDefinition(f"sine and cosine of {largest:.4g} on {self.backend}")
        off = np.where(size <= np.pi, self.arithmetic.angle, 2.0**-14.7)
        return self.rounded(Interval(exact.low - off, exact.high + off), 0)


def erf(x: Doubles) -> Doubles:
    """Return erf(x), which NumPy lacks."""
    return np.asarray(_erf(x), np.float64)


def _hull(*candidates: Doubles) -> Interval:
    return Interval(np.minimum.reduce(candidates), np.maximum.reduce(candidates))


def _widened(exact: Interval, relative: float, least: float, limit: float) -> Interval:
    """Return an interval with its ends moved outward; those beyond a type's range are infinite."""
    ends = []
    for end, outward in ((exact.low, -1.0), (exact.high, 1.0)):
        size = np.abs(end)
        moved = end + outward * (relative * np.where(np.isinf(size), 0.0, size) + least)
        ends.append(np.where(np.abs(moved) >= limit, np.copysign(np.inf, moved), moved))
    return Interval(*ends)


Follow = Callable[..., tuple[Doubles, Interval]]


def enclosed(node: Node, definition: str, follow: Follow, *sources: Array) -> Judged:
    """Judge outputs by intervals.

    Args:
        follow: computes from parts of the sources the exact results and the intervals of the formula's possible values,
            before the rounding to the output's type.
        sources: the values that each element of the output depends on, which NumPy broadcasts to its shape.

    Raises NoDefinition.
    """
    shape = node.output.shape
    limit = OVERFLOWS.get(node.output.type)
    if limit is None:
        raise NoDefinition(f"{node.operation} with an output of {node.output.type}")
    y = node.output.values.reshape(-1)
    flat = [np.broadcast_to(source, shape).reshape(-1) for source in sources]
    expected, bound = np.empty(y.size), np.empty(y.size)
    with np.errstate(all="ignore"):
        for first in range(0, y.size, _PART):
            part = slice(first, first + _PART)
            exact, reach = follow(*(np.asarray(source[part], np.float64) for source in flat))
            expected[part], bound[part] = _around(y[part], exact, reach, limit)
        if node.output.type == "F16" and node.backend == "Vulkan":
            # SPIR-V lets the device choose the rounding direction to half
            bound += 2.0**-11 * np.abs(np.where(np.isfinite(expected), expected, 0)) + 2.0**-25
    return within(node, definition, expected.reshape(shape), bound.reshape(shape))


def _around(y: Doubles, exact: Doubles, reach: Interval, limit: float) -> tuple[Doubles, Doubles]:
    """Return expected values and their bounds. Possible overflow and NaN are admitted; float32 may round to 0."""
    low, high = reach.low, reach.high
    exact = np.where(np.abs(exact) <= UNDERFLOW, 0.0, exact)
    upward, downward = high >= limit, low <= -limit
    expected = np.where(low >= limit, np.inf, np.where(high <= -limit, -np.inf, exact))
    expected = np.where((upward & (y == np.inf)) | (downward & (y == -np.inf)), y, expected)
    expected = np.where((np.isnan(low) | np.isnan(high)) & np.isnan(y), np.nan, expected)
    farthest = np.maximum(np.minimum(high, limit) - exact, exact - np.maximum(low, -limit))
    bound = np.where(np.isfinite(expected), np.maximum(farthest, 0.0), 0.0)
    return expected, np.nan_to_num(bound, nan=0.0)
