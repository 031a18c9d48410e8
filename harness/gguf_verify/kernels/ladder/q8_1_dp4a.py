"""q8_1_dp4a: four integer products per instruction (`__dp4a`), one thread per output."""

from __future__ import annotations

from ...semantics.order import ASCENDING
from ..spec import KernelSpec

STEP = KernelSpec(
    "q8_1_dp4a",
    "gemm/q8_1/04_dp4a.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, four products an instruction",
    fastest=lambda problem: True,
)
