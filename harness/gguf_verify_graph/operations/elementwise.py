"""Element-wise operations on one tensor and numbers: powers, logarithm, sine, scaling, clamping, additions.

    SQR      x²           LOG   ln x       SCALE   s·x + b, the parameters 0 and 1
    SQRT     √x           SIN, COS         CLAMP   max(min(x, M), m), the parameters 1 and 0

    LEAKY_RELU   x for x > 0, else s·x, parameter 0
    ADD1         x + z, where z = src[1] is one number
    ADD_ID       y[i2, i1] = x[i2, i1] + z[id]; src[2] selects a row of src[1] for each row: id = src[2][i2, i1]

Half sources are widened to float32, the steps are those of float32, and the result is rounded once to the source's type
(ggml-cpu/unary-ops.cpp, ops.cpp and vec.h; ggml-cuda/unary.cu, scale.cu, clamp.cu, add-id.cu;
vulkan-shaders/unary.comp, scale.comp, add1.comp, add_id.comp; llama.cpp v0.5.0).

    bound   from the intervals of the steps (`intervals`): u·|o| for one step; the ulps of logarithm and sine;
            for SCALE u·|s·x| + u·|o|, which a fused product and sum never exceeds; 0 for CLAMP

A clamp with m > M has no definition, since backends disagree on which of them applies; nor has ADD1 to blocks.

Element-wise operations on two tensors: ADD, SUB, MUL, DIV.

    y[i] = x[i] ∘ z[i mod ne]        the second operand is repeated to the shape of the first

Half sources are widened to float32, the result is rounded once to float32, and once to the output's type
(ggml-cpu/binary-ops.cpp, ggml-cuda/binbcast.cu, vulkan-shaders/add.comp and others; llama.cpp v0.5.0).

    bound   u·|o|, u = 2^-24; for a division the backend's ulps; below the normal numbers the error of flushing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from gguf_verify.llama.node import BF16, F16, F32, I32, Array, Doubles, Node, NoDefinition, Operand, demand, parameters

from .arithmetic import ULP, arithmetic
from .functions import Function, judge_function, same_shape
from .intervals import Interval, Steps, enclosed, point, where
from .judging import Judged, Operation, in_range, within
from .random_inputs import SIZES, floats, turning, typed


def _sqr(s: Steps, x: Interval) -> Interval:
    return s.multiply(x, x)


_FUNCTIONS = {
    "SQR": Function(np.square, _sqr),
    "SQRT": Function(np.sqrt, lambda s, x: s.square_root(x)),
    "LOG": Function(np.log, lambda s, x: s.log(x)),
    "SIN": Function(np.sin, lambda s, x: s.circular(np.sin, x)),
    "COS": Function(np.cos, lambda s, x: s.circular(np.cos, x)),
}


def _judge_function(node: Node) -> Judged:
    return judge_function(node, _FUNCTIONS[node.op])


def _scale(node: Node) -> Judged:
    factor, bias = node.number(0), node.number(1)

    def exact(x: Doubles) -> Doubles:
        return x * factor + bias if bias else x * factor

    def steps(s: Steps, x: Interval) -> Interval:
        product = s.multiply(x, point(factor))
        return s.add(product, point(bias)) if bias else product

    return judge_function(node, Function(exact, steps), F32, BF16)


def _clamp(node: Node) -> Judged:
    least, most = node.number(0), node.number(1)
    demand(least <= most, f"CLAMP between {least} and {most}")

    def exact(x: Doubles) -> Doubles:
        # the maximum for NaN, as x < M ? x : M gives
        return np.maximum(np.where(x < most, x, most), least)

    return judge_function(node, Function(exact, lambda _s, x: x.increasing(exact)), F32, F16)


def _leaky_relu(node: Node) -> Judged:
    slope = node.number(0)

    def exact(x: Doubles) -> Doubles:
        return np.where(x > 0, x, np.where(x < 0, slope * x, 0.0))

    def steps(s: Steps, x: Interval) -> Interval:
        return where(x.low > 0, x, s.multiply(x, point(slope)))

    return judge_function(node, Function(exact, steps), F32, F16)


def _add1(node: Node) -> Judged:
    added = node.source(1)
    demand(added.ne == (1, 1, 1, 1) and added.type_id in (F32, F16, BF16), f"ADD1 of {added.type} {added.ne}")
    z = float(added.values[0, 0, 0, 0])
    return judge_function(node, Function(lambda x: x + z, lambda s, x: s.add(x, s.source(np.asarray(z)))))


def _add_id(node: Node) -> Judged:
    node.floats(0, 1)
    x, rows, ids = same_shape(node, F32), node.source(1), node.source(2)
    if ids.type_id != I32 or ids.ne[:2] != x.shape[1:3][::-1] or rows.ne[0] != x.shape[3]:
        raise NoDefinition(f"ADD_ID of {node.source(0).ne}, {rows.ne} and {ids.type} {ids.ne}")
    named = ids.data[0, 0]
    if named.size and not 0 <= named.min() <= named.max() < rows.ne[1]:
        raise NoDefinition(f"ADD_ID of rows {named.min()} to {named.max()} of {rows.ne[1]}")
    s = Steps.of(node.backend)

    def follow(x: Doubles, z: Doubles) -> tuple[Doubles, Interval]:
        return x + z, s.add(s.source(x), s.source(z))

    return enclosed(node, "f32", follow, x, rows.data[0, 0][named])


def _draw_function(
    op: str, types: tuple[int, ...], sets: Sequence[tuple[float, ...]], rng: np.random.Generator
) -> Iterator[Node]:
    """Yield random nodes. Args: sets: sets of parameters."""
    for each in sets:
        for shape in SIZES:
            for type_id in types if shape == SIZES[2] else (F32,):
                x = typed(_within_domain(op, turning(rng, shape)), type_id)
                yield Node(op, (x,), Operand.blank(type_id, *shape), parameters(*each))
    if op in _FUNCTIONS:
        x = Operand.of(_within_domain(op, floats(rng, (2, 5, 3, 32)))).permuted(0, 2, 1, 3)
        yield Node(op, (x,), Operand.blank(F32, *x.shape))


def _within_domain(op: str, x: Array) -> Array:
    """Return x without negative arguments of roots and logarithms, and with angles that all backends support."""
    if op in ("SIN", "COS"):
        return (x % np.float32(3.125)) * np.sign(x)
    return np.abs(x) if op in ("SQRT", "LOG") else x


def _draw_add1(rng: np.random.Generator) -> Iterator[Node]:
    for shape in SIZES:
        z = Operand.of(floats(rng, (1, 1, 1, 1)))
        yield Node("ADD1", (Operand.of(turning(rng, shape)), z), Operand.blank(F32, *shape))
    shape = SIZES[2]
    for type_id in (F16, BF16):
        for other in (type_id, F32):
            sources = typed(turning(rng, shape), type_id), typed(floats(rng, (1, 1, 1, 1)), other)
            yield Node("ADD1", sources, Operand.blank(type_id, *shape))


def _draw_add_id(rng: np.random.Generator) -> Iterator[Node]:
    for n, used, tokens, experts in ((1, 1, 1, 1), (33, 4, 7, 8), (256, 2, 5, 3), (1100, 3, 1, 64)):
        x = Operand.of(floats(rng, (1, tokens, used, n)))
        rows, ids = floats(rng, (experts, n)), rng.integers(0, experts, (tokens, used), np.int32)
        yield Node("ADD_ID", (x, Operand.of(rows), Operand.of(ids)), Operand.blank(F32, 1, tokens, used, n))


def _judge_binary(of: Callable[[Doubles, Doubles], Doubles], node: Node) -> Judged:
    x, z, a = node.source(0).values, node.source(1).values, arithmetic(node.backend)
    times = [whole // part if part else 0 for whole, part in zip(x.shape, z.shape, strict=True)]
    ulps = a.division if node.op == "DIV" else 0.5
    with np.errstate(all="ignore"):
        exact = in_range(of(x, np.tile(z, times)))
        bound = ulps * ULP * np.abs(exact) + a.tiny
    return within(node, "f32", exact, bound)


def _draw_binary(op: str, rng: np.random.Generator) -> Iterator[Node]:
    for shape in SIZES:
        x = Operand.of(floats(rng, shape))
        for other in (shape, (1, 1, 1, shape[3]), (1, 1, shape[2], shape[3]), (1, 1, 1, 1), (1, shape[1], 1, 1)):
            yield Node(op, (x, Operand.of(_divisor(op, floats(rng, other)))), Operand.blank(F32, *shape))
    half = Operand.of(floats(rng, (2, 3, 5, 33)).astype(np.float16))
    for z in (half, Operand.of(_divisor(op, floats(rng, (1, 1, 5, 33))))):
        yield Node(op, (half, z), Operand.blank(F16, 2, 3, 5, 33))
    turned = Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)
    yield Node(op, (turned, Operand.of(floats(rng, (1, 1, 1, 32)))), Operand.blank(F32, *turned.shape))


def _divisor(op: str, values: Array) -> Array:
    return np.where(np.abs(values) < 2.0**-100, np.float32(1), values) if op == "DIV" else values


_ALL = (F32, F16, BF16)
SQR = Operation(op="SQR", title="x²", judge=_judge_function, draw=partial(_draw_function, "SQR", _ALL, ((),)))
SQRT = Operation(op="SQRT", title="√x", judge=_judge_function, draw=partial(_draw_function, "SQRT", _ALL, ((),)))
LOG = Operation(op="LOG", title="ln x", judge=_judge_function, draw=partial(_draw_function, "LOG", _ALL, ((),)))
SIN = Operation(op="SIN", title="sin x", judge=_judge_function, draw=partial(_draw_function, "SIN", _ALL, ((),)))
COS = Operation(op="COS", title="cos x", judge=_judge_function, draw=partial(_draw_function, "COS", _ALL, ((),)))
SCALE = Operation(
    op="SCALE",
    title="s·x + b",
    judge=_scale,
    draw=partial(
        _draw_function,
        "SCALE",
        (F32, BF16),
        (
            (0.088388346, 0.0),
            (-1.7, 0.3),
            (0.0, 2.5),
            (1.0, -1.0),
        ),
    ),
)
CLAMP = Operation(
    op="CLAMP",
    title="max(min(x, M), m)",
    judge=_clamp,
    draw=partial(
        _draw_function,
        "CLAMP",
        (F32, F16),
        (
            (-1.0, 1.5),
            (0.3, 0.3),
            (-np.inf, 0.7),
            (0.123456, np.inf),
        ),
    ),
)
LEAKY_RELU = Operation(
    op="LEAKY_RELU",
    title="x, or s·x below 0",
    judge=_leaky_relu,
    draw=partial(
        _draw_function,
        "LEAKY_RELU",
        (F32, F16),
        (
            (0.1,),
            (-0.7,),
            (0.0,),
        ),
    ),
)
ADD1 = Operation(op="ADD1", title="x + one number", judge=_add1, draw=_draw_add1)
ADD_ID = Operation(op="ADD_ID", title="x + rows by index", judge=_add_id, draw=_draw_add_id)
ADD = Operation(op="ADD", title="x + z", judge=partial(_judge_binary, np.add), draw=partial(_draw_binary, "ADD"))
SUB = Operation(op="SUB", title="x - z", judge=partial(_judge_binary, np.subtract), draw=partial(_draw_binary, "SUB"))
MUL = Operation(op="MUL", title="x · z", judge=partial(_judge_binary, np.multiply), draw=partial(_draw_binary, "MUL"))
DIV = Operation(op="DIV", title="x / z", judge=partial(_judge_binary, np.divide), draw=partial(_draw_binary, "DIV"))
