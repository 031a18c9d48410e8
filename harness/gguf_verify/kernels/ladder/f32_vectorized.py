"""f32_vectorized: tiles of outputs in registers, 16-byte loads."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..launch import Tiles
from ..spec import FEW, KernelSpec, Problem
from ..tiling import MULTIPROCESSORS

_TOKENS, _ROWS = 64, 128


def _fastest(problem: Problem) -> bool:
    """Claim more than 16 tokens, and fewer where tiles fill most of a GPU.

    Measured on one H100, K = 4096, 16 tokens of Q4_0, N = 14336: 305 µs, f32_tiled 352.
    """
    tiles = -(-problem.m // _TOKENS) * -(-problem.n // _ROWS)
    return problem.on_gpu and (problem.m > 2 * FEW or 4 * tiles > 3 * MULTIPROCESSORS)


STEP = KernelSpec(
    "f32_vectorized",
    "gemm/f32/03_vectorized.cu",
    "f32",
    ASCENDING,
    "W4A16/W8A16, tiles in registers, loads of 16 bytes",
    Tiles(_TOKENS, _ROWS),
    fastest=_fastest,
)
