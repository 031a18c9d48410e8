"""q8_1_tiled: tiles of unpacked codes in shared memory."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..launch import Tiles
from ..spec import KernelSpec

STEP = KernelSpec(
    "q8_1_tiled",
    "gemm/q8_1/02_tiled.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, tiles of unpacked codes in shared memory",
    Tiles(16, 16),
)
