"""Operations that make a tensor from parameters: FILL, ARANGE, TIMESTEP_EMBEDDING.

    FILL     y = c                                       c is parameter 0, rounded to the output's type
    ARANGE   y[i] = a + step·i                           parameters 0 (a), 1 (the end) and 2 (step)
    TIMESTEP_EMBEDDING   y[i, j] = cos(t[i]·f[j]),  y[i, j + h] = sin(t[i]·f[j]),  f[j] = e^(-ln(P)·j/h),  h = ⌊n/2⌋
                         n and P are the parameters 0 and 1, t is src[0]; for odd n, the last column is 0

Everything is float32 except FILL's float16 (ggml-cpu/ops.cpp, ggml-cuda/arange.cu and tsembd.cu,
vulkan-shaders/arange.comp and timestep_embedding.comp; llama.cpp v0.5.0).

    bound   from the intervals of the steps (`intervals`). The relative error of an embedding's frequency is about
            ln(P)·(ulps of logarithm, product and quotient); its angle has t times that error, which sine and cosine
            pass on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gguf_verify.llama.node import F16, F32, Doubles, Node, NoDefinition, Operand, demand, parameters

from .intervals import Interval, Steps, enclosed, point
from .judging import Judged, Operation, within
from .random_inputs import SIZES, floats


def _fill(node: Node) -> Judged:
    Steps.of(node.backend)
    demand(node.output.type_id in (F32, F16), f"FILL of {node.output.type}")
    dtype = np.float32 if node.output.type_id == F32 else np.float16
    with np.errstate(over="ignore"):
        value = np.float32(node.number(0)).astype(dtype)
    return within(node, node.output.type.lower(), np.float64(value).reshape(1, 1, 1, 1), 0.0)


def _arange(node: Node) -> Judged:
    node.floats()
    first, end, step = (np.float32(node.number(i)) for i in range(3))
    n = node.output.shape[3]
    with np.errstate(all="ignore"):
        if node.output.shape != (1, 1, 1, n) or np.ceil((end - first) / step) != n:
            raise NoDefinition(f"ARANGE from {first} to {end} by {step} as {node.output.ne}")
    s = Steps.of(node.backend)

    def follow(i: Doubles) -> tuple[Doubles, Interval]:
        # the number of an element is itself a float32
        held = i.astype(np.float32).astype(np.float64)
        return first + np.float64(step) * i, s.add(point(first), s.multiply(point(step), point(held)))

    return enclosed(node, "f32", follow, np.arange(n, dtype=np.float64))


def _embedding(node: Node) -> Judged:
    node.floats(0)
    n, period = node.integer(0), node.integer(1)
    t, shape = node.source(0), node.output.shape
    half = n // 2
    if period < 1 or n < 2 or shape != (1, 1, t.ne[0], n) or t.ne[1:] != (1, 1, 1):
        raise NoDefinition(f"TIMESTEP_EMBEDDING of {t.ne}, {n} columns and period {period}, to {node.output.ne}")
    s = Steps.of(node.backend)
    times = t.values[0, 0, 0][:, None]
    with np.errstate(all="ignore"):
        j = np.arange(half, dtype=np.float64)
        exact = times * np.exp(-np.log(float(period)) * j / half)
        exponent = s.divide(s.multiply(-s.log(point(np.float32(period))), point(j)), point(float(half)))
        angle = s.multiply(s.source(times), s.exp(exponent))
        parts = [(of(exact), s.circular(of, angle)) for of in (np.cos, np.sin)]
    padding = [(np.zeros((len(times), 1)), point(np.zeros((len(times), 1))))] if n % 2 else []
    expected, low, high = (
        np.concatenate(each, axis=1)[None, None]
        for each in zip(*((value, reach.low, reach.high) for value, reach in parts + padding), strict=True)
    )
    return enclosed(node, "f32", lambda o, a, b: (o, Interval(a, b)), expected, low, high)


def _draw_fill(rng: np.random.Generator) -> Iterator[Node]:
    for shape in SIZES:
        for type_id, c in ((F32, 0.0), (F32, 1.1), (F16, float(rng.standard_normal())), (F16, -65519.0)):
            sources = (Operand.blank(type_id, *shape),)
            yield Node("FILL", sources, Operand.blank(type_id, *shape), parameters(c))


def _draw_arange(rng: np.random.Generator) -> Iterator[Node]:
    random = float(rng.uniform(-5, 5))
    for first, end, step in (
        (0, 1, 1),
        (0, 33, 1),
        (-7.3, 41.9, 0.37),
        (random, random + 700, 0.7),
        (1e6, 1e6 + 9, 0.5),
    ):
        a, b, c = (np.float32(v) for v in (first, end, step))
        yield Node(
            "ARANGE", (), Operand.blank(F32, int(np.ceil((b - a) / c))), parameters(float(a), float(b), float(c))
        )


def _draw_embedding(rng: np.random.Generator) -> Iterator[Node]:
    for n, rows, period in ((2, 1, 10000), (33, 5, 10000), (256, 3, 10000), (320, 4, 77)):
        t = np.abs(floats(rng, (rows,))) % np.float32(3)  # angles that all backends support
        yield Node("TIMESTEP_EMBEDDING", (Operand.of(t),), Operand.blank(F32, rows, n), parameters(n, period))


FILL = Operation(op="FILL", title="a constant", judge=_fill, draw=_draw_fill)
ARANGE = Operation(op="ARANGE", title="a + step·i", judge=_arange, draw=_draw_arange)
TIMESTEP_EMBEDDING = Operation(
    op="TIMESTEP_EMBEDDING", title="sines and cosines of times", judge=_embedding, draw=_draw_embedding
)
