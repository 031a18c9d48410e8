"""GLU: an activation of one half of a row, or of one source, times the other.

    y = f(x)·g       x = src[0], g = src[1]; or the first and the second half of the rows of src[0], or the second and
                     the first if parameter 1 ("swapped") is set

    REGLU         f = RELU                    GEGLU, GEGLU_ERF, GEGLU_QUICK   f = GELU, GELU_ERF, GELU_QUICK
    SWIGLU        f = SILU                    SWIGLU_CLAMP    SILU(min(x, m))·clamp(g, -m, m)
    SWIGLU_OAI    min(x, m)/(1 + e^(-α·min(x, m)))·(clamp(g, -m, m) + 1);  α and m are parameters 2 and 3

Sources are float32, float16 or bfloat16, and so is the output; the steps are those of float32 (ggml-cpu/ops.cpp and
vec.h, ggml-cuda/unary.cu, vulkan-shaders/glu_main.glsl; llama.cpp v0.5.0). On the CPU, GELU and GELU_QUICK of float32
and float16 are looked up in tables of halves (see `unary`) and then multiplied in float32; SILU of float32 rows uses
ggml_v_expf.

    bound   from the intervals of the steps (`intervals`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gguf_verify.llama.node import (
    BF16,
    F16,
    F32,
    NUMBERED,
    Doubles,
    Node,
    NoDefinition,
    Operand,
    demand,
    parameters,
)

from .functions import FUNCTIONS, ONE, SILU_OF_VECTORS, Function
from .intervals import Interval, Steps, enclosed, point, where
from .judging import Judged, Operation
from .random_inputs import first_columns, floats, turning, typed
from .unary import TABLES

VARIANTS = NUMBERED["GLU"]
#: The function of x, by variant.
_ACTIVATIONS = {
    "REGLU": "RELU", "GEGLU": "GELU", "SWIGLU": "SILU", "GEGLU_ERF": "GELU_ERF", "GEGLU_QUICK": "GELU_QUICK",
    "SWIGLU_CLAMP": "SILU",
}  # fmt: skip

Gated = Callable[[Doubles, Doubles], tuple[Doubles, Interval]]


def _judge(node: Node) -> Judged:
    x, g = _halves(node)
    s = Steps.of(node.backend)
    name = _ACTIVATIONS.get(node.variant)
    if node.backend == "CPU" and name in TABLES and node.output.type_id != BF16:
        return enclosed(node, "table of halves", _looked_up(s, name, node.output.type_id), x, g)
    if node.variant == "SWIGLU_OAI":
        return enclosed(node, "f32", _open_ai(s, node.number(2), node.number(3)), x, g)
    if name is None:
        raise NoDefinition(node.operation)
    vectors = node.backend == "CPU" and node.variant == "SWIGLU" and node.output.type_id == F32
    limit = node.number(3) if node.variant == "SWIGLU_CLAMP" else np.inf
    return enclosed(node, "f32", _times(s, SILU_OF_VECTORS if vectors else FUNCTIONS[name], limit), x, g)


def _halves(node: Node) -> tuple[Doubles, Doubles]:
    """Return the activated values and the gates. Raises NoDefinition for types and shapes that do not fit."""
    first, second, n = node.source(0), node.optional(1), node.output.shape[3]
    held = (first,) if second is None else (first, second)
    for each in held:
        if each.type_id not in (F32, F16, BF16) or each.type_id != node.output.type_id:
            raise NoDefinition(f"{node.operation} of {each.type} to {node.output.type}")
        row = each.shape[3] if second is not None else each.shape[3] // 2
        demand((*each.shape[:3], row) == node.output.shape, f"{node.operation} of {each.ne} to {node.output.ne}")
    if second is not None:
        return first.values, second.values
    values = first.values
    halves = values[..., :n], values[..., n : 2 * n]
    return halves[::-1] if node.integer(1) else halves


def _looked_up(s: Steps, name: str, type_id: int) -> Gated:
    def of(x: Doubles, g: Doubles) -> tuple[Doubles, Interval]:
        exact, reach = TABLES[name](s, x)
        product = s.multiply(reach, point(g))
        # below GELU's table the result is float32's 0, without a multiplication
        beyond = (x <= -10) & (name == "GELU") & (type_id == F32)
        return np.where(beyond, 0.0, exact * g), where(beyond, point(0.0), product)

    return of


def _times(s: Steps, function: Function, limit: float) -> Gated:
    def of(x: Doubles, g: Doubles) -> tuple[Doubles, Interval]:
        x, g = np.minimum(x, limit), np.clip(g, -limit, limit)
        return function.exact(x) * g, s.multiply(function.steps(s, s.source(x)), s.source(g))

    return of


def _open_ai(s: Steps, alpha: float, limit: float) -> Gated:
    def of(x: Doubles, g: Doubles) -> tuple[Doubles, Interval]:
        x, g = np.minimum(x, limit), np.clip(g, -limit, limit)
        exact = x / (1 + np.exp(-alpha * x)) * (g + 1)
        gate = s.source(x)
        activated = s.divide(gate, s.add(ONE, s.exp(s.multiply(point(alpha), -gate))))
        return exact, s.multiply(activated, s.add(s.source(g), ONE))

    return of


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    for index, variant in enumerate(VARIANTS):
        for type_id in (F32, F16, BF16):
            # the CPU backend aborts for other types
            if type_id in {"SWIGLU_OAI": (F32,), "SWIGLU_CLAMP": (F32, F16)}.get(variant, (F32, F16, BF16)):
                yield from _of_type(rng, index, type_id)


def _of_type(rng: np.random.Generator, index: int, type_id: int) -> Iterator[Node]:
    variant = VARIANTS[index]
    shapes = ((1, 1, 1, 1), (2, 3, 5, 33), (1, 2, 4, 256), (1, 1, 2, 1100)) if type_id == F32 else ((1, 2, 7, 50),)
    limits = ((1.702, 7.0), (0.5, 0.75)) if variant in ("SWIGLU_OAI", "SWIGLU_CLAMP") else ((0.0, 0.0),)
    for alpha, limit in limits:
        for shape in shapes:
            x, g = turning(rng, shape), floats(rng, shape, 1.0)
            for swapped in (0, 1):
                raw = parameters(index, swapped, alpha, limit)
                both = typed(np.concatenate([g, x] if swapped else [x, g], axis=-1), type_id)
                yield Node("GLU", (both,), Operand.blank(type_id, *shape), raw, variant)
            raw = parameters(index, 0, alpha, limit)
            yield Node("GLU", (typed(x, type_id), typed(g, type_id)), Operand.blank(type_id, *shape), raw, variant)
        wide = first_columns(typed(turning(rng, (1, 2, 5, 96)), type_id), 48)
        gates = typed(floats(rng, (1, 2, 5, 48), 1.0), type_id)
        yield Node("GLU", (wide, gates), Operand.blank(type_id, 1, 2, 5, 48), raw, variant)


GLU = Operation(op="GLU", title="an activation times a gate", judge=_judge, draw=_draw)
