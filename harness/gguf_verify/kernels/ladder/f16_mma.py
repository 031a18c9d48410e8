"""f16_mma: tensor cores (`mma` on halves), directly from the file's blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.tensor_types import WeightFormat
from ...semantics.declared import IN_TENSOR_CORES
from ..interface import Weights
from ..launch import Launch
from ..site import Site
from ..spec import KernelSpec


class Mma(Launch):
    """Tiles of 8 tokens and 64 rows, of 32 tokens and 128 rows, or of 128 tokens and 128 rows."""

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int]:
        tokens = 8 if m <= 8 else 32 if m <= 64 else 128
        return tokens, 64 if tokens == 8 else 128

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        tokens, rows = self.tile(weights.fmt, m, weights.n)
        args = [weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k)]
        grid = (-(-m // tokens) * -(-weights.n // rows), 1, 1)
        function = site.function("gemm", weights.fmt, macros={"TOKENS": str(tokens)})
        site.host.launch(function, grid, (2 * rows, 1, 1), args)


STEP = KernelSpec(
    "f16_mma",
    "gemm/f16/02_mma.cu",
    "f16",
    None,
    "W4A16/W8A16 in halves, tensor cores",
    Mma(),
    declares=IN_TENSOR_CORES,
    fastest=lambda problem: problem.on_gpu,
)
