"""How kernels/gemm/f16/03_wgmma.cu and 04_dequantized.cu after it cut [M, N] outputs in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats import BlockFormat, WeightFormat
from .halves import ROWS, STAGE, THREADS, Layout
from .interface import Weights
from .site import MAX_GRID, Site
from .tiling import MULTIPROCESSORS

_TILE = "pack/half_activations.cu"
#: Shared memory that thread blocks of a multiprocessor use, in bytes.
_SHARED = 220 * 1024


@dataclass(frozen=True)
class HalfTiling:
    """Tiles of `row_groups` · 64 rows and `tokens` tokens.

    Args:
        tokens, row_groups, k_groups, ctas: the source's TOKENS, ROW_GROUPS, K_GROUPS and CTAS.
        pipelined: the source's PIPELINED.
    """

    tokens: int
    row_groups: int = 1
    k_groups: int = 1
    ctas: int = 1
    pipelined: bool = False

    def tiles(self, m: int, n: int) -> int:
        """Tiles of [m, n] outputs."""
        return -(-n // (self.row_groups * ROWS)) * -(-m // self.tokens)

    def cost(self, m: int, n: int) -> int:
        """A measure of the time: outputs that a multiprocessor computes one after the other, and what a tile takes
        beside them."""
        return -(-self.tiles(m, n) // MULTIPROCESSORS) * self.row_groups * (self.tokens + 64)

    def tiled(self, site: Site, fmt: WeightFormat, entry: str, x: Any, m: int, k: int) -> Any:
        """Activations in tiles, by the function `entry` of kernels/pack/half_activations.cu."""
        host = site.host
        stages = -(-k // (STAGE * self.k_groups)) * self.k_groups  # of whole slots
        pieces = -(-m // self.tokens) * self.tokens * stages * 4
        out = host.output(pieces * 32, "tiled activations")
        function = site.function(entry, fmt, _TILE, {"TOKENS": str(self.tokens)})
        args = [x, out, np.int64(m), np.int64(k), np.int64(stages)]
        host.launch(function, (min(-(-pieces // 256), MAX_GRID), 1, 1), (256, 1, 1), args)
        return out

    def macros(self, layout: Layout, chunk: int, stages: int) -> tuple[dict[str, str], int]:
        """The source's macros, and bytes of shared memory.

        Args:
            chunk: bytes of a stage of 64 rows.
            stages: those of a row.
        """
        slot = -(-self.k_groups * (self.tokens * 128 + self.row_groups * chunk) // 1024) * 1024
        parts = (self.k_groups - 1) * self.row_groups * ROWS * self.tokens * 4
        ring = max(2, min(8, -(-stages // self.k_groups), (_SHARED // self.ctas - parts) // slot))
        macros = {
            **layout.macros, "TOKENS": str(self.tokens), "ROW_GROUPS": str(self.row_groups),
            "K_GROUPS": str(self.k_groups), "CTAS": str(self.ctas), "SLOTS": str(ring),
            "PIPELINED": str(int(self.pipelined)),
        }  # fmt: skip
        return macros, ring * slot + parts

    def gemm(self, site: Site, weights: Weights, chunk: int, w: Any, x: Any, out: Any, m: int) -> None:
        """Into `out` from weights in chunks and activations in tiles."""
        assert isinstance(weights.fmt, BlockFormat)
        stages, groups = -(-weights.k // STAGE), self.row_groups * self.k_groups
        macros, shared = self.macros(Layout(weights.fmt), chunk, stages)
        args = [w, x, out, np.int64(m), np.int64(weights.n), np.int64(stages)]
        threads = groups * THREADS + (THREADS if self.ctas == 1 and groups == 2 else 32)
        grid = (min(self.tiles(m, weights.n), self.ctas * MULTIPROCESSORS), 1, 1)
        function = site.function("gemm", weights.fmt, macros=macros)
        site.host.launch(function, grid, (threads, 1, 1), args, shared=shared)


__all__ = ["HalfTiling"]
