"""MUL_MAT: products of matrices of weights of any type with activations.

    y[i3, i2, m, n] = Σ_k a[i3, i2, m, k]·w[⌊i3/r3⌋, ⌊i2/r2⌋, n, k]        r2 = ne12/ne02, r3 = ne13/ne03

So r2 consecutive matrices of activations share one matrix of weights, as heads share their keys. Products, bounds and
spreads are those of `semantics`, by a definition of the backend (`product_definitions`). On the CPU (ggml-cpu.c,
ggml_compute_forward_mul_mat; llamafile/sgemm.cpp; tiled/tiled.cpp; llama.cpp v0.5.0) the rows of activations are
converted to the `vec_dot_type` of the weights' type, or already have that type; F16 and BF16 rows multiplied by F32
weights are widened. The shape selects the kernel, and with it the order of the sums.

If parameter 1 declares src0 a Hadamard matrix, and the backend uses that, it is the transform
below.

MUL_MAT_ID: products with the matrices of the experts to which each token is routed.

    y[t, u, n] = Σ_k a[t, u mod b, k]·w[id[t, u], n, k]        b activations per token: one for all u, or one for each

Each output row is that of a MUL_MAT with the expert's matrix (ggml-cpu.c, ggml_compute_forward_mul_mat_id; llama.cpp
v0.5.0), so definition, bound and spread are the same. CUDA multiplies weights without MMQ expert by
expert, unless mmf or MMVQ takes all, and then chooses by each expert's number of tokens (ggml-cuda.cu,
ggml_cuda_mul_mat_id).

OUT_PROD: products of matrices summed over their row indices, in float32.

    y[i3, i2, i1, i0] = Σ_k x[⌊i3/r3⌋, ⌊i2/r2⌋, k, i0]·z[i3, i2, k, i1]

x may have any type and is decoded to float32; z is float32. On the CPU the sum over k is one chain (ggml-cpu/ops.cpp,
ggml_compute_forward_out_prod_f32, _q_f32, _f16_f32; llama.cpp v0.5.0). It is judged as the product of float32 values
in `semantics.elements`, whose bound holds for any order and for multiply-adds with one rounding or two. CUDA calls
cuBLAS with TF32 allowed (ggml-cuda/out-prod.cu, common.cuh): see `products_on_cuda`.

MUL_MAT with the hint that src0 is a Hadamard matrix: the fast transform of the rows of src1.

    y = H·x/√n,  H[i, j] = (-1)^popcount(i & j)

log2 n passes of sums and differences, at distances 1, 2, 4 and so on, over x·half-ulp-rounded(1/√n) (ggml-cpu/ops.cpp,
ggml_compute_forward_fwht_impl; vulkan-shaders/fwht.comp; llama.cpp v0.5.0). src0 is not read.

    bound   of a value v = a ± b:  B[v] = B[a] + B[b] + u·(|v| + B[a] + B[b]), from B[x/√n] = u·|x/√n|; and 2·u·|y| for
            the two roundings of 1/√n, which is exact where n is a power of four
    spread  u/√3 times the root of E[v] = E[a] + E[b] + v², the sum of squares of everything rounded on the way to v
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS, WeightFormat
from gguf_verify.llama.node import (
    BF16,
    F16,
    F32,
    I32,
    Array,
    Bytes,
    Doubles,
    Node,
    NoDefinition,
    Operand,
    demand,
    parameters,
)
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import arithmetic
from .definition import Definition
from .judging import Judged, Operation, within
from .matrices import Matrix, activations, judged, judged_apart, matrix_of, shared, weight_format
from .product_definitions import definitions
from .products_on_cuda import of_values
from .random_inputs import first_columns, floats, random_values, random_weights


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
            yield _node(random_weights(rng, fmt, n, columns), random_values(rng, F32, (m, columns)))
    for element in ELEMENTS.values():
        for m, n, columns in ((1, 5, 1), (1, 33, 1100), (3, 7, 33), (9, 16, 257), (9, 16, 4096)):
            yield _node(random_weights(rng, element, n, columns), random_values(rng, F32, (m, columns)))
    yield from _draw_batches(rng)
    yield from _draw_other_types(rng)
    yield from draw_transforms(rng)


def _draw_batches(rng: np.random.Generator) -> Iterator[Node]:
    """Yield heads that share their keys and values, as in attention, and rows that are not contiguous."""
    for name in ("F32", "F16", "BF16", "Q4_0", "Q8_0"):
        fmt = (FORMATS | ELEMENTS)[name]
        yield _node(random_weights(rng, fmt, 2, 2, 5, 64), random_values(rng, F32, (4, 6, 3, 64)))
        yield _node(random_weights(rng, fmt, 1, 2, 33, 32), random_values(rng, F32, (2, 4, 1, 32)))
        keys = random_weights(rng, fmt, 1, 37, 2, 64).permuted(0, 2, 1, 3)
        for m in (1, 5):
            queries = random_values(rng, F32, (1, m, 6, 64)).permuted(0, 2, 1, 3)
            yield _node(keys, queries)
    for type_id in (F32, F16):
        values = first_columns(random_values(rng, type_id, (1, 2, 24, 96)), 40)
        weights = np.abs(floats(rng, (1, 6, 4, 40)))
        weights[..., 17:] = 0  # masked
        yield _node(values, Operand.of(weights / weights.sum(axis=-1, keepdims=True)))


def _draw_other_types(rng: np.random.Generator) -> Iterator[Node]:
    """Yield activations of the weights' own `vec_dot_type`, and activations that are widened."""
    for name, type_id in (("F16", F16), ("BF16", BF16), ("F32", BF16)):
        for m in (1, 3):
            yield _node(random_weights(rng, ELEMENTS[name], 7, 65), random_values(rng, type_id, (m, 65)))
    for name in ("Q4_0", "Q8_0", "IQ4_NL"):
        taken = llama_cpu_semantics(FORMATS[name]).bytes_of(floats(rng, (3, 512), 1.0))
        yield _node(random_weights(rng, FORMATS[name], 6, 512), Operand.of(taken, FORMATS["Q8_0"].type_id))


