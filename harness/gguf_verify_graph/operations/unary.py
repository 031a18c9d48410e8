"""UNARY: a function of each element, selected by `op_params`: activations, roundings and others.

    ABS, SGN, NEG, STEP (x > 0), RELU, FLOOR, CEIL, TRUNC   by their names; ROUND: halves away from zero
    TANH, EXP                                               by their names
    SIGMOID, SILU, GELU, GELU_QUICK, GELU_ERF               see `functions`
    ELU           x for x > 0, else e^x - 1                 EXPM1        e^x - 1
    HARDSIGMOID   min(1, max(0, (x + 3)/6))                 HARDSWISH    x·HARDSIGMOID
    SOFTPLUS      x for x > 20, else ln(1 + e^x)
    XIELU         a·x² + β·x for x > 0, else (e^min(x, ε) - 1 - x)·b + β·x;  b, a, β, ε are parameters 1 to 4

Sources are float32, float16 or bfloat16, and so is the output; the steps are those of float32 (ggml-cpu/unary-ops.cpp
and vec.h, ggml-cuda/unary.cu, vulkan-shaders/unary.comp; llama.cpp v0.5.0). Backends differ in these functions:

    GELU, GELU_QUICK   On the CPU, float32 is looked up in a table of halves: x is rounded to float16, which is exact
                       here, and the function's value to float16. GELU is 0 from -10 down and x from 10 up.
    SILU               The CPU's rows of float32 use ggml_v_expf.
    EXPM1              expf(x) - 1 on the CPU, which loses digits near 0; Vulkan uses a Taylor polynomial to |x| = 1/4.
    ROUND              Vulkan computes ⌊x + 1/2⌋ with a rounded sum: 1 too large for the number below 1/2, and for some
                       odd integers above 2^23.
    bound              from the intervals of the steps (`intervals`); 0 for functions that are not rounded
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gguf_verify.llama.node import BF16, F16, F32, NUMBERED, Doubles, Node, NoDefinition, Operand, parameters

from .functions import FUNCTIONS, ONE, SILU_OF_VECTORS, Function, judge_function, same_shape
from .intervals import Interval, Steps, enclosed, point, where
from .judging import Judged, Operation
from .random_inputs import SIZES, floats, turning, typed

VARIANTS = NUMBERED["UNARY"]


def tabled(function: Function, cut: float = np.nan) -> Callable[[Steps, Doubles], tuple[Doubles, Interval]]:
    """Return a function as computed by the CPU's table of halves.

    Args:
        cut: from this value on it is x, and from its negative down 0; NaN: nowhere.
    """

    def of(s: Steps, x: Doubles) -> tuple[Doubles, Interval]:
        h = x.astype(np.float16).astype(np.float64)
        low, high = x <= -cut, x >= cut
        exact = np.where(low, 0.0, np.where(high, x, function.exact(h)))
        looked_up = s.half(function.steps(s, point(h)))
        return exact, where(low | high, point(exact), looked_up)

    return of


#: On the CPU, by variant.
TABLES = {"GELU": tabled(FUNCTIONS["GELU"], 10.0), "GELU_QUICK": tabled(FUNCTIONS["GELU_QUICK"])}


def _abs_steps(_s: Steps, x: Interval) -> Interval:
    crosses = (x.low < 0) & (x.high > 0)
    low, high = np.abs(x.low), np.abs(x.high)
    return Interval(np.where(crosses, 0.0, np.minimum(low, high)), np.maximum(low, high))


def _kept(of: Callable[[Doubles], Doubles]) -> Function:
    """Return a function that does not decrease and is not rounded."""
    return Function(of, lambda _s, x: x.increasing(of))


def _sign(x: Doubles) -> Doubles:
    return np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0))


def _round(x: Doubles) -> Doubles:
    return np.trunc(x + np.copysign(0.5, x))


def _round_steps(s: Steps, x: Interval) -> Interval:
    if s.backend != "Vulkan":
        return x.increasing(_round)
    return x.increasing(_floor_of_sum)


def _floor_of_sum(x: Doubles) -> Doubles:
    size = np.floor((np.abs(x) + 0.5).astype(np.float32)).astype(np.float64)
    return np.copysign(size, x)


def _elu_steps(s: Steps, x: Interval) -> Interval:
    negative = s.subtract(s.exp(x), ONE) if s.backend == "Vulkan" else s.expm1(x)
    return where(x.low > 0, x, negative)


def _expm1_steps(s: Steps, x: Interval) -> Interval:
    return s.subtract(s.exp(x), ONE) if s.backend == "CPU" else _spelled_out(s, x)


def _spelled_out(s: Steps, x: Interval) -> Interval:
    """Return CUDA's function, or the other functions by which Vulkan computes it."""
    if s.backend != "Vulkan":
        return s.expm1(x)
    factor = point(np.float32(1 / 720))
    for divisor in (120, 24, 6, 2, 1):
        factor = s.add(point(np.float32(1 / divisor)), s.multiply(x, factor))
    near = np.maximum(np.abs(x.low), np.abs(x.high)) <= 0.25
    return where(near, s.multiply(x, factor), s.subtract(s.exp(x), ONE))


