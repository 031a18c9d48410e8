"""Triangular systems: SOLVE_TRI, L·X = B with a lower triangle L, by forward substitution.

    x[i] = (b[i] - Σ_{t<i} L[i, t]·x[t]) / L[i, i]

The sum is float32 and starts at zero (ggml-cpu/ops.cpp, ggml-cuda/solve_tri.cu; llama.cpp v0.5.0); Vulkan subtracts
each term from b[i] (vulkan-shaders/solve_tri.comp). For more than 64 rows or 32 columns CUDA calls cuBLAS, whose order
is not known: that is not defined here.

The computed X̂ solves L·X̂ = B + ρ, where ρ is the rounding error of each row (Higham, "Accuracy and Stability of
Numerical Algorithms", 2nd ed., §8.1), so X̂ - X = L⁻¹·ρ:

    |ρ[i]|      ≤ γ_{i+1}·Σ_{t<i} |L[i, t]·x[t]| + u·|b[i] - Σ| + (the division's ulps)·|L[i, i]·x[i]|
    bound       |L⁻¹|·|ρ|, in which |x̂| ≤ |x| + (the bound of |x| alone)
    spread      the root of (L⁻¹)²·(variance of ρ)

Where terms are subtracted from b[i], the remainder after each is L[i, i]·x[i] plus the later terms. So L[i, i]·x[i] is
rounded with them i times: it is one of the magnitudes that γ multiplies, and adds the variance i·(u·L[i, i]·x[i])²/3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gguf_verify.llama.node import F32, Doubles, Node, Operand, demand
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, arithmetic, summed
from .judging import Judged, Operation, within
from .random_inputs import floats


def _substituted(triangle: Doubles, right: Doubles) -> Doubles:
    x = np.zeros(right.shape)
    for i in range(triangle.shape[-1]):
        known = (triangle[..., i, None, :i] @ x[..., :i, :])[..., 0, :]
        x[..., i, :] = (right[..., i, :] - known) / triangle[..., i, i, None]
    return x


def _solve(node: Node) -> Judged:
    node.floats(0, 1)
    a = arithmetic(node.backend)
    whole, right = node.source(0).values, node.source(1).values
    n = whole.shape[-1]
    fits = whole.shape == (*right.shape[:2], n, n) and right.shape[2] == n and node.output.shape == right.shape
    demand(fits, "SOLVE_TRI of these shapes")
    demand(node.backend != "CUDA" or (n <= 64 and right.shape[3] <= 32), "SOLVE_TRI by cuBLAS")
    with np.errstate(all="ignore"):
        triangle = np.tril(whole)
        exact = _substituted(triangle, right)
        inverse = _substituted(triangle, np.broadcast_to(np.eye(n), triangle.shape))
        size = np.abs(exact)
        for _ in range(2):
            taken = node.backend == "Vulkan"
            rounded, spread = _rounded(triangle, right, exact, size, a.division, a.tiny, taken)
            bound = np.abs(inverse) @ rounded
            size = np.abs(exact) + bound
        spread = np.sqrt(inverse**2 @ spread**2)
        return within(node, "f32", exact, bound + a.tiny, spread + a.tiny)


def _rounded(
    triangle: Doubles, right: Doubles, exact: Doubles, size: Doubles, division: float, tiny: float, taken: bool
) -> tuple[Doubles, Doubles]:
    """Return the largest rounding error of each row, for X of these sizes, and its spread.

    Args:
        taken: whether terms are subtracted from b, as on Vulkan.
    """
    below = np.tril(triangle, -1)
    diagonal = np.abs(np.einsum("...ii->...i", triangle))[..., None]
    total, magnitude, squares = below @ exact, np.abs(below) @ size, below**2 @ size**2
    # row i adds i terms, so each row has its own n
    n = np.arange(triangle.shape[-1])[:, None]
    own = diagonal * size if taken else 0.0 * size
    bound = UNIT_ROUNDOFF * (n + 1) / (1 - UNIT_ROUNDOFF * (n + 1)) * (magnitude + own)
    _, spread = summed(total, magnitude, squares, triangle.shape[-1], 1)
    spread = np.sqrt(spread**2 + n * (UNIT_ROUNDOFF * own) ** 2 / 3)
    difference = np.minimum(diagonal * size, np.abs(right) + magnitude)
    divided = (UNIT_ROUNDOFF + division * ULP) * difference
    return bound + divided + (2 * n + 1 + diagonal) * tiny, spread + divided + (1 + diagonal) * tiny


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    for n, columns, matrices, systems in ((1, 1, 1, 1), (5, 3, 2, 1), (33, 7, 2, 3), (64, 64, 2, 1), (100, 5, 1, 1)):
        triangle = np.tril(floats(rng, (systems, matrices, n, n), 1.0) / np.float32(np.sqrt(n)))
        signs = np.where(rng.uniform(size=(systems, matrices, n)) < 0.5, -1, 1)
        at = np.arange(n)
        triangle[..., at, at] = signs * rng.uniform(0.7, 3, signs.shape)
        right = floats(rng, (systems, matrices, n, columns))
        yield Node(
            "SOLVE_TRI",
            (Operand.of(triangle.astype(np.float32)), Operand.of(right)),
            Operand.blank(F32, *right.shape),
        )


SOLVE_TRI = Operation(op="SOLVE_TRI", title="X of L·X = B, L a lower triangle", judge=_solve, draw=_draw)