def _judge_experts(node: Node) -> Judged:
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


def _draw_experts(rng: np.random.Generator) -> Iterator[Node]:
    formats: list[WeightFormat] = [*FORMATS.values(), *ELEMENTS.values()]
    for fmt in formats:
        block = fmt.block_size if fmt.block_size > 1 else 37
        # experts, experts per token, activations per token, tokens, rows, columns
        for experts, used, b, tokens, n, k in ((3, 2, 1, 1, 5, block), (4, 2, 2, 9, 16, 2 * block)):
            w = random_weights(rng, fmt, experts, n, k)
            x = random_values(rng, F32, (tokens, b, k))
            routed = np.stack([rng.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
            yield Node("MUL_MAT_ID", (w, x, Operand.of(routed)), Operand.blank(F32, tokens, used, n))
    w, x = random_weights(rng, FORMATS["Q4_K"], 5, 33, 512), random_values(rng, F32, (7, 1, 512))
    everywhere = rng.integers(0, 5, (7, 4)).astype(np.int32)  # one expert may be chosen twice, another never
    yield Node("MUL_MAT_ID", (w, x, Operand.of(everywhere)), Operand.blank(F32, 7, 4, 33))


_FLOATS = ELEMENTS["F32"]


def _judge_outer(node: Node) -> Judged:
    x, z = node.source(0), node.source(1)
    demand(node.backend in ("CPU", "CUDA", "Vulkan"), f"{node.operation} of the backend {node.backend}")
    if z.type_id != F32 or x.ne[1] != z.ne[1] or not x.ne[1] or node.output.ne != (x.ne[0], z.ne[0], *z.ne[2:]):
        raise NoDefinition(f"{node.operation} of {x.type} {x.ne} and {z.type} {z.ne} to {node.output.ne}")
    weight_format(x)

    def turned(i3: int, i2: int) -> Bytes:
        """Return x[i3, i2] as rows i0 of values k."""
        # The span of an operand from the first element of one of its matrices.
        values = replace(x, ne=(*x.ne[:2], 1, 1), span=x.span[i3 * x.nb[3] + i2 * x.nb[2] :]).values[0, 0]
        return np.ascontiguousarray(values.T, np.float32).view(np.uint8)

    rows = np.ascontiguousarray(z.data.swapaxes(2, 3)).reshape(-1, z.ne[1])
    tried = of_values(_FLOATS) if node.backend == "CUDA" else (Definition(llama_cpu_semantics(_FLOATS), _FLOATS),)
    return judged(node, tried, rows, shared(node, x, z.ne[0], turned))


def _outer(x: Operand, z: Operand) -> Node:
    return Node("OUT_PROD", (x, z), Operand.blank(F32, z.ne[3], z.ne[2], z.ne[0], x.ne[0]))


def _draw_outer(rng: np.random.Generator) -> Iterator[Node]:
    for k, i0, i1 in ((1, 1, 1), (1, 33, 5), (3, 7, 2), (33, 65, 9), (1100, 16, 3)):
        yield _outer(random_values(rng, F32, (k, i0)), random_values(rng, F32, (k, i1)))
    yield _outer(random_values(rng, F32, (2, 2, 40, 24)), random_values(rng, F32, (4, 6, 40, 5)))
    turned = random_values(rng, F32, (2, 3, 5, 48)).permuted(1, 0, 2, 3)
    yield _outer(random_values(rng, F32, (2, 3, 48, 17)), turned)
    for name in ("F16", "Q4_0", "Q8_0", "Q4_K", "IQ4_NL"):
        fmt = (FORMATS | ELEMENTS)[name]
        yield _outer(random_weights(rng, fmt, 2, 3, 19, 256), random_values(rng, F32, (2, 3, 19, 7)))


#: `GGML_HINT_SRC0_IS_HADAMARD` of ggml.h, in parameter 1 of a MUL_MAT.
HINT = 1


def says_hadamard(node: Node) -> bool:
    """Return whether the node has the hint."""
    return node.integer(1) == HINT


def judge_transform(node: Node) -> Judged:
    """Judge the output as the transform of src1. Raises NoDefinition."""
    x = node.source(1)
    n = x.ne[0]
    if x.type_id not in (F32, F16) or n < 1 or n & (n - 1) or node.output.ne != x.ne:
        raise NoDefinition(f"{node.operation} with a Hadamard matrix of {x.type} {x.ne} to {node.output.ne}")
    u, tiny = UNIT_ROUNDOFF, arithmetic(node.backend).tiny
    with np.errstate(all="ignore"):
        v = x.values / np.sqrt(n)
        off, squares = u * np.abs(v) + tiny, v**2
        for level in range(n.bit_length() - 1):
            v = _butterfly(v, 1 << level, True)
            off, squares = _butterfly(off, 1 << level, False), _butterfly(squares, 1 << level, False) + v**2
            off = off + u * (np.abs(v) + off) + tiny
        of_scale = 0.0 if n.bit_length() % 2 else 2 * u
        scaled = of_scale * np.abs(v)
        bound, spread = off * (1 + of_scale) + scaled, u / np.sqrt(3) * np.sqrt(squares) + scaled
    return within(node, "f32 Hadamard", v, bound, spread)


def _butterfly(values: Doubles, distance: int, signed: bool) -> Doubles:
    """Return a + b and, if signed, a - b, otherwise a + b again, for values at this distance along the last axis."""
    pairs = values.reshape(*values.shape[:-1], -1, 2, distance)
    a, b = pairs[..., 0, :], pairs[..., 1, :]
    return np.stack([a + b, a - b if signed else a + b], axis=-2).reshape(values.shape)


def draw_transforms(rng: np.random.Generator) -> Iterator[Node]:
    """Yield transforms of several lengths, also of rows that are not contiguous."""
    for type_id, shape in ((F32, (1, 1, 3, 8)), (F32, (1, 2, 3, 128)), (F16, (2, 3, 5, 64)), (F32, (1, 1, 2, 2048))):
        n = shape[-1]
        x, h = random_values(rng, type_id, shape), Operand.of(_matrix(n))
        yield Node("MUL_MAT", (h, x), Operand.blank(F32, *shape), parameters(0, HINT))
    x = random_values(rng, F32, (1, 5, 3, 64)).permuted(0, 2, 1, 3)
    yield Node("MUL_MAT", (Operand.of(_matrix(64)), x), Operand.blank(F32, *x.shape), parameters(0, HINT))


def _matrix(n: int) -> Array:
    """Return H/√n."""
    i = np.arange(n)
    ones = np.array([bin(k).count("1") for k in range(n)])
    signs = 1 - 2 * (ones[i[:, None] & i] % 2)
    return np.asarray(signs / np.sqrt(n), np.float32)


MUL_MAT = Operation(
    op="MUL_MAT",
    title="Σ a·w, by the rows of two matrices",
    judge=_judge,
    draw=_draw,
    axes=("i3", "i2", "token", "row"),
)
MUL_MAT_ID = Operation(
    op="MUL_MAT_ID",
    title="Σ a·w, w of the token's experts",
    judge=_judge_experts,
    draw=_draw_experts,
    axes=("i3", "token", "expert used", "row"),
)
OUT_PROD = Operation(op="OUT_PROD", title="Σ x·zᵀ over rows", judge=_judge_outer, draw=_draw_outer)
