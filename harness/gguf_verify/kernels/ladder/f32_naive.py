"""f32_naive: weights are dequantized and multiplied by float32 activations, one thread per output."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..spec import KernelSpec

STEP = KernelSpec("f32_naive", "gemm/f32/01_naive.cu", "f32", ASCENDING, "W4A16/W8A16, one thread an output")
