"""q8_1_wgmma: a pipeline of asynchronous copies and Hopper's tensor cores (`wgmma`), on packed weights."""

from __future__ import annotations

from typing import Any

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.order import ASCENDING
from ..interface import Weights
from ..packed import ROWS, Packed
from ..site import Cards, Site
from ..spec import KernelSpec
from ..tiling import Tiling, best_tiling, tilings


class Wgmma(Packed):
    """A launch that chooses the tiles that keep the GPU busy. The bits do not depend on them."""

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self.tiling(weights.fmt, m, weights.n).gemm(site, weights, "tile", x, out, m)

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self.tiling(weights.fmt, m, weights.n).gemm(site, weights, "quantize_tiled", x, out, m)

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int]:
        chosen = self.tiling(fmt, m, n)
        return chosen.tokens, chosen.groups * ROWS

    @staticmethod
    def tilings(fmt: WeightFormat) -> tuple[Tiling, ...]:
        """Return all tilings for weights of a type."""
        assert isinstance(fmt, BlockFormat)
        return tilings(fmt)

    @staticmethod
    def tiling(fmt: WeightFormat, m: int, n: int) -> Tiling:
        """Return the tiling that takes the least time."""
        assert isinstance(fmt, BlockFormat)
        return best_tiling(fmt, m, n)


STEP = KernelSpec(
    "q8_1_wgmma",
    "gemm/q8_1/07_wgmma.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, pipelined tensor cores, packed weights",
    Wgmma(),
    cards=Cards(exact="90a"),
    fastest=lambda problem: problem.on_gpu,
)
