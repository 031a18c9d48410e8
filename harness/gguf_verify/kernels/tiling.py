"""Tiles of [M, N] outputs for kernels/gemm/q8_1/07_wgmma.cu and 09_split_k.cu, and clusters of thread blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.block import BlockFormat
from .interface import Weights
from .packed import ROWS, Layout, packed_shape
from .site import MAX_GRID, Site

_TILE = "pack/activations.cu"
#: The first compute capability with `wgmma`, and the multiprocessors of an H100 (SXM) or an H200.
WGMMA, MULTIPROCESSORS = 90, 132
#: The most tokens for which q8_1_decode is faster than tiles of 16 tokens (one H100, N = 14336, K = 4096: Q4_K 17.5 and
#: 22.6 µs with 4 tokens, 31.6 and 23.1 with 8; Q2_K 24.3 and 28.0, 44.7 and 28.5).
DECODED = 4
#: The cost of a tile: a part that does not depend on the type, one for each float operation of a token and slice, and
#: one for codes that are not four bits wide; for tiles of 64 or more tokens, and for smaller ones, since a small tile
#: unpacks the same weights for half the tokens. Units are those of `_COSTS`, about 0.47 µs. One H200, N = 14336, K =
#: 4096, tiles of 64 tokens (M = 128) and of 32 (M = 64): Q4_0 60 and 43 µs, Q8_0 67 and 45, MXFP4 67 and 44, Q4_1 75
#: and 49, Q4_K 77 and 50, Q5_K 81 and 53, Q6_K 89 and 55, Q2_K 109 and 64.
_LARGE_PACE, _SMALL_PACE = (0.56, 0.22, 0.1), (0.76, 0.133, 0.06)
#: The first compute capability with clusters.
_FIRST_CARD = 90
#: Macros for functions of 09 that do not depend on the tiling.
ANY_TILING = {"TOKENS": "16", "WARPGROUPS": "1", "CTAS": "1", "STAGES": "2"}

#: Time of a tile by its tokens: on a busy multiprocessor, and alone on one. 128 units are the time of a tile of 64
#: tokens (and 256 rows of 4096 values), which was 54 µs for Q4_0 and 81 µs for Q6_K, on one H200.
_COSTS = {16: (30, 48), 32: (42, 58), 64: (128, 128), 128: (220, 220)}
#: The number of tiles of 32 tokens and 128 rows that are an eighth of what a GPU holds.
_FEW_TILES = 16


@dataclass(frozen=True)
class Tiling:
    """Tiles of `groups` · 128 rows and `tokens` tokens.

    Args:
        tokens, groups, ctas: the macros TOKENS, WARPGROUPS and CTAS of the source; the last is the number of blocks
            that share a multiprocessor.
    """

    tokens: int
    groups: int = 2
    ctas: int = 1

    def tiles(self, m: int, n: int) -> int:
        """Return the number of tiles of [m, n] outputs."""
        return -(-n // (self.groups * ROWS)) * -(-m // self.tokens)

    def cost(self, m: int, n: int, parts: int = 1) -> int:
        """Estimate the time of the tiles.

        Each row is split into `parts` parts, each as long as a whole row is with one part.
        """
        full, alone = _COSTS[self.tokens]
        return max(alone, full * -(-self.tiles(m, n) * parts // MULTIPROCESSORS))

    def gemm(self, site: Site, weights: Weights, entry: str, x: Any, out: Any, m: int, split: int = 0) -> None:
        """Compute `out` from activations that the function `entry` of kernels/pack/activations.cu tiles.

        Args:
            split: values of a part of a row; the parts' sums then go to `out` one after another. 0: a row is one part.
        """
        host = site.host
        assert isinstance(weights.fmt, BlockFormat)
        _, padded, _ = packed_shape(weights.fmt, weights.n, weights.k)
        token_tiles, stages = -(-m // self.tokens), padded // 2
        layout = Layout.of(weights.fmt)
        token_bytes = 2 * layout.token_bytes(weights.fmt)

        tokens = {**layout.macros, "TOKENS": str(self.tokens)}
        tiled = host.output(token_tiles * stages * self.tokens * token_bytes, "tiled activations")
        args = [x, tiled, np.int64(m), np.int64(weights.k // 32), np.int64(stages)]
        grid = (min(token_tiles * self.tokens // 4, MAX_GRID), min(-(-stages // 8), 65535), 1)
        tile = site.function(entry, weights.fmt, _TILE, tokens)
        # without parts, blocks of two launches would share some multiprocessors and leave others empty (measured: 51 µs
        # instead of 39, 64 tokens of Q4_0, N = 14336)
        host.launch(tile, grid, (256, 1, 1), args, overlaps=bool(split))

        macros, threads, shared = self.build(weights.fmt, split // 64)
        args = [weights.buffer, tiled, out, np.int64(m), np.int64(weights.n), np.int64(stages)]
        grid = (self.tiles(m, weights.n), -(-stages * 64 // split) if split else 1, 1)
        gemm = site.function("gemm", weights.fmt, macros=macros)
        host.launch(gemm, grid, (threads, 1, 1), args, shared=shared, overlaps=bool(split))

    def build(self, fmt: BlockFormat, part_stages: int = 0) -> tuple[dict[str, str], int, int]:
        """Return the macros of a build for weights of a type, its threads, and its bytes of shared memory.

        Args:
            part_stages: stages of a part of a row; 0: a row is one part.
        """
        layout = Layout.of(fmt)
        weights_at = -(-self.tokens * 2 * layout.token_bytes(fmt) // 128) * 128
        slot = -(-(weights_at + self.groups * 2 * layout.chunk) // 1024) * 1024
        ring = min(8, 200 * 1024 // self.ctas // slot)
        macros = {
            **layout.macros, "TOKENS": str(self.tokens), "WARPGROUPS": str(self.groups), "CTAS": str(self.ctas),
            "STAGES": str(ring), "PART_STAGES": str(part_stages),
        }  # fmt: skip
        return macros, self.groups * 128 + (128 if self.ctas == 1 else 32), ring * slot


#: Tilings of one warpgroup and of two.
SMALLEST, SMALL, LARGE, LARGEST = Tiling(16, 1, 4), Tiling(32, 1, 2), Tiling(64), Tiling(128)


def tilings(fmt: BlockFormat) -> tuple[Tiling, ...]:
    """Return the tilings of whole rows.

    The largest one is included if registers hold it: for types without z and with at most one scale per 32 values.
    """
    few_registers = not fmt.offset and not fmt.has_min and fmt.group != 16
    return (SMALLEST, SMALL, LARGE, *((LARGEST,) if few_registers else ()))


def best_tiling(fmt: BlockFormat, m: int, n: int) -> Tiling:
    """Return the tiling of whole rows that takes the least time.

    Products of a few tiles leave most of a GPU idle with any tiling; they use the tiling of most large products, and so
    do the small shapes of tests.
    """
    if SMALL.tiles(m, n) < _FEW_TILES:
        return LARGE
    return min(tilings(fmt), key=lambda tiling: tiling.cost(m, n))


def several_strips(n: int) -> bool:
    """Return whether some multiprocessor has more than one strip of 32 of n rows."""
    return -(-n // ROWS) * 4 > MULTIPROCESSORS


def pace(fmt: BlockFormat, tokens: int) -> float:
    """Return the cost of a tile of that many tokens for weights of a type.

    A scale of a token and slice takes two float operations, with a minimum three, and wider codes take more
    instructions to unpack.
    """
    layout = Layout.of(fmt)
    alike, operation, wide = _SMALL_PACE if tokens < LARGE.tokens else _LARGE_PACE
    operations = layout.groups * (3 if fmt.has_min else 2)
    return alike + operation * operations + (wide if layout.code_bits > 4 else 0)


def small_products_of_five_bits(fmt: BlockFormat, m: int, n: int) -> bool:
    """Return whether 9 to 16 tokens are faster with q8_1_gemv than in parts of rows, which cost two more launches.

    This holds for five-bit codes, whose tiles take longest to unpack, with one strip per multiprocessor (one H100, 16
    tokens, N = 4096, q8_1_gemv and q8_1_split_k: Q5_0 13.2 and 14.1 µs, Q5_1 13.6 and 14.4; N = 14336: 24.7 and 24.7,
    26.7 and 25.5).
    """
    return fmt.bits == 5 and m <= SMALLEST.tokens and not several_strips(n)


def cluster(sizes: Mapping[int, tuple[int, int]], sm: str | None, tokens: int, n: int) -> int:
    """Return how many thread blocks quantize the tokens of a build together (kernels/cluster.cuh), for n rows.

    Args:
        sizes: keyed by the tokens of the build: the cluster size where each thread block has at most one strip, and the
            size otherwise.
        sm: compute capability of the GPU, or None for the CPU host.
    """
    if sm is not None and int(sm) < _FIRST_CARD:
        return 1
    return sizes[tokens][several_strips(n)]


def whole_clusters(of: int, strips: int, resident: int) -> int:
    """Return the number of thread blocks to launch, in clusters of `of` blocks that take any number of strips each.

    The number is at most what can be resident at a time, and at least one cluster.
    """
    return min(-(-strips // of), max(1, resident // of)) * of
