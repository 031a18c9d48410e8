"""q8_1_naive: integer products of codes, one thread per output. The reference for the bits of every later step."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..spec import KernelSpec

STEP = KernelSpec("q8_1_naive", "gemm/q8_1/01_naive.cu", "q8_1", ASCENDING, "W4A8/W8A8, one thread an output")
