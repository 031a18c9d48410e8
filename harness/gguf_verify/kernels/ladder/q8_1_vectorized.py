"""q8_1_vectorized: tiles of outputs in registers, 16-byte loads."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..launch import Tiles
from ..spec import KernelSpec

STEP = KernelSpec(
    "q8_1_vectorized",
    "gemm/q8_1/03_vectorized.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, tiles in registers, loads of 16 bytes",
    Tiles(64, 64),
)
