"""How a backend rounds: what one operation of float32 may be off by, and how long sums are added up.

An ulp is the distance of float32 numbers at the result, at most 2^-23 of it and at least 2^-149. "Accurate" operations
(+, -, ·, and elsewhere what is named) are rounded to nearest: half an ulp.

    CPU      IEEE arithmetic; compilers contract products and sums, which rounds once less. Exponentials of vectors are
             ggml_v_expf (vec.h: "maximum error is 1.45358 plus 0.5 ulps"); others are the C library's, of at most one
             ulp in glibc 2.28 and later (tanhf: two; glibc manual, "Errors in Math Functions").
    CUDA     nvcc's -use_fast_math: division 2 ulps, square root 1 ulp, __expf 2 + floor(|1.173·x|) ulps, __logf
             2^-21.41 between 0.5 and 2 and 3 ulps elsewhere, __sinf and __cosf 2^-21.41 and 2^-21.19 between -π and π,
             tanh 2^-11 relative; a quotient by more than 2^126 may be zero; subnormal numbers are flushed (CUDA C++
             Programming Guide, "Intrinsic Functions"). Measured on an H200: docs/backends.md, "Functions".
    Vulkan   the precision that SPIR-V demands: division 2.5 ulps, square root 2.5 + 2, exp 3 + 2·|x| ulps, log 2^-21
             between 0.5 and 2 and 3 ulps elsewhere, sin and cos 2^-11 between -π and π; subnormal numbers may be
             flushed (Vulkan specification, "Precision and Operation of SPIR-V Instructions").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gguf_verify.llama.node import Doubles, NoDefinition
from gguf_verify.semantics.lanes import variance
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .judging import UNDERFLOW

#: Distance of float32 numbers at 1.
ULP = 2.0**-23
#: Terms that are added up in lanes at a time.
_AT_ONCE = 1 << 20
#: The smallest normal float32.
NORMAL = 2.0**-126


@dataclass(frozen=True)
class Arithmetic:
    """A backend's float32.

    Args:
        division, square_root, logarithm, tanh, power: error in ulps.
        exponential: error in ulps, and how it grows with |x|.
        angle: absolute error of sine and cosine of an angle between -π and π.
        near_one: absolute error of a logarithm of a number between 0.5 and 2, beside its ulps.
        flushes: subnormal operands and results may be taken for zero.
        lanes: partial sums that a long sum is split into, at least; more make its error smaller.
        doubles: sums that the sources hold in double are: they add no error.
        vanishes: a quotient by a number of this size may be zero.
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
        """What one operation may lose below the normal numbers."""
        return NORMAL if self.flushes else UNDERFLOW

    def exp_error(self, x: Doubles) -> Doubles:
        """Relative error of exp(x)."""
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


def arithmetic(backend: str) -> Arithmetic:
    """Of a backend by ggml's name. Raises NoDefinition for one of which it is not known."""
    if backend not in _BACKENDS:
        raise NoDefinition(f"the arithmetic of the backend {backend}")
    return _BACKENDS[backend]


def added(terms: Doubles, lanes: int = 8, axis: int = -1) -> tuple[Doubles, Doubles, Doubles]:
    """A sum of float32 terms along an axis, in any order, over some lanes: exact result, bound and spread, each with
    the axis kept as one.

    Bound: γ_n·Σ|t| for n terms (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §4.2); it holds for
    any order and any number of lanes. A product that is not fused rounds once more: n + 1.

    Spread: u/√3 times the root of the sum of the squares of all that is rounded (`semantics.exact`). A lane adds up n/L
    terms of a sum S = Σt with squares Q = Σt². In a random order its partial sum after the share p of them has the mean
    p·S/L and the variance p·(1 - p)·Q/L; so all squares of all lanes' partial sums are n·(S²/(3·L²) + Q/(6·L)) or less.
    The lanes are then added in some tree, whose partial sums' squares are at most (L - 1)·S². Terms that are rounded
    products add Q. Data with a trend are in no random order, so the spread is at least that of the orders that kernels
    have: lanes that take terms in turn, and lanes that take runs of them (`semantics.lanes`).
    """
    with np.errstate(all="ignore"):
        total = terms.sum(axis=axis, keepdims=True)
        squares = (terms**2).sum(axis=axis, keepdims=True)
        magnitude = np.abs(terms).sum(axis=axis, keepdims=True)
        bound, spread = summed(total, magnitude, squares, terms.shape[axis], lanes)
        by_lanes = _in_lanes(np.moveaxis(terms, axis, -1), lanes)
    return total, bound, np.maximum(spread, np.expand_dims(by_lanes, axis))


def _in_lanes(terms: Doubles, lanes: int) -> Doubles:
    """The largest spread of a sum along the last axis, in lanes of either kind: [...] of [..., n]."""
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
    """Bound and spread of such a sum of n terms of which Σt, Σ|t| and Σt² are known."""
    with np.errstate(all="ignore"):
        steps = n + 1
        bound = steps * UNIT_ROUNDOFF / (1 - steps * UNIT_ROUNDOFF) * magnitude
        tree = min(lanes - 1, n)
        held = n * (total**2 / (3 * lanes**2) + squares / (6 * lanes)) + tree * np.maximum(total**2, squares) + squares
        spread = UNIT_ROUNDOFF / np.sqrt(3) * np.sqrt(held)
    return bound, spread