def _hard_sigmoid(x: Doubles) -> Doubles:
    return np.fmin(1.0, np.fmax(0.0, (x + 3) / 6))


def _hard_sigmoid_steps(s: Steps, x: Interval) -> Interval:
    return s.divide(s.add(x, point(3.0)), point(6.0)).at_least(0.0).at_most(1.0)


def _softplus_steps(s: Steps, x: Interval) -> Interval:
    return where(x.low > 20, x, s.log(s.add(ONE, s.exp(x))))


_FUNCTIONS = FUNCTIONS | {
    "ABS": Function(np.abs, _abs_steps),
    "SGN": _kept(_sign),
    "NEG": Function(np.negative, lambda _s, x: -x),
    "STEP": _kept(lambda x: np.where(x > 0, 1.0, 0.0)),
    "ELU": Function(lambda x: np.where(x > 0, x, np.expm1(x)), _elu_steps),
    "HARDSIGMOID": Function(_hard_sigmoid, _hard_sigmoid_steps),
    "HARDSWISH": Function(lambda x: x * _hard_sigmoid(x), lambda s, x: s.multiply(x, _hard_sigmoid_steps(s, x))),
    "EXP": Function(np.exp, lambda s, x: s.exp(x)),
    "EXPM1": Function(np.expm1, _expm1_steps),
    "SOFTPLUS": Function(lambda x: np.where(x > 20, x, np.log1p(np.exp(x))), _softplus_steps),
    "FLOOR": _kept(np.floor),
    "CEIL": _kept(np.ceil),
    "ROUND": Function(_round, _round_steps),
    "TRUNC": _kept(np.trunc),
}


def _xielu(node: Node) -> Function:
    b, a, beta, eps = (node.number(i) for i in range(1, 5))

    def exact(x: Doubles) -> Doubles:
        return np.where(x > 0, a * x * x + beta * x, (np.expm1(np.fmin(x, eps)) - x) * b + beta * x)

    def steps(s: Steps, x: Interval) -> Interval:
        linear = s.multiply(point(beta), x)
        positive = s.add(s.multiply(s.multiply(point(a), x), x), linear)
        bent = s.subtract(_spelled_out(s, x.at_most(eps)), x)
        return where(x.low > 0, positive, s.add(s.multiply(bent, point(b)), linear))

    return Function(exact, steps)


def _judge(node: Node) -> Judged:
    on_cpu = node.backend == "CPU" and node.output.type_id == F32
    if on_cpu and node.variant in TABLES:
        s, looked_up = Steps.of(node.backend), TABLES[node.variant]
        return enclosed(node, "table of halves", lambda x: looked_up(s, x), same_shape(node))
    function = _xielu(node) if node.variant == "XIELU" else _FUNCTIONS.get(node.variant)
    if function is None:
        raise NoDefinition(node.operation)
    # in float16, the table of halves only adds the rounding of the output
    return judge_function(node, SILU_OF_VECTORS if on_cpu and node.variant == "SILU" else function)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    for index, variant in enumerate(VARIANTS):
        sets = ((0.8, 0.9, 0.5, -1e-6), (2.5, -0.3, 0.1, -0.5)) if variant == "XIELU" else ((),)
        for more in sets:
            raw = parameters(index, *more)
            for shape in SIZES:
                for type_id in (F32,) if shape != (2, 3, 5, 33) else (F32, F16, BF16):
                    x = typed(turning(rng, shape), type_id)
                    yield Node("UNARY", (x,), Operand.blank(type_id, *shape), raw, variant)
            if variant == "XIELU":  # the CPU backend asserts that rows are contiguous
                continue
            turned = Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)
            yield Node("UNARY", (turned,), Operand.blank(F32, *turned.shape), raw, variant)


UNARY = Operation(op="UNARY", title="a function of each element", judge=_judge, draw=_draw)
