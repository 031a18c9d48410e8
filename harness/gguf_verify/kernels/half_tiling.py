"""Tiles of [M, N] outputs, and parts of rows, for kernels/gemm/f16/03_wgmma.cu and 04_dequantized.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from .halves import ROWS, STAGE, THREADS, Layout
from .interface import Weights
from .site import MAX_GRID, Site
from .tiling import MULTIPROCESSORS

_TILE, _ADD = "pack/half_activations.cu", "gemm/add_parts.cu"
#: Shared memory available to the thread blocks of a multiprocessor, in bytes.
_SHARED = 220 * 1024
#: Partial sums that are written, read and added in one unit of `HalfTiling.cost`.
_SUMS = 70_000


@dataclass(frozen=True)
class HalfTiling:
    """Tiles of `row_groups` · 64 rows and `tokens` tokens.

    Args:
        tokens, row_groups, k_groups, ctas: the macros TOKENS, ROW_GROUPS, K_GROUPS and CTAS of the source.
        pipelined: the macro PIPELINED.
        parts: the most parts that a row is split into (split-K). Their sums are added afterwards, in ascending order.
    """

    tokens: int
    row_groups: int = 1
    k_groups: int = 1
    ctas: int = 1
    pipelined: bool = False
    parts: int = 1

    def tiles(self, m: int, n: int) -> int:
        """Return the number of tiles of [m, n] outputs."""
        return -(-n // (self.row_groups * ROWS)) * -(-m // self.tokens)

    def cost(self, m: int, n: int) -> float:
        """Estimate the time of a product, in arbitrary units.

        It counts the outputs that a multiprocessor computes one after another, the fixed cost of a tile, and the
        addition of parts.
        """
        rounds = -(-self.tiles(m, n) * self.parts // MULTIPROCESSORS)
        sums = m * n * self.parts / _SUMS if self.parts > 1 else 0.0
        return rounds * self.row_groups * (self.tokens + 64) / self.parts + sums

    def tiled(self, site: Site, fmt: WeightFormat, entry: str, x: Any, m: int, k: int) -> Any:
        """Tile the activations with the function `entry` of kernels/pack/half_activations.cu."""
        host = site.host
        stages = -(-k // (STAGE * self.k_groups)) * self.k_groups  # a whole number of slots
        eights = -(-m // self.tokens) * self.tokens // 8
        out = host.output(eights * 8 * stages * STAGE * 2, "tiled activations")
        function = site.function(entry, fmt, _TILE, {"TOKENS": str(self.tokens)})
        args = [x, out, np.int64(m), np.int64(k), np.int64(stages)]
        host.launch(function, (eights, min(-(-stages // 8), 65535), 1), (256, 1, 1), args, overlaps=True)
        return out

    def macros(self, layout: Layout, chunk: int, stages: int) -> tuple[dict[str, str], int]:
        """Return the macros of the source, and the bytes of shared memory.

        Args:
            chunk: bytes of a stage of 64 rows.
            stages: stages of a row.
        """
        slot = -(-self.k_groups * (self.tokens * 128 + self.row_groups * chunk) // 1024) * 1024
        sums = (self.k_groups - 1) * self.row_groups * ROWS * self.tokens * 4
        beside = 0 if self.parts > 1 else sums  # with parts, a thread block has one tile and needs no ring
        ring = max(2, min(8, -(-stages // self.k_groups), (_SHARED // self.ctas - beside) // slot))
        macros = {
            **layout.macros, "TOKENS": str(self.tokens), "ROW_GROUPS": str(self.row_groups),
            "K_GROUPS": str(self.k_groups), "CTAS": str(self.ctas), "SLOTS": str(ring),
            "PIPELINED": str(int(self.pipelined)), "IN_PARTS": str(int(self.parts > 1)),
        }  # fmt: skip
        return macros, max(ring * slot + beside, sums)

    def gemm(
        self, site: Site, weights: Weights, chunk: int, w: Any, x: Any, out: Any, m: int, overlaps: bool = True
    ) -> None:
        """Compute `out` from weights in chunks and activations in tiles.

        Args:
            overlaps: the weights do not come from a launch that may still be running.
        """
        assert isinstance(weights.fmt, BlockFormat)
        host, stages, groups = site.host, -(-weights.k // STAGE), self.row_groups * self.k_groups
        macros, shared = self.macros(Layout(weights.fmt), chunk, stages)
        slots = -(-stages // self.k_groups)
        parts = -(-slots // -(-slots // self.parts))  # none of them empty
        fours, tiles = -(-m * weights.n // 4), self.tiles(m, weights.n)
        sums = out if parts == 1 else host.output(16 * parts * fours, "sums of parts")
        args = [w, x, sums, np.int64(m), np.int64(weights.n), np.int64(stages)]
        threads = groups * THREADS + (THREADS if self.ctas == 1 and groups == 2 else 32)
        grid = (tiles if self.parts > 1 else min(tiles, self.ctas * MULTIPROCESSORS), parts, 1)
        function = site.function("gemm", weights.fmt, macros=macros)
        host.launch(function, grid, (threads, 1, 1), args, shared=shared, overlaps=overlaps)
        if parts > 1:
            add = host.load(site.root, _ADD, "add_parts", {})
            args = [sums, out, np.int64(parts), np.int64(m * weights.n)]
            host.launch(add, (min(-(-fours // 128), MAX_GRID), 1, 1), (128, 1, 1), args, overlaps=True)
