"""q8_1_dp4a_tiled: four integer products per instruction, tiles of outputs in registers."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..launch import Tiles
from ..spec import FEW, KernelSpec

STEP = KernelSpec(
    "q8_1_dp4a_tiled",
    "gemm/q8_1/05_dp4a_tiled.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, four products an instruction, tiles in registers",
    Tiles(64, 64),
    fastest=lambda problem: problem.on_gpu and problem.m > FEW,
)
