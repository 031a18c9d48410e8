"""MUL_MAT: products of matrices of weights of any type with activations.

    y[i3, i2, m, n] = Σ_k a[i3, i2, m, k]·w[⌊i3/r3⌋, ⌊i2/r2⌋, n, k]        r2 = ne12/ne02, r3 = ne13/ne03

So r2 consecutive matrices of activations share one matrix of weights, as heads share their keys. Products, bounds and
spreads are those of `semantics`, by a definition of the backend (`_product_definitions`). On the CPU (ggml-cpu.c,
ggml_compute_forward_mul_mat; llamafile/sgemm.cpp; tiled/tiled.cpp; llama.cpp v0.5.0) the rows of activations are
converted to the `vec_dot_type` of the weights' type, or already have that type; F16 and BF16 rows multiplied by F32
weights are widened. The shape selects the kernel, and with it the order of the sums.

If parameter 1 declares src0 a Hadamard matrix, and the backend uses that, see `_hadamard`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gguf_verify.formats import ELEMENTS, FORMATS
from gguf_verify.llama.node import BF16, F16, F32, Node, NoDefinition, Operand
from gguf_verify.semantics.definitions import llama_cpu_semantics

from ._drawn_matrices import drawn_values, drawn_weights, first_columns
from ._hadamard import draw_transforms, judge_transform, says_hadamard
from ._matrices import activations, judged, matrix_of, shared, weight_format
from ._product_definitions import definitions
from .drawing import floats
from .judging import Judged
from .operation import Operation


def _judge(node: Node) -> Judged:
    w, x = node.source(0), node.source(1)
    if says_hadamard(node):
        transform = judge_transform(node)
        if node.backend == "CPU" or transform.passed:
            return transform
    fmt = weight_format(w)
    if w.ne[0] != x.ne[0] or not w.ne[0] or node.output.ne != (w.ne[1], *x.ne[1:]):
        raise NoDefinition(f"{node.operation} of {w.ne} and {x.ne} to {node.output.ne}")
    matrices = shared(node, w, x.ne[1], partial(matrix_of, w))
    return judged(node, definitions(node, fmt, x.ne[1]), activations(node, x, fmt), matrices)


def _node(w: Operand, x: Operand) -> Node:
    return Node("MUL_MAT", (w, x), Operand.blank(F32, x.ne[3], x.ne[2], x.ne[1], w.ne[1]))


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    for fmt in FORMATS.values():
        k = fmt.block_size
        many = 7 * k if k < 256 else 3 * k
        for m, n, columns in ((1, 5, k), (3, 33, many), (9, 16, many)):
            yield _node(drawn_weights(rng, fmt, n, columns), drawn_values(rng, F32, (m, columns)))
    for element in ELEMENTS.values():
        for m, n, columns in ((1, 5, 1), (1, 33, 1100), (3, 7, 33), (9, 16, 257), (9, 16, 4096)):
            yield _node(drawn_weights(rng, element, n, columns), drawn_values(rng, F32, (m, columns)))
    yield from _draw_batches(rng)
    yield from _draw_other_types(rng)
    yield from draw_transforms(rng)


def _draw_batches(rng: np.random.Generator) -> Iterator[Node]:
    """Yield heads that share their keys and values, as in attention, and rows that are not contiguous."""
    for name in ("F32", "F16", "BF16", "Q4_0", "Q8_0"):
        fmt = (FORMATS | ELEMENTS)[name]
        yield _node(drawn_weights(rng, fmt, 2, 2, 5, 64), drawn_values(rng, F32, (4, 6, 3, 64)))
        yield _node(drawn_weights(rng, fmt, 1, 2, 33, 32), drawn_values(rng, F32, (2, 4, 1, 32)))
        keys = drawn_weights(rng, fmt, 1, 37, 2, 64).permuted(0, 2, 1, 3)
        for m in (1, 5):
            queries = drawn_values(rng, F32, (1, m, 6, 64)).permuted(0, 2, 1, 3)
            yield _node(keys, queries)
    for type_id in (F32, F16):
        values = first_columns(drawn_values(rng, type_id, (1, 2, 24, 96)), 40)
        weights = np.abs(floats(rng, (1, 6, 4, 40)))
        weights[..., 17:] = 0  # masked
        yield _node(values, Operand.of(weights / weights.sum(axis=-1, keepdims=True)))


def _draw_other_types(rng: np.random.Generator) -> Iterator[Node]:
    """Yield activations of the weights' own `vec_dot_type`, and activations that are widened."""
    for name, type_id in (("F16", F16), ("BF16", BF16), ("F32", BF16)):
        for m in (1, 3):
            yield _node(drawn_weights(rng, ELEMENTS[name], 7, 65), drawn_values(rng, type_id, (m, 65)))
    for name in ("Q4_0", "Q8_0", "IQ4_NL"):
        taken = llama_cpu_semantics(FORMATS[name]).bytes_of(floats(rng, (3, 512), 1.0))
        yield _node(drawn_weights(rng, FORMATS[name], 6, 512), Operand.of(taken, FORMATS["Q8_0"].type_id))


MUL_MAT = Operation(
    op="MUL_MAT",
    title="Σ a·w, by the rows of two matrices",
    judge=_judge,
    draw=_draw,
    axes=("i3", "i2", "token", "row"),
)
