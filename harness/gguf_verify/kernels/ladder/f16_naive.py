"""f16_naive: one thread computes one output, from weights and activations that are halves."""

from __future__ import annotations

from ...semantics.declared import IN_TENSOR_CORES
from ..spec import KernelSpec

STEP = KernelSpec(
    "f16_naive",
    "gemm/f16/01_naive.cu",
    "f16",
    None,
    "W4A16/W8A16 in halves, one thread an output",
    declares=IN_TENSOR_CORES,
)
