"""q8_1_gemv: for few tokens, where a product takes the time of reading the weights, which are packed and read once."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.order import ASCENDING
from ..interface import Weights
from ..packed import LEGACY, QK, ROWS, STRIPS, Layout, Packed
from ..site import MAX_GRID, Site
from ..spec import FEW, KernelSpec, Problem
from ..tiling import WGMMA, cluster, several_strips, small_products_of_five_bits, whole_clusters

#: Bytes of shared memory that a block may use beside its barriers, by compute capability; for others, the value that
#: every GPU from sm_80 on offers.
_SHARED, _SHARED_ELSEWHERE = {"75": 62 << 10, "90": 225 << 10}, 97 << 10
#: Bytes of activations that a block holds; more are processed in parts.
_X_BYTES = 40 << 10
#: Thread blocks that quantize tokens together: see `tiling.cluster`.
_CLUSTERS = {1: (1, 1), 2: (1, 2), 4: (2, 4)}


class Gemv(Packed):
    """A launch that reads the weights once for up to 16 tokens at a time.

    Each launch overlaps the previous one and meanwhile reads the weights, which were packed and checked before.
    """

    layout: ClassVar[str] = STRIPS
    knows_older: ClassVar[bool] = True

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        if m > 4:
            self._some("tile", site, weights, x, out, m)
        else:
            self._few("gemm", site, weights, x, out, m, self.shape(site.host.sm, weights, m))

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        if m > 4:
            self._some("tile_values", site, weights, x, out, m)
            return
        shape = self.shape(site.host.sm, weights, m)
        if shape["X_BLOCKS"] * QK < weights.k:
            super().multiply_values(site, weights, x, out, m)
        else:
            self._few("gemm_values", site, weights, x, out, m, shape)

    @classmethod
    def shape(cls, sm: str | None, weights: Weights, m: int) -> dict[str, int]:
        """Return the macros for up to four tokens.

        It uses eight warps, or four if shared memory then holds all of x; otherwise x is processed in parts of
        X_BLOCKS. It uses sixteen if a thread block has several strips, so that the terms of more than one token are
        most of the work, and if there is room (one H200, N = 14336, 4 tokens of Q4_0: 14.8 instead of 17.6 µs; N =
        4096, 2 tokens: 6.3 instead of 6.2 µs).
        """
        tokens, blocks = next(t for t in (1, 2, 4) if t >= m), weights.k // QK
        found = []
        several = tokens > 1 and several_strips(weights.n)
        for warps in (16, 8, 4) if several else (8, 4):
            shape = {"TOKENS": tokens, "WARPS": warps, "STAGES": 2, "X_BLOCKS": 0}
            shape |= {"CLUSTER": cluster(_CLUSTERS, sm, tokens, weights.n)}
            room = _SHARED.get(sm or "90", _SHARED_ELSEWHERE) - cls.shared(weights.fmt, shape)
            a_round = 4 * warps
            most = min(_X_BYTES, room) // (40 * tokens) // a_round * a_round
            found.append(shape | {"X_BLOCKS": min(most, -(-blocks // a_round) * a_round)})
        whole = [shape for shape in found if shape["X_BLOCKS"] >= blocks]
        return next(shape for shape in whole + found if shape["X_BLOCKS"] > 0)

    @staticmethod
    def shared(fmt: WeightFormat, shape: dict[str, int]) -> int:
        """Return the bytes of shared memory: the ring of weights, the terms (with those of minima), the activations."""
        assert isinstance(fmt, BlockFormat)
        a_round, a_term = 4 * shape["WARPS"], 12 if "m" in (fmt.dtype.names or ()) else 8
        terms = shape["TOKENS"] * a_round * 36 * a_term
        return shape["STAGES"] * a_round * 32 * fmt.block_bytes + terms + shape["TOKENS"] * shape["X_BLOCKS"] * 40

    def _few(self, entry: str, site: Site, weights: Weights, x: Any, out: Any, m: int, shape: dict[str, int]) -> None:
        """Compute up to four tokens in one launch."""
        host, shared = site.host, self.shared(weights.fmt, shape)
        threads = (shape["WARPS"] + shape["TOKENS"]) * 32
        assert isinstance(weights.fmt, BlockFormat)
        macros = {**Layout.of(weights.fmt).macros, **{k: str(v) for k, v in shape.items()}}
        gemm = site.function(entry, weights.fmt, macros=macros)
        strips = -(-weights.n // ROWS) * 4
        grid = (whole_clusters(shape["CLUSTER"], strips, host.resident(gemm, threads, shared)), 1, 1)
        args = [weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k // QK)]
        host.launch(gemm, grid, (threads, 1, 1), args, shared=shared, overlaps=True)

    def _some(self, entry: str, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        """Compute tiles of 8 or 16 tokens: one launch tiles the activations, one multiplies."""
        fmt, host, blocks = weights.fmt, site.host, weights.k // QK
        assert isinstance(fmt, BlockFormat)
        tokens, strips = 8 if m <= 8 else 16, -(-weights.n // ROWS) * 4
        stage = 8 * (32 * fmt.block_bytes + tokens * 40)
        stages = (54 << 10) // stage
        macros = {**Layout.of(fmt).macros, "TOKENS": str(tokens), "STAGES": str(stages)}
        tiles = -(-m // tokens)
        tiled = host.output(tiles * blocks * tokens * 40, "tiled activations")
        grid = (min(-(-tiles * tokens // 8 * blocks // 8), MAX_GRID), 1, 1)
        tile = site.function(entry, fmt, macros=macros)
        host.launch(tile, grid, (256, 1, 1), [x, tiled, np.int64(m), np.int64(blocks)], overlaps=True)
        gemm = site.function("gemm", fmt, macros=macros)
        args = [weights.buffer, tiled, out, np.int64(m), np.int64(weights.n), np.int64(blocks)]
        # if they do not fill the GPU, blocks of two launches share some multiprocessors and leave others empty
        crowded = strips * tiles * 2 > host.resident(gemm, 128, stages * stage)
        host.launch(gemm, (strips * tiles, 1, 1), (128, 1, 1), args, shared=stages * stage, overlaps=crowded)


def _fastest(problem: Problem) -> bool:
    fmt, m, n = problem.fmt, problem.m, problem.n
    if not problem.on_gpu or not isinstance(fmt, BlockFormat):
        return False
    return m <= FEW or (problem.sm == WGMMA and small_products_of_five_bits(fmt, m, n))


STEP = KernelSpec(
    "q8_1_gemv",
    "gemm/q8_1/08_gemv.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, few tokens, packed weights read once",
    Gemv(),
    formats=LEGACY,
    fastest=_fastest,
)
