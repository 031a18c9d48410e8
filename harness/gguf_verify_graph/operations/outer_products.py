"""OUT_PROD: products of matrices summed over their row indices, in float32.

    y[i3, i2, i1, i0] = Σ_k x[⌊i3/r3⌋, ⌊i2/r2⌋, k, i0]·z[i3, i2, k, i1]

x may have any type and is decoded to float32; z is float32. On the CPU the sum over k is one chain (ggml-cpu/ops.cpp,
ggml_compute_forward_out_prod_f32, _q_f32, _f16_f32; llama.cpp v0.5.0). It is judged as the product of float32 values
in `semantics.elements`, whose bound holds for any order and for multiply-adds with one rounding or two. CUDA calls
cuBLAS with TF32 allowed (ggml-cuda/out-prod.cu, common.cuh): see `_products_on_cuda`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gguf_verify.formats import ELEMENTS, FORMATS
from gguf_verify.llama.node import F32, Bytes, Node, NoDefinition, Operand
from gguf_verify.semantics.definitions import llama_cpu_semantics

from ._definition import Definition
from ._drawn_matrices import drawn_values, drawn_weights
from ._matrices import judged, shared, weight_format
from ._products_on_cuda import of_values
from .judging import Judged
from .operation import Operation

_FLOATS = ELEMENTS["F32"]


def _judge(node: Node) -> Judged:
    x, z = node.source(0), node.source(1)
    if node.backend not in ("CPU", "CUDA", "Vulkan"):
        raise NoDefinition(f"{node.operation} of the backend {node.backend}")
    if z.type_id != F32 or x.ne[1] != z.ne[1] or not x.ne[1] or node.output.ne != (x.ne[0], z.ne[0], *z.ne[2:]):
        raise NoDefinition(f"{node.operation} of {x.type} {x.ne} and {z.type} {z.ne} to {node.output.ne}")
    weight_format(x)

    def turned(i3: int, i2: int) -> Bytes:
        """Return x[i3, i2] as rows i0 of values k."""
        values = replace(x, ne=(*x.ne[:2], 1, 1), span=_of_matrix(x, i3, i2)).values[0, 0]
        return np.ascontiguousarray(values.T, np.float32).view(np.uint8)

    rows = np.ascontiguousarray(z.data.swapaxes(2, 3)).reshape(-1, z.ne[1])
    tried = of_values(_FLOATS) if node.backend == "CUDA" else (Definition(llama_cpu_semantics(_FLOATS), _FLOATS),)
    return judged(node, tried, rows, shared(node, x, z.ne[0], turned))


def _of_matrix(x: Operand, i3: int, i2: int) -> Bytes:
    """Return the span of an operand from the first element of one of its matrices."""
    return x.span[i3 * x.nb[3] + i2 * x.nb[2] :]


def _node(x: Operand, z: Operand) -> Node:
    return Node("OUT_PROD", (x, z), Operand.blank(F32, z.ne[3], z.ne[2], z.ne[0], x.ne[0]))


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    for k, i0, i1 in ((1, 1, 1), (1, 33, 5), (3, 7, 2), (33, 65, 9), (1100, 16, 3)):
        yield _node(drawn_values(rng, F32, (k, i0)), drawn_values(rng, F32, (k, i1)))
    yield _node(drawn_values(rng, F32, (2, 2, 40, 24)), drawn_values(rng, F32, (4, 6, 40, 5)))
    turned = drawn_values(rng, F32, (2, 3, 5, 48)).permuted(1, 0, 2, 3)
    yield _node(drawn_values(rng, F32, (2, 3, 48, 17)), turned)
    for name in ("F16", "Q4_0", "Q8_0", "Q4_K", "IQ4_NL"):
        fmt = (FORMATS | ELEMENTS)[name]
        yield _node(drawn_weights(rng, fmt, 2, 3, 19, 256), drawn_values(rng, F32, (2, 3, 19, 7)))


OUT_PROD = Operation(op="OUT_PROD", title="Σ x·zᵀ over rows", judge=_judge, draw=_draw)
