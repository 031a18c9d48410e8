"""q8_1_mma: tensor cores (`mma` on 8-bit codes)."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..launch import Tiles
from ..spec import KernelSpec

STEP = KernelSpec(
    "q8_1_mma",
    "gemm/q8_1/06_mma.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, tensor cores",
    Tiles(128, 128, 512),
    fastest=lambda problem: problem.on_gpu,
)
