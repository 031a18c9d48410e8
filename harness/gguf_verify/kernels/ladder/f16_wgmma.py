"""f16_wgmma: weights become halves in registers, and Hopper's tensor cores (`wgmma`) accumulate the sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.declared import IN_TENSOR_CORES
from ..half_tiling import HalfTiling
from ..halves import ROWS, Bytes, Layout, packed_halves
from ..interface import Weights
from ..launch import Launch
from ..site import Cards, Site
from ..spec import KernelSpec
from ..tiling import MULTIPROCESSORS

#: Tokens of the largest of the small tiles, and the most parts of a row with these.
_FEW, _MOST_PARTS = 64, 4


class Wgmma(Launch):
    """A launch that chooses the tiles that keep the GPU busy."""

    layout: ClassVar[str] = "codes beside scales"

    def prepare(self, site: Site, fmt: WeightFormat, rows: Bytes) -> Any:
        return packed_halves(site, fmt, rows)

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int]:
        chosen = self.tiling(fmt, m, n)
        return chosen.tokens, chosen.row_groups * ROWS

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(site, weights, "tile", x, out, m)

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(site, weights, "round_tiled", x, out, m)

    def _multiply(self, site: Site, weights: Weights, entry: str, x: Any, out: Any, m: int) -> None:
        assert isinstance(weights.fmt, BlockFormat)
        tiling = self.tiling(weights.fmt, m, weights.n)
        tiled = tiling.tiled(site, weights.fmt, entry, x, m, weights.k)
        tiling.gemm(site, weights, Layout(weights.fmt).chunk, weights.buffer, tiled, out, m)

    def tiling(self, fmt: WeightFormat, m: int, n: int) -> HalfTiling:
        """Return the fastest tiling, as measured on one H200 with N = 4096 and 14336.

        For few tokens, that is one tile, with rows split into parts if so few tiles would leave multiprocessors idle;
        otherwise the tiling that keeps the multiprocessors busy.
        """
        assert isinstance(fmt, BlockFormat)
        if m <= _FEW:
            of_rows = HalfTiling(max(8, 1 << (m - 1).bit_length()), k_groups=4, ctas=2 if m <= 16 else 1)
            parts = MULTIPROCESSORS // of_rows.tiles(m, n)
            if parts > 0:
                return replace(of_rows, parts=min(parts, _MOST_PARTS))
            return of_rows if m <= _FEW // 2 else HalfTiling(64, row_groups=2, k_groups=2)
        half_scales = Layout(fmt).half_scales
        large = [
            HalfTiling(256, row_groups=2, pipelined=not half_scales), HalfTiling(128, row_groups=2, pipelined=True),
            HalfTiling(128, k_groups=2, pipelined=True), HalfTiling(64, k_groups=4),
        ]  # fmt: skip
        if not half_scales:  # twice the instructions per weight, so unpack it once for more tokens
            large.append(HalfTiling(256, row_groups=2, pipelined=True, parts=2))
        return min(large, key=lambda tiling: tiling.cost(m, n))


STEP = KernelSpec(
    "f16_wgmma",
    "gemm/f16/03_wgmma.cu",
    "f16",
    None,
    "W4A16/W8A16 in halves, pipelined tensor cores, packed weights",
    Wgmma(),
    cards=Cards(exact="90a"),
    declares=IN_TENSOR_CORES,
    fastest=lambda problem: problem.on_gpu,
)
