"""Functions of one number that several operations share: the exact function, and the steps of the backends.

    RELU        max(x, 0)                            SIGMOID     1/(1 + e^-x)
    GELU        x/2·(1 + tanh(c·x·(1 + a·x²)))       SILU        x/(1 + e^-x)
    GELU_ERF    x/2·(1 + erf(x·r))                   GELU_QUICK  x/(1 + e^(q·x))

The constants c = √(2/π), a = 0.044715, r = 1/√2 and q = -1.702 are float32 numbers in every backend and in the exact
functions. The steps follow ggml-cpu/vec.h, ggml-cuda/unary.cuh and vulkan-shaders/unary.comp of llama.cpp v0.5.0.
Vulkan's shaders compute tanh v as 1 - 2/(e^2v + 1), and erf by a polynomial (Abramowitz and Stegun, 7.1.26). The
interval includes the polynomial's own error, since the exact result is the true erf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gguf_verify.llama.node import BF16, F16, F32, Doubles, Node, NoDefinition, demand

from .intervals import Interval, Steps, enclosed, erf, point
from .judging import Judged


@dataclass(frozen=True)
class Function:
    """A function of one number.

    Args:
        exact: the function in float64.
        steps: returns the interval of a backend's possible results.
    """

    exact: Callable[[Doubles], Doubles]
    steps: Callable[[Steps, Interval], Interval]


def _constant(value: float) -> float:
    return float(np.float32(value))


GELU_C, GELU_A = _constant(np.sqrt(2 / np.pi)), _constant(0.044715)
GELU_R, GELU_Q = _constant(np.sqrt(0.5)), _constant(-1.702)
ONE, HALF = point(1.0), point(0.5)


def relu(x: Doubles) -> Doubles:
    """Return max(x, 0), and 0 for NaN, as x > 0 ? x : 0 gives."""
    return np.where(x > 0, x, 0.0)


def relu_steps(_s: Steps, x: Interval) -> Interval:
    return x.increasing(relu)


def sigmoid(x: Doubles) -> Doubles:
    y: Doubles = 1 / (1 + np.exp(-x))
    return y


def sigmoid_steps(s: Steps, x: Interval) -> Interval:
    return s.divide(ONE, s.add(ONE, s.exp(-x)))


def silu(x: Doubles) -> Doubles:
    y: Doubles = x / (1 + np.exp(-x))
    return y


def silu_steps(s: Steps, x: Interval) -> Interval:
    return s.divide(x, s.add(ONE, s.exp(-x)))


def silu_of_vectors(s: Steps, x: Interval) -> Interval:
    """Return SILU as the CPU computes it for float32 rows."""
    return s.divide(x, s.add(ONE, s.exp(-x, vector=True)))


def gelu(x: Doubles) -> Doubles:
    y: Doubles = 0.5 * x * (1 + np.tanh(GELU_C * x * (1 + GELU_A * x * x)))
    return y


def gelu_steps(s: Steps, x: Interval) -> Interval:
    inner = s.add(ONE, s.multiply(s.multiply(point(GELU_A), x), x))
    v = s.multiply(s.multiply(point(GELU_C), x), inner)
    factor = s.subtract(point(2.0), _two_over(s, v)) if s.backend == "Vulkan" else s.add(ONE, s.tanh(v))
    return s.multiply(s.multiply(HALF, x), factor)


def tanh_steps(s: Steps, x: Interval) -> Interval:
    return s.subtract(ONE, _two_over(s, x)) if s.backend == "Vulkan" else s.tanh(x)


def _two_over(s: Steps, v: Interval) -> Interval:
    """Return 2/(e^2v + 1), which is between 0 and 2."""
    return s.divide(point(2.0), s.add(s.exp(s.multiply(point(2.0), v)), ONE))


def gelu_quick(x: Doubles) -> Doubles:
    return x * (1 / (1 + np.exp(GELU_Q * x)))


def gelu_quick_steps(s: Steps, x: Interval) -> Interval:
    return s.multiply(x, s.divide(ONE, s.add(ONE, s.exp(s.multiply(point(GELU_Q), x)))))


def gelu_erf(x: Doubles) -> Doubles:
    return 0.5 * x * (1 + erf(x * GELU_R))


def gelu_erf_steps(s: Steps, x: Interval) -> Interval:
    v = s.multiply(x, point(GELU_R))
    return s.multiply(s.multiply(HALF, x), s.add(ONE, _polynomial(s, v) if s.backend == "Vulkan" else s.erf(v)))


def _polynomial(s: Steps, v: Interval) -> Interval:
    """Return sign(v)·(1 - (b₁·t + … + b₅·t⁵)·e^(-v²)), t = 1/(1 + p·|v|)."""
    size = Interval(np.minimum(np.abs(v.low), np.abs(v.high)), np.maximum(np.abs(v.low), np.abs(v.high)))
    t = s.divide(ONE, s.add(ONE, s.multiply(point(_constant(0.3275911)), size)))
    sum_ = s.multiply(point(_constant(1.061405429)), t)
    for b in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sum_ = s.multiply(s.add(sum_, point(_constant(b))), t)
    y = s.subtract(ONE, s.multiply(sum_, s.exp(-s.multiply(size, size))))
    sign = np.sign(v.low + v.high)
    return Interval(np.minimum(sign * y.low, sign * y.high), np.maximum(sign * y.low, sign * y.high))


def same_shape(node: Node, *types: int) -> Doubles:
    """Return the values of src[0], which must have one of the types, and the output's type and shape.

    Raises NoDefinition.
    """
    x = node.source(0)
    if x.type_id not in (types or (F32, F16, BF16)) or x.type_id != node.output.type_id:
        raise NoDefinition(f"{node.operation} of {x.type} to {node.output.type}")
    demand(x.shape == node.output.shape, f"{node.operation} of {x.ne} to {node.output.ne}")
    return x.values


def judge_function(node: Node, function: Function, *types: int) -> Judged:
    """Judge a node that applies a function to every element of its source. Raises NoDefinition."""
    s = Steps.of(node.backend)
    return enclosed(
        node, "f32", lambda x: (function.exact(x), function.steps(s, s.source(x))), same_shape(node, *types)
    )


#: By ggml's names of the variants of UNARY.
FUNCTIONS = {
    "RELU": Function(relu, relu_steps), "SIGMOID": Function(sigmoid, sigmoid_steps), "SILU": Function(silu, silu_steps),
    "TANH": Function(np.tanh, tanh_steps), "GELU": Function(gelu, gelu_steps),
    "GELU_QUICK": Function(gelu_quick, gelu_quick_steps), "GELU_ERF": Function(gelu_erf, gelu_erf_steps),
}  # fmt: skip
SILU_OF_VECTORS = Function(silu, silu_of_vectors)
