"""q8_1_split_k: as q8_1_wgmma, with each row cut in parts that run at the same time (split-K)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...semantics import Order
from ..interface import Weights
from ..packed import LEGACY, Packed
from ..site import MAX_GRID, Cards, Site
from ..spec import FEW, KernelSpec, Problem
from ..tiling import ANY_TILING, MULTIPROCESSORS, Tiling

#: Values of a part of a row.
SPLIT = 1024


class SplitK(Packed):
    """Takes tiles as small as the tokens allow, and adds the parts' sums in a launch of its own."""

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(site, weights, "tile", x, out, m)

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(site, weights, "quantize_tiled", x, out, m)

    def tiling(self, m: int, n: int, parts: int) -> Tiling:
        """Small tiles where there are few tokens: more blocks at the same time hide each other's waits."""
        if m <= 16:
            return Tiling(16, 1, 4)
        return min((Tiling(64), Tiling(32, 1, 3)), key=lambda tiling: tiling.rounds(m, n, parts))

    def _multiply(self, site: Site, weights: Weights, entry: str, x: Any, out: Any, m: int) -> None:
        parts, fours = -(-weights.k // SPLIT), -(-m * weights.n // 4)
        sums = site.host.output(16 * parts * fours, "sums of parts")
        self.tiling(m, weights.n, parts).gemm(site, weights, entry, x, sums, m, SPLIT)
        args = [sums, out, np.int64(parts), np.int64(m * weights.n)]
        add = site.function("add_parts", weights.fmt, macros=ANY_TILING)
        site.host.launch(add, (min(-(-fours // 128), MAX_GRID), 1, 1), (128, 1, 1), args)


def _fastest(problem: Problem) -> bool:
    """Where q8_1_wgmma would leave more than half of the multiprocessors idle."""
    idle = 2 * Tiling(64).tiles(problem.m, problem.n) < MULTIPROCESSORS
    return problem.on_gpu and problem.m > FEW and problem.k > SPLIT and idle


STEP = KernelSpec(
    "q8_1_split_k", "gemm/q8_1/09_split_k.cu", "q8_1", Order(SPLIT), "W4A8/W8A8, as q8_1_wgmma, rows in parts",
    SplitK(), formats=LEGACY, cards=Cards(exact="90a"), fastest=_fastest,
)  # fmt: skip
