"""Rounding of a backend: the error of one float32 operation, and the number of lanes of a long sum.

An ulp is the spacing of float32 numbers at the result, at most 2^-23 of it and at least 2^-149. "Accurate" operations
(+, -, · and those named below) are rounded to nearest: half an ulp.

    CPU      IEEE arithmetic; compilers may contract products and sums, which saves one rounding. Exponentials of
             vectors are ggml_v_expf (vec.h: "maximum error is 1.45358 plus 0.5 ulps"); others are the C library's, with
             at most one ulp in glibc 2.28 and later (tanhf: two; glibc manual, "Errors in Math Functions").
    CUDA     nvcc's -use_fast_math: division 2 ulps, square root 1 ulp, __expf 2 + floor(|1.173·x|) ulps, __logf
             2^-21.41 between 0.5 and 2 and 3 ulps elsewhere, __sinf and __cosf 2^-21.41 and 2^-21.19 between -π and π,
             tanh 2^-11 relative; a quotient by more than 2^126 may be zero; subnormal numbers are flushed (CUDA C++
             Programming Guide, "Intrinsic Functions"). Measured on an H200: docs/backend-measurements.md, "Functions".
    Vulkan   the precision required by SPIR-V: division 2.5 ulps, square root 2.5 + 2, exp 3 + 2·|x| ulps, log 2^-21
             between 0.5 and 2 and 3 ulps elsewhere, sin and cos 2^-11 between -π and π; subnormal numbers may be
             flushed (Vulkan specification, "Precision and Operation of SPIR-V Instructions").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gguf_verify.llama.node import Doubles, demand
from gguf_verify.semantics.lanes import variance
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .judging import UNDERFLOW

#: Spacing of float32 numbers at 1.
ULP = 2.0**-23
#: Number of terms that are added up in lanes at a time.
_AT_ONCE = 1 << 20
#: The smallest normal float32.
NORMAL = 2.0**-126


@dataclass(frozen=True)
class Arithmetic:
    """The float32 arithmetic of a backend.

    Args:
        division, square_root, logarithm, tanh, power: error in ulps.
        exponential: error in ulps, and its growth with |x|.
        angle: absolute error of sine and cosine of an angle between -π and π.
        near_one: absolute error of a logarithm of a number between 0.5 and 2, in addition to its ulps.
        flushes: whether subnormal operands and results may be flushed to zero.
        lanes: least number of partial sums that a long sum is split into; more lanes reduce its error.
        doubles: whether sums that the sources declare as double are double, so that they add no error.
        vanishes: a quotient by a number of at least this size may be zero.
    """

    division: float = 0.5
    square_root: float = 0.5
    logarithm: float = 1.0
    tanh: float = 2.0
    power: float = 1.0
    exponential: tuple[float, float] = (2.0, 0.0)
    angle: float = 0.0
    near_one: float = 0.0
    flushes: bool = False
    lanes: int = 8
    doubles: bool = True
    vanishes: float = np.inf

    @property
    def tiny(self) -> float:
        """Return the largest error of one operation below the normal numbers."""
        return NORMAL if self.flushes else UNDERFLOW

    def exp_error(self, x: Doubles) -> Doubles:
        """Return the relative error of exp(x)."""
        constant, growth = self.exponential
        error: Doubles = ULP * (constant + growth * np.abs(x))
        return error


_BACKENDS = {
    "CPU": Arithmetic(),
    "CUDA": Arithmetic(
        division=2, square_root=1, logarithm=3, tanh=4096, power=16, exponential=(2, 1.173), angle=2.0**-21.19,
        near_one=2.0**-21.41, flushes=True, lanes=32, doubles=False, vanishes=2.0**126,
    ),
    "Vulkan": Arithmetic(
        division=2.5, square_root=4.5, logarithm=3, tanh=16, power=16, exponential=(3, 2), angle=2.0**-11,
        near_one=2.0**-21, flushes=True, lanes=32, doubles=False,
    ),
}  # fmt: skip


def near_overflow(values: Doubles, limit: float = 2.0**127) -> bool:
    """Return whether a finite value is so large that a partial sum may have overflowed on the way to it."""
    return bool(((np.abs(values) >= limit) & np.isfinite(values)).any())


def arithmetic(backend: str) -> Arithmetic:
    """Return the arithmetic of a backend by ggml's name. Raises NoDefinition for an unknown one."""
    demand(backend in _BACKENDS, f"the arithmetic of the backend {backend}")
    return _BACKENDS[backend]


