"""MUL_MAT_ID: products with the matrices of the experts to which each token is routed.

    y[t, u, n] = Σ_k a[t, u mod b, k]·w[id[t, u], n, k]        b activations per token: one for all u, or one for each

Each output row is that of a MUL_MAT with the expert's matrix (ggml-cpu.c, ggml_compute_forward_mul_mat_id; llama.cpp
v0.5.0), so definition, bound and spread are the same: see `products`. CUDA multiplies weights without MMQ expert by
expert, unless mmf or MMVQ takes all, and then chooses by each expert's number of tokens (ggml-cuda.cu,
ggml_cuda_mul_mat_id).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gguf_verify.formats import ELEMENTS, FORMATS, BlockFormat, WeightFormat
from gguf_verify.llama.node import F32, I32, Node, NoDefinition, Operand

from ._drawn_matrices import drawn_values, drawn_weights
from ._matrices import Matrix, activations, judged, judged_apart, matrix_of, weight_format
from ._product_definitions import definitions
from .judging import Judged
from .operation import Operation


def _judge(node: Node) -> Judged:
    w, x, ids = node.source(0), node.source(1), node.source(2)
    fmt = weight_format(w)
    k, n, experts, one = w.ne
    _, b, tokens, other = x.ne
    used = ids.ne[0]
    fits = x.ne[0] == k and one == other == 1 and ids.ne == (used, tokens, 1, 1) and ids.type_id == I32
    if not fits or not k or not b or used % b or node.output.ne != (n, used, tokens, 1):
        raise NoDefinition(f"{node.operation} of {w.ne}, {x.ne} and {ids.ne} to {node.output.ne}")
    of = ids.data[0, 0].astype(np.intp)  # [tokens, used]
    if of.size and not (of.min() >= 0 and of.max() < experts):
        raise NoDefinition(f"{node.operation} with an expert that does not exist")
    matrices = []
    for expert in np.unique(of):
        t, u = np.nonzero(of == expert)
        matrices.append(Matrix(partial(matrix_of, w, 0, int(expert)), t * b + u % b, t * used + u))
    taken = activations(node, x, fmt)
    if node.backend == "CUDA" and not (isinstance(fmt, BlockFormat) and fmt.llama.mmq) and matrices:
        return judged_apart(node, lambda of: definitions(node, fmt, tokens, of), taken, matrices)
    return judged(node, definitions(node, fmt, tokens, tokens), taken, matrices)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    formats: list[WeightFormat] = [*FORMATS.values(), *ELEMENTS.values()]
    for fmt in formats:
        block = fmt.block_size if fmt.block_size > 1 else 37
        # experts, experts per token, activations per token, tokens, rows, columns
        for experts, used, b, tokens, n, k in ((3, 2, 1, 1, 5, block), (4, 2, 2, 9, 16, 2 * block)):
            w = drawn_weights(rng, fmt, experts, n, k)
            x = drawn_values(rng, F32, (tokens, b, k))
            routed = np.stack([rng.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
            yield Node("MUL_MAT_ID", (w, x, Operand.of(routed)), Operand.blank(F32, tokens, used, n))
    w, x = drawn_weights(rng, FORMATS["Q4_K"], 5, 33, 512), drawn_values(rng, F32, (7, 1, 512))
    everywhere = rng.integers(0, 5, (7, 4)).astype(np.int32)  # one expert may be chosen twice, another never
    yield Node("MUL_MAT_ID", (w, x, Operand.of(everywhere)), Operand.blank(F32, 7, 4, 33))


MUL_MAT_ID = Operation(
    op="MUL_MAT_ID",
    title="Σ a·w, w of the token's experts",
    judge=_judge,
    draw=_draw,
    axes=("i3", "token", "expert used", "row"),
)
