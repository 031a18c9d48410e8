"""Gates, f(gate) · up: two products of the same activations, with the kernel's weights and with its operand `up`.

With z the gate's exact value, β its bound, v and β_v those of up, and L a Lipschitz constant of f on [z - β, z + β]:

    |f(z')·v' - f(z)·v| ≤ |f(z)|·β_v + (|v| + β_v)·Δ + u·(|f(z)| + Δ)·(|v| + β_v) + η,   Δ = L·β + ρ

where ρ is the largest error of the kernel's own evaluation of f, u one rounding of the product and η = 2^-126, since
code with fast math flushes smaller numbers to zero. The errors of the functions in ulps (one is at most 2^-23 of the
value) are those of the appendix "Mathematical Functions" of NVIDIA's CUDA C++ Programming Guide: expf 2, __expf(x) 2 +
⌊1.173·|x|⌋, tanhf 2, division with -use_fast_math 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..sums import UNIT_ROUNDOFF, Doubles, Product
from .operation import Apply, Fused, Operation, still_lost

_SMALLEST_NORMAL = 2.0**-126
#: Second-order terms: the largest relative error below, 2^-15, multiplied by itself is less than this fraction of it.
_ONCE_MORE = 1 + 2.0**-14


@dataclass(frozen=True)
class Gate:
    """A function of the gate's product.

    Args:
        of: z → f(z).
        slope: (z - β, z + β) → a Lipschitz constant of f between them.
        rounding: (z - β, z + β, the largest |f|) → the largest difference between the kernel's value and f of the same
            argument.
    """

    of: Callable[[Doubles], Doubles]
    slope: Callable[[Doubles, Doubles], Doubles]
    rounding: Callable[[Doubles, Doubles, Doubles], Doubles]

    def apply(self, p: Product, _: npt.NDArray[Any], fused: Fused) -> Product:
        """Return f(p)·up."""
        up, u = fused.companion(), fused.roundoff
        low, high = p.exact - p.bound, p.exact + p.bound
        value, slope = self.of(p.exact), self.slope(low, high)
        size = np.abs(value)
        rounded = self.rounding(low, high, size + slope * p.bound) * (u / UNIT_ROUNDOFF)
        moved, other = slope * p.bound + rounded, np.abs(up.exact) + up.bound
        last = u * (size + moved) * other + _SMALLEST_NORMAL
        bound = size * up.bound + other * moved + last
        spread = np.hypot(size * up.spread, np.abs(up.exact) * slope * p.spread) + other * rounded + last
        underflow = still_lost(up, size, fused) + still_lost(p, np.abs(up.exact) * slope, fused)
        return Product(value * up.exact, bound, spread, None, underflow=underflow)


def _silu(z: Doubles) -> Doubles:
    return np.asarray(z / (1 + np.exp(-z)))


def _silu_slope(low: Doubles, high: Doubles) -> Doubles:
    """SiLU'(z) = σ(z)·(1 + z·(1 - σ(z))) is at most 1.1 in magnitude.

    For z ≤ 0 it is at most e^z·(1 + |z|), which grows with z.
    """
    return np.where(high < 0, np.minimum(1.1, np.exp(high) * (1 - high)), 1.1)


def _silu_rounding(low: Doubles, high: Doubles, size: Doubles) -> Doubles:
    """Rounding of z/(1 + e), e = exp(-z).

    The error of e is (2 + 1.173·|z|) ulps; that of 1 + e is the fraction e/(1 + e) of that and a rounding; the division
    has 2 ulps, and z may be multiplied by a factor before. Where 1 + e is above 2^126, fast math divides to zero, and
    where e overflows, any code does: the whole value may be missing.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    share = 1 / (1 + np.exp(low))
    relative = (share * (2 + 1.173 * largest) * 2 + 6) * UNIT_ROUNDOFF * _ONCE_MORE
    return np.where(low < -87, size, relative * size)


def _relu(z: Doubles) -> Doubles:
    return np.maximum(z, 0)


def _relu_slope(_: Doubles, high: Doubles) -> Doubles:
    return np.where(high < 0, 0.0, 1.0)


def _relu_rounding(_: Doubles, __: Doubles, size: Doubles) -> Doubles:
    return np.zeros_like(size)


def _gelu(z: Doubles) -> Doubles:
    return np.asarray(0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * z * (1 + 0.044715 * z * z))))


def _gelu_slope(low: Doubles, _: Doubles) -> Doubles:
    """The largest slope of GELU is 1.129, at z = 1.42."""
    return np.full_like(low, 1.13)


def _gelu_rounding(low: Doubles, high: Doubles, size: Doubles) -> Doubles:
    """Rounding of z·(1 + t)/2, t = tanh p.

    p has 6 roundings, which move t by at most 6u·|p|·sech²(p) ≤ 2.7u; tanhf has 2 ulps, 4u; 1 + t one rounding: 8u with
    the remainder, of which half times |z|. Written as z/(1 + exp(-2p)), the same comes to e^-2p·(16.7·|p| + 8)·u ≤ 8u
    times |z|. Two further multiplications round the value.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    return UNIT_ROUNDOFF * (8 * largest + 4 * size)


def _operation(name: str, title: str, apply: Apply) -> Operation:
    return Operation(name=name, title=title, operand="up", place=None, neutral=None, apply=apply)


SILU_GATE = _operation(
    "silu_gate", "SiLU(y[m, n]) · up[m, n], SiLU(z) = z / (1 + exp(-z))", Gate(_silu, _silu_slope, _silu_rounding).apply
)
RELU_GATE = _operation("relu_gate", "max(y[m, n], 0) · up[m, n]", Gate(_relu, _relu_slope, _relu_rounding).apply)
GELU_GATE = _operation(
    "gelu_gate", "GELU(y[m, n]) · up[m, n], by its tanh form", Gate(_gelu, _gelu_slope, _gelu_rounding).apply
)
