"""f16_dequantized: weights become halves in memory once, and both operands of `wgmma` are in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.declared import IN_TENSOR_CORES
from ..half_tiling import HalfTiling
from ..halves import ROWS, THREADS, Layout
from ..interface import Weights
from ..site import MAX_GRID, Cards, Site
from ..spec import KernelSpec
from .f16_wgmma import Wgmma

_TILING = HalfTiling(256, row_groups=2)
#: Bytes of 64 rows by 64 halves.
_CHUNK = 64 * 64 * 2


class Dequantized(Wgmma):
    """A launch that dequantizes the packed weights into scratch memory for each product."""

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int]:
        return _TILING.tokens, _TILING.row_groups * ROWS

    def _multiply(self, site: Site, weights: Weights, entry: str, x: Any, out: Any, m: int) -> None:
        assert isinstance(weights.fmt, BlockFormat)
        host, layout = site.host, Layout(weights.fmt)
        tiles, stages = layout.shape(weights.n, weights.k)
        w = host.output(tiles * stages * _CHUNK, "dequantized weights")
        macros, _ = _TILING.macros(layout, _CHUNK, stages)
        function = site.function("dequantize", weights.fmt, macros=macros)
        args = [weights.buffer, w, np.int64(tiles * stages)]
        host.launch(function, (min(tiles * stages, MAX_GRID), 1, 1), (THREADS, 1, 1), args)
        tiled = _TILING.tiled(site, weights.fmt, entry, x, m, weights.k)
        _TILING.gemm(site, weights, _CHUNK, w, tiled, out, m, overlaps=False)


STEP = KernelSpec(
    "f16_dequantized",
    "gemm/f16/04_dequantized.cu",
    "f16",
    None,
    "W4A16/W8A16, dequantized to halves in memory, pipelined tensor cores",
    Dequantized(),
    cards=Cards(exact="90a"),
    declares=IN_TENSOR_CORES,
)
