"""How kernels/gemm/q8_1/07_wgmma.cu, and 09_split_k.cu after it, cut [M, N] outputs in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats import BlockFormat
from .interface import Weights
from .packed import ROWS, packed_shape
from .site import MAX_GRID, Site

_TILE = "pack/activations.cu"
#: Of an H100 (SXM) or an H200, the cards that have `wgmma`.
MULTIPROCESSORS = 132
#: Macros for functions of 09 that do not depend on the tiling.
ANY_TILING = {"TOKENS": "16", "WARPGROUPS": "1", "CTAS": "1", "STAGES": "2"}


@dataclass(frozen=True)
class Tiling:
    """Tiles of `groups` · 128 rows and `tokens` tokens.

    Args:
        tokens, groups, ctas: the source's TOKENS, WARPGROUPS and CTAS, the blocks that share a multiprocessor.
    """

    tokens: int
    groups: int = 2
    ctas: int = 1

    def tiles(self, m: int, n: int) -> int:
        """Tiles of [m, n] outputs."""
        return -(-n // (self.groups * ROWS)) * -(-m // self.tokens)

    def rounds(self, m: int, n: int, parts: int = 1) -> int:
        """A measure of the time that they take: outputs that a multiprocessor computes one after the other."""
        return -(-self.tiles(m, n) * parts // MULTIPROCESSORS) * self.tokens * self.groups

    def gemm(self, site: Site, weights: Weights, entry: str, x: Any, out: Any, m: int, split: int = 0) -> None:
        """Into `out` from activations that the function `entry` of kernels/pack/activations.cu tiles.

        Args:
            split: values of a part of a row; the parts' sums then go into `out` one after the other. 0: a row is one
                part.
        """
        host = site.host
        assert isinstance(weights.fmt, BlockFormat)
        _, padded, chunk = packed_shape(weights.fmt, weights.n, weights.k)
        token_tiles, stages = -(-m // self.tokens), padded // 2

        tokens = {"TOKENS": str(self.tokens)}
        tiled = host.output(token_tiles * stages * self.tokens * 144, "tiled activations")
        args = [x, tiled, np.int64(m), np.int64(weights.k // 32), np.int64(stages)]
        grid = (min(token_tiles * self.tokens // 4, MAX_GRID), min(-(-stages // 8), 65535), 1)
        host.launch(site.function(entry, weights.fmt, _TILE, tokens), grid, (256, 1, 1), args)

        weights_at = -(-self.tokens * 144 // 128) * 128
        slot = -(-(weights_at + self.groups * 2 * chunk) // 1024) * 1024
        ring = min(8, 200 * 1024 // self.ctas // slot)
        macros = {
            **tokens, "WARPGROUPS": str(self.groups), "CTAS": str(self.ctas), "STAGES": str(ring),
            "PART_STAGES": str(split // 64),
        }  # fmt: skip
        args = [weights.buffer, tiled, out, np.int64(m), np.int64(weights.n), np.int64(stages)]
        grid = (self.tiles(m, weights.n), -(-stages * 64 // split) if split else 1, 1)
        block = (self.groups * 128 + (128 if self.ctas == 1 else 32), 1, 1)
        host.launch(site.function("gemm", weights.fmt, macros=macros), grid, block, args, shared=ring * slot)


__all__ = ["ANY_TILING", "MULTIPROCESSORS", "Tiling"]
