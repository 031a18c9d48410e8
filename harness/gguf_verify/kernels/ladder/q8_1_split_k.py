"""q8_1_split_k: like q8_1_wgmma, with each row split into parts that run at the same time (split-K)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.block import BlockFormat
from ...semantics.order import Order
from ..interface import Weights
from ..packed import LEGACY, Layout, Packed
from ..site import MAX_GRID, Cards, Site
from ..spec import FEW, KernelSpec, Problem
from ..tiling import ANY_TILING, DECODED, LARGE, SMALLEST, Tiling, pace, small_products_of_five_bits, tilings

#: Values of a part of a row.
SPLIT = 1024
#: The cost of adding the parts, in units of `Tiling.cost`, which are for rows of 4096 values and about 0.47 µs: one
#: launch (6 µs), and one unit for this many 8-byte sums, more of them if the second-level cache holds the sums. One
#: H200, N = 14336, K = 4096, whole rows and parts. 64 tokens, in two runs that timed the family's choice before its
#: members: where each was the choice, Q5_1 56.4 and 57.9 µs, Q5_K 56.0 and 54.3, Q6_K 58.3 and 57.1, Q2_K 64.4 and
#: 66.9; where each was a member, Q5_K 52.9 and 52.6, Q6_K 54.6 and 55.0, Q2_K 64.3 and 65.8. 32 tokens: Q8_0 32.7 and
#: 34.0, Q4_K 33.4 and 31.9, Q6_K 39.3 and 37.5.
_ROW, _LAUNCH, _SUMS, _CACHED_SUMS, _CACHED = 4096, 12, 210_000, 282_000, 24 << 20


class SplitK(Packed):
    """A launch of tiles as small as the tokens allow, followed by one that adds the sums of the parts."""

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(site, weights, "tile", x, out, m)

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(site, weights, "quantize_tiled", x, out, m)

    @staticmethod
    def tiling(m: int, n: int, parts: int) -> Tiling:
        """Return small tiles for few tokens: with more blocks at the same time, each hides the others' waits."""
        if m <= 16:
            return SMALLEST
        return min((LARGE, Tiling(32, 1, 3)), key=lambda tiling: tiling.cost(m, n, parts))

    def _multiply(self, site: Site, weights: Weights, entry: str, x: Any, out: Any, m: int) -> None:
        parts, fours = -(-weights.k // SPLIT), -(-m * weights.n // 4)
        sums = site.host.output(16 * parts * fours, "sums of parts")
        self.tiling(m, weights.n, parts).gemm(site, weights, entry, x, sums, m, SPLIT)
        args = [sums, out, np.int64(parts), np.int64(m * weights.n)]
        assert isinstance(weights.fmt, BlockFormat)
        add = site.function("add_parts", weights.fmt, macros={**Layout.of(weights.fmt).macros, **ANY_TILING})
        site.host.launch(add, (min(-(-fours // 128), MAX_GRID), 1, 1), (128, 1, 1), args, overlaps=True)


def done_sooner(fmt: BlockFormat, m: int, n: int, k: int) -> bool:
    """Return whether parts take less time than whole rows in tiles, including the launch that adds their sums."""
    if k <= SPLIT:
        return False
    parts, rows = -(-k // SPLIT), k / _ROW
    whole = min(tiling.cost(m, n) * pace(fmt, tiling.tokens) for tiling in tilings(fmt)) * rows
    of_parts = SplitK.tiling(m, n, parts)
    cut = of_parts.cost(m, n, parts) * pace(fmt, of_parts.tokens) * rows / parts
    sums = m * n * parts
    return cut + _LAUNCH + sums / (_CACHED_SUMS if 4 * sums <= _CACHED else _SUMS) < whole


def _fastest(problem: Problem) -> bool:
    """Claim the products for which parts take the least time, also compared with the kernels for few tokens."""
    fmt, m, n, k = problem.fmt, problem.m, problem.n, problem.k
    if not problem.on_gpu or not isinstance(fmt, BlockFormat):
        return False
    if fmt.name in LEGACY and small_products_of_five_bits(fmt, m, n):
        return False
    return m > (FEW if fmt.name in LEGACY else DECODED) and done_sooner(fmt, m, n, k)


STEP = KernelSpec(
    "q8_1_split_k",
    "gemm/q8_1/09_split_k.cu",
    "q8_1",
    Order(SPLIT),
    "W4A8/W8A8, as q8_1_wgmma, rows in parts",
    SplitK(),
    cards=Cards(exact="90a"),
    fastest=_fastest,
)
