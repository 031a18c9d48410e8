"""q8_1_decode: few tokens and weights of any type, which are read once; each lane has one row."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.order import ASCENDING
from ..interface import Weights
from ..interleaved import ROWS, Interleaved
from ..packed import LEGACY
from ..site import Site
from ..spec import FEW, KernelSpec, Problem
from ..tiling import DECODED, WGMMA, cluster, several_strips, whole_clusters

#: KiB of shared memory that the blocks of a multiprocessor, and one block, may use, by compute capability; for others,
#: the values that every GPU from sm_80 on offers (CUDA Programming Guide, compute capabilities). A block takes 1 KiB
#: more than it requests, and its barriers and batons take less than 2 KiB.
_SHARED, _SHARED_ELSEWHERE = {"75": (64, 64), "90": (228, 227)}, (100, 99)
_BESIDE = 3 << 10
#: Values of K that a warp processes at a time, the most stages of its ring, and the most sums of a lane: twice as many
#: would spill registers; half as many leave registers for two blocks.
_UNIT, _MOST_STAGES, _MOST_SUMS = 256, 4, 64
#: A build for rows of this length also serves shorter ones.
_COMMON = 4096
#: Thread blocks that quantize tokens together: see `tiling.cluster`.
_CLUSTERS = {1: (1, 1), 2: (1, 2), 4: (2, 4), 8: (2, 4)}
#: Bytes of activations that a block holds if they do not fit as a whole; they are then processed in parts.
_X_BYTES = 40 << 10


class Decode(Interleaved):
    """A launch that reads the weights once for up to 8 tokens at a time.

    Each launch overlaps the previous one and meanwhile reads the weights, which were packed and checked before.
    """

    knows_older: ClassVar[bool] = True

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._launch("gemm", site, weights, x, out, m, self.shape(site.host.sm, weights, m))

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        shape = self.shape(site.host.sm, weights, m)
        if shape["X_SLICES"] * 32 < weights.k:
            super().multiply_values(site, weights, x, out, m)
        else:
            self._launch("gemm_values", site, weights, x, out, m, shape)

    @classmethod
    def shape(cls, sm: str | None, weights: Weights, m: int) -> dict[str, int]:
        """Return the macros of the source.

        It uses two blocks per multiprocessor if registers and shared memory suffice, otherwise one, or one of fewer
        warps; x is processed in parts of X_SLICES if all of it does not fit beside two stages.
        """
        fmt, slices = weights.fmt, weights.k // 32
        assert isinstance(fmt, BlockFormat)
        tokens = next(t for t in (1, 2, 4, 8) if t >= min(m, FEW))
        unit = _UNIT
        while tokens * cls._groups(fmt, unit) > _MOST_SUMS and unit > fmt.block_size:
            unit //= 2
        of_all, of_one = _SHARED.get(sm or "90", _SHARED_ELSEWHERE)
        same = {"GRID_ENTRIES": sum(t.grid for t in fmt.tables)}
        same |= {"CLUSTER": cluster(_CLUSTERS, sm, tokens, weights.n)}
        found = []
        for ctas, warps in ((2, 8), (1, 8), (1, 4), (1, 2)):
            if ctas == 2 and tokens * cls._groups(fmt, unit) > _MOST_SUMS // 2:
                continue
            a_round = warps * unit // 32
            shape = {"TOKENS": tokens, "WARPS": warps, "CTAS": ctas, "UNIT": unit, "STAGES": 0, "X_SLICES": 0} | same
            room = (min(of_one, of_all // ctas) << 10) - _BESIDE
            room -= cls.shared(fmt, shape)
            stage = cls.shared(fmt, shape | {"STAGES": 1, "GRID_ENTRIES": 0})
            a_slice = cls.shared(fmt, shape | {"X_SLICES": 1, "GRID_ENTRIES": 0})
            whole = -(-max(slices, _COMMON // 32) // a_round) * a_round
            for x_slices in (whole, min(whole, _X_BYTES // a_slice // a_round * a_round)):
                stages = min(_MOST_STAGES, (room - x_slices * a_slice) // stage)
                if x_slices > 0 and stages > 0:
                    found.append(shape | {"STAGES": stages, "X_SLICES": x_slices})
        # the first of the best ones
        return max(found, key=lambda s: (s["STAGES"] > 1, s["WARPS"] > 2, s["X_SLICES"] >= slices))

    @staticmethod
    def _groups(fmt: BlockFormat, unit: int) -> int:
        """Return the groups of values under one scale in a unit: registers hold that many sums of each token."""
        return unit // (16 if fmt.group == 16 else 32)

    @staticmethod
    def shared(fmt: WeightFormat, shape: dict[str, int]) -> int:
        """Return the bytes of shared memory: the rings of weights; scales, sums of codes and codes of x; the grid."""
        assert isinstance(fmt, BlockFormat)
        ring = shape["WARPS"] * shape["STAGES"] * ROWS * (shape["UNIT"] // fmt.block_size) * fmt.block_bytes
        return ring + shape["TOKENS"] * shape["X_SLICES"] * (32 + 8 + 8) + 4 * shape["GRID_ENTRIES"]

    def _launch(
        self, entry: str, site: Site, weights: Weights, x: Any, out: Any, m: int, shape: dict[str, int]
    ) -> None:
        fmt, host = weights.fmt, site.host
        assert isinstance(fmt, BlockFormat)
        threads, shared = shape["WARPS"] * 32, self.shared(fmt, shape)
        gemm = site.function(entry, fmt, macros={k: str(v) for k, v in shape.items()})
        tiles = -(-m // shape["TOKENS"])
        resident = host.resident(gemm, threads, shared) // tiles
        of_tile = whole_clusters(shape["CLUSTER"], -(-weights.n // ROWS), resident)
        args = [
            weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k // fmt.block_size),
            np.int64(of_tile),
        ]  # fmt: skip
        host.launch(gemm, (tiles * of_tile, 1, 1), (threads, 1, 1), args, shared=shared, overlaps=True)


def _fastest(problem: Problem) -> bool:
    """Claim few tokens of types that q8_1_gemv does not cover; fewer where `wgmma` has small tiles.

    With `wgmma`, claim also one or two tokens and four-bit codes, with several strips per thread block (one H100, N =
    14336, K = 4096, this kernel and q8_1_gemv, one and two tokens: Q4_0 12.2 and 13.1 µs, 13.4 and 13.4; Q4_1 13.3 and
    14.4, 14.5 and 15.0; Q5_0 17.1 and 15.6, 17.8 and 15.7; N = 4096, Q4_0: 5.5 and 5.0, 6.4 and 6.3).
    """
    fmt, m, n = problem.fmt, problem.m, problem.n
    if not problem.on_gpu or not isinstance(fmt, BlockFormat):
        return False
    if fmt.name in LEGACY:
        return problem.sm == WGMMA and fmt.bits == 4 and m <= 2 and several_strips(n)
    if problem.sm != WGMMA:
        return m <= FEW
    return m <= DECODED


STEP = KernelSpec(
    "q8_1_decode",
    "gemm/q8_1/10_decode.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, few tokens, any type, weights read once",
    Decode(),
    fastest=_fastest,
)
