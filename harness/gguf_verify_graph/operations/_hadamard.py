"""MUL_MAT with the hint that src0 is a Hadamard matrix: the fast transform of the rows of src1.

    y = H·x/√n,  H[i, j] = (-1)^popcount(i & j)

log2 n passes of sums and differences, at distances 1, 2, 4 and so on, over x·half-ulp-rounded(1/√n) (ggml-cpu/ops.cpp,
ggml_compute_forward_fwht_impl; vulkan-shaders/fwht.comp; llama.cpp v0.5.0). src0 is not read.

    bound   of a value v = a ± b:  B[v] = B[a] + B[b] + u·(|v| + B[a] + B[b]), from B[x/√n] = u·|x/√n|; and 2·u·|y| for
            the two roundings of 1/√n, which is exact where n is a power of four
    spread  u/√3 times the root of E[v] = E[a] + E[b] + v², the sum of squares of everything rounded on the way to v
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gguf_verify.llama.node import F16, F32, Array, Doubles, Node, NoDefinition, Operand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from ._drawn_matrices import drawn_values
from .arithmetic import arithmetic
from .judging import Judged, within

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
        x, h = drawn_values(rng, type_id, shape), Operand.of(_matrix(n))
        yield Node("MUL_MAT", (h, x), Operand.blank(F32, *shape), parameters(0, HINT))
    x = drawn_values(rng, F32, (1, 5, 3, 64)).permuted(0, 2, 1, 3)
    yield Node("MUL_MAT", (Operand.of(_matrix(64)), x), Operand.blank(F32, *x.shape), parameters(0, HINT))


def _matrix(n: int) -> Array:
    """Return H/√n."""
    i = np.arange(n)
    ones = np.array([bin(k).count("1") for k in range(n)])
    signs = 1 - 2 * (ones[i[:, None] & i] % 2)
    return np.asarray(signs / np.sqrt(n), np.float32)
