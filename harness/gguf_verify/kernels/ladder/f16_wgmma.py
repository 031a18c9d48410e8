"""f16_wgmma: weights become halves in registers, and Hopper's tensor cores (`wgmma`) keep the sums."""

from __future__ import annotations

from typing import Any, ClassVar

from ...formats import BlockFormat, WeightFormat
from ...semantics import IN_TENSOR_CORES
from ..half_tiling import HalfTiling
from ..halves import ROWS, Bytes, Layout, packed_halves
from ..interface import Weights
from ..launch import Launch
from ..site import Cards, Site
from ..spec import KernelSpec
from ..tiling import MULTIPROCESSORS


class Wgmma(Launch):
    """Takes the tiles that keep the card busy."""

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
        """The fastest of those that were measured on one H200, with N = 4096 and 14336."""
        assert isinstance(fmt, BlockFormat)
        layout = Layout(fmt)
        if m <= 16:
            return HalfTiling(8 if m <= 8 else 16, k_groups=4, ctas=2)
        if m <= 32:
            return HalfTiling(32, k_groups=4)
        wide = n > MULTIPROCESSORS * ROWS  # enough tiles of 128 rows
        if m <= 64:
            if wide:
                return HalfTiling(64, row_groups=2, k_groups=2)
            return HalfTiling(32 if layout.bits == 4 else 64, k_groups=4)
        large = [HalfTiling(t, row_groups=2, pipelined=not layout.half_scales) for t in (256, 128)]
        return min(*large, HalfTiling(64, k_groups=4), key=lambda tiling: tiling.cost(m, n))


STEP = KernelSpec(
    "f16_wgmma", "gemm/f16/03_wgmma.cu", "f16", None, "W4A16/W8A16 in halves, pipelined tensor cores, packed weights",
    Wgmma(), cards=Cards(exact="90a"), declares=IN_TENSOR_CORES, fastest=lambda problem: problem.on_gpu,
)  # fmt: skip
