"""Element-wise operations on two tensors: ADD, SUB, MUL, DIV.

    y[i] = x[i] ∘ z[i mod ne]        the second operand is repeated to the shape of the first

Half sources are widened to float32, the result is rounded once to float32, and once to the output's type
(ggml-cpu/binary-ops.cpp, ggml-cuda/binbcast.cu, vulkan-shaders/add.comp and others; llama.cpp v0.5.0).

    bound   u·|o|, u = 2^-24; for a division the backend's ulps; below the normal numbers the error of flushing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gguf_verify.llama.node import F16, F32, Array, Doubles, Node, Operand

from .arithmetic import ULP, arithmetic
from .drawing import SIZES, floats
from .judging import Judged, within
from .operation import Operation


def repeated(operand: Doubles, shape: tuple[int, ...]) -> Doubles:
    """Return an operand repeated to the shape."""
    times = [whole // part if part else 0 for whole, part in zip(shape, operand.shape, strict=True)]
    return np.tile(operand, times)


def _judge(of: Callable[[Doubles, Doubles], Doubles], ulps: Callable[[str], float]) -> Callable[[Node], Judged]:
    def judge(node: Node) -> Judged:
        x, z = node.source(0).values, node.source(1).values
        with np.errstate(all="ignore"):
            exact = in_range(of(x, repeated(z, x.shape)))
            bound = ulps(node.backend) * ULP * np.abs(exact) + arithmetic(node.backend).tiny
        return within(node, "f32", exact, bound)

    return judge


def in_range(exact: Doubles) -> Doubles:
    """Return the results, with those beyond float32's range as infinities."""
    return np.where(np.abs(exact) >= 2.0**128 * (1 - 2.0**-25), np.copysign(np.inf, exact), exact)


def _draw(op: str) -> Callable[[np.random.Generator], Iterator[Node]]:
    def draw(rng: np.random.Generator) -> Iterator[Node]:
        for shape in SIZES:
            x = Operand.of(floats(rng, shape))
            for other in (shape, (1, 1, 1, shape[3]), (1, 1, shape[2], shape[3]), (1, 1, 1, 1), (1, shape[1], 1, 1)):
                yield Node(op, (x, Operand.of(_divisor(op, floats(rng, other)))), Operand.blank(F32, *shape))
        half = Operand.of(floats(rng, (2, 3, 5, 33)).astype(np.float16))
        for z in (half, Operand.of(_divisor(op, floats(rng, (1, 1, 5, 33))))):
            yield Node(op, (half, z), Operand.blank(F16, 2, 3, 5, 33))
        turned = Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)
        yield Node(op, (turned, Operand.of(floats(rng, (1, 1, 1, 32)))), Operand.blank(F32, *turned.shape))

    return draw


def _divisor(op: str, values: Array) -> Array:
    return np.where(np.abs(values) < 2.0**-100, np.float32(1), values) if op == "DIV" else values


def _accurate(_backend: str) -> float:
    return 0.5


ADD = Operation(op="ADD", title="x + z", judge=_judge(np.add, _accurate), draw=_draw("ADD"))
SUB = Operation(op="SUB", title="x - z", judge=_judge(np.subtract, _accurate), draw=_draw("SUB"))
MUL = Operation(op="MUL", title="x · z", judge=_judge(np.multiply, _accurate), draw=_draw("MUL"))
DIV = Operation(
    op="DIV", title="x / z", judge=_judge(np.divide, lambda backend: arithmetic(backend).division), draw=_draw("DIV")
)
