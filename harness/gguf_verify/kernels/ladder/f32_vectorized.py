"""f32_vectorized: tiles of outputs in registers, loads of 16 bytes."""

from __future__ import annotations

from ...semantics import ASCENDING
from ..launch import Tiles
from ..spec import FEW, KernelSpec

STEP = KernelSpec(
    "f32_vectorized", "gemm/f32/03_vectorized.cu", "f32", ASCENDING,
    "W4A16/W8A16, tiles in registers, loads of 16 bytes", Tiles(64, 128),
    fastest=lambda problem: problem.on_gpu and problem.m > 2 * FEW,
)  # fmt: skip