def added(terms: Doubles, lanes: int = 8, axis: int = -1) -> tuple[Doubles, Doubles, Doubles]:
    """Sum float32 terms along an axis, in any order, over several lanes.

    Returns the exact result, its bound and its spread, each with the axis kept at size one.

    Bound: γ_n·Σ|t| for n terms (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §4.2); it holds for
    any order and any number of lanes. A product that is not fused rounds once more: n + 1.

    Spread: u/√3 times the root of the sum of squares of everything that is rounded (`semantics.exact`). A lane adds up
    n/L terms of a sum S = Σt with squares Q = Σt². In a random order its partial sum after a fraction p of them has the
    mean p·S/L and the variance p·(1 - p)·Q/L; so the sum of squares of all lanes' partial sums is at most
    n·(S²/(3·L²) + Q/(6·L)). The lanes are then added in some tree, whose partial sums have squares of at most
    (L - 1)·S² in total. Terms that are rounded products add Q. Data with a trend are not in random order, so the spread
    is at least that of the orders of kernels: lanes that take terms in turn, and lanes that take runs of them
    (`semantics.lanes`).
    """
    with np.errstate(all="ignore"):
        total = terms.sum(axis=axis, keepdims=True)
        squares = (terms**2).sum(axis=axis, keepdims=True)
        magnitude = np.abs(terms).sum(axis=axis, keepdims=True)
        bound, spread = summed(total, magnitude, squares, terms.shape[axis], lanes)
        by_lanes = _in_lanes(np.moveaxis(terms, axis, -1), lanes)
    return total, bound, np.maximum(spread, np.expand_dims(by_lanes, axis))


def _in_lanes(terms: Doubles, lanes: int) -> Doubles:
    """Return the largest spread of a sum along the last axis, in lanes of either kind: [...] for terms [..., n]."""
    n = terms.shape[-1]
    flat = terms.reshape(-1, n).T
    spread = np.zeros(flat.shape[1])
    step = max(1, _AT_ONCE // max(1, n))
    for start in range(0, len(spread), step):
        part = flat[:, start : start + step]
        filled = np.pad(part, ((0, -n % lanes), (0, 0)))
        orders = [filled.reshape(-1, lanes, part.shape[1])]
        if lanes > 1:
            orders.append(filled.reshape(lanes, -1, part.shape[1]).swapaxes(0, 1))
        found = np.max([variance(order) for order in orders], axis=0)
        spread[start : start + step] = UNIT_ROUNDOFF / np.sqrt(3) * np.sqrt(found)
    return spread.reshape(terms.shape[:-1])


def summed(total: Doubles, magnitude: Doubles, squares: Doubles, n: int, lanes: int = 8) -> tuple[Doubles, Doubles]:
    """Return bound and spread of such a sum of n terms, from Σt, Σ|t| and Σt²."""
    with np.errstate(all="ignore"):
        steps = n + 1
        bound = steps * UNIT_ROUNDOFF / (1 - steps * UNIT_ROUNDOFF) * magnitude
        tree = min(lanes - 1, n)
        held = n * (total**2 / (3 * lanes**2) + squares / (6 * lanes)) + tree * np.maximum(total**2, squares) + squares
        spread = UNIT_ROUNDOFF / np.sqrt(3) * np.sqrt(held)
    return bound, spread
