"""f32_tiled: tiles of dequantized weights in shared memory."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..launch import Tiles
from ..spec import KernelSpec

STEP = KernelSpec(
    "f32_tiled",
    "gemm/f32/02_tiled.cu",
    "f32",
    ASCENDING,
    "W4A16/W8A16, tiles of dequantized weights in shared memory",
    Tiles(16, 16),
    fastest=lambda problem: problem.on_gpu,
)
