"""q8_1_columns: three to eight tokens are the columns of the tensor cores' product; packed weights are read once."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.order import ASCENDING
from ..interface import Weights
from ..packed import LEGACY, QK, ROWS, STRIPS, Layout, Packed
from ..site import Cards, Site
from ..spec import FEW, KernelSpec, Problem
from ..tiling import WGMMA, cluster, several_strips, whole_clusters

#: Blocks of 32 values in a unit, and the most stages of a ring.
_BLOCKS, _MOST_STAGES = 8, 3
#: Bytes of shared memory of a multiprocessor by compute capability (CUDA Programming Guide); for others, the least of
#: any GPU from sm_90 on; and the bytes that a thread block reserves or leaves unused beyond its own request.
_SHARED, _ELSEWHERE, _BESIDE = {"90": 228 << 10}, 100 << 10, 3 << 10
_BATONS = 1024
#: A build for rows of this many blocks also serves shorter ones.
_COMMON = 128
#: Thread blocks that quantize tokens together: see `tiling.cluster`.
_CLUSTERS = {2: (1, 1), 4: (2, 4), 8: (8, 8)}


class Columns(Packed):
    """A launch that reads the weights once for up to 8 tokens at a time.

    Each launch overlaps the previous one and meanwhile reads the weights, which were packed and checked before.
    """

    layout: ClassVar[str] = STRIPS

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._launch("gemm", site, weights, x, out, m, self.shape(site.host.sm, weights, m))

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        shape = self.shape(site.host.sm, weights, m)
        if shape["X_BLOCKS"] * QK < weights.k:
            super().multiply_values(site, weights, x, out, m)
        else:
            self._launch("gemm_values", site, weights, x, out, m, shape)

    @classmethod
    def shape(cls, sm: str | None, weights: Weights, m: int) -> dict[str, int]:
        """Return the macros of the source.

        Types with minima use two thread blocks of eight warps per multiprocessor, others one of sixteen. Fewer warps,
        and x in parts of X_BLOCKS, are used if shared memory has no room for two stages and all of x.
        """
        fmt, blocks = weights.fmt, weights.k // QK
        assert isinstance(fmt, BlockFormat)
        tokens = next(t for t in (2, 4, 8) if t >= min(m, FEW))
        found = []
        for ctas, warps in (cls.usual(fmt), (1, 8), (1, 4)):
            a_round = warps // 2 * _BLOCKS
            shape = {"TOKENS": tokens, "BLOCKS": _BLOCKS, "WARPS": warps, "CTAS": ctas, "STAGES": 0, "X_BLOCKS": 0}
            shape |= {"CLUSTER": cluster(_CLUSTERS, sm, tokens, weights.n)}
            room = _SHARED.get(sm or "90", _ELSEWHERE) // ctas - _BESIDE - cls.shared(fmt, shape)
            stage = cls.shared(fmt, shape | {"STAGES": 1}) - _BATONS
            whole = -(-max(blocks, _COMMON) // a_round) * a_round
            for least in (2, 1):  # stages in addition to a part of x
                part = (room - least * stage) // (40 * tokens) // a_round * a_round
                if part > 0:
                    x_blocks = min(whole, part)
                    stages = min(_MOST_STAGES, (room - 40 * tokens * x_blocks) // stage)
                    found.append(shape | {"STAGES": stages, "X_BLOCKS": x_blocks})
        # the first of the best ones
        return max(found, key=lambda s: (s["STAGES"] > 1 and s["X_BLOCKS"] >= blocks, s["STAGES"] > 1))

    @staticmethod
    def usual(fmt: BlockFormat) -> tuple[int, int]:
        """Return the thread blocks per multiprocessor, and the warps of each, if there is room."""
        return (2, 8) if fmt.has_min else (1, 16)

    @staticmethod
    def shared(fmt: WeightFormat, shape: dict[str, int]) -> int:
        """Return the bytes of shared memory: the rings of weights, the batons, the activations with their scales."""
        assert isinstance(fmt, BlockFormat)
        ring = shape["WARPS"] // 2 * shape["STAGES"] * shape["BLOCKS"] * 32 * fmt.block_bytes
        return ring + _BATONS + shape["TOKENS"] * shape["X_BLOCKS"] * 40

    def _launch(
        self, entry: str, site: Site, weights: Weights, x: Any, out: Any, m: int, shape: dict[str, int]
    ) -> None:
        fmt, host = weights.fmt, site.host
        assert isinstance(fmt, BlockFormat)
        threads, shared = shape["WARPS"] * 32, self.shared(fmt, shape)
        macros = {**Layout.of(fmt).macros, **{k: str(v) for k, v in shape.items()}}
        gemm = site.function(entry, fmt, macros=macros)
        tiles, strips = -(-m // shape["TOKENS"]), -(-weights.n // ROWS) * 4
        of_tile = whole_clusters(shape["CLUSTER"], strips, host.resident(gemm, threads, shared) // tiles)
        args = [
            weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k // QK), np.int64(of_tile),
        ]  # fmt: skip
        host.launch(gemm, (tiles * of_tile, 1, 1), (threads, 1, 1), args, shared=shared, overlaps=True)


def _fastest(problem: Problem) -> bool:
    """Claim the products for which it was faster than q8_1_gemv on one H100.

    Times are in µs, of this kernel and of q8_1_gemv, with K = 4096 and N = 4096 and 14336.

    - More than four tokens (eight: Q4_0 8.7 and 11.9, 16.4 and 20.1; Q4_1 10.0 and 13.0, 17.8 and 22.8; Q8_0 10.8 and
      12.8, 24.1 and 27.8).
    - Four, of types with minima (Q4_1 8.6 and 9.1, 16.3 and 18.5; Q5_1 9.2 and 9.8, 18.4 and 20.7), and three with
      several strips per thread block (Q4_1 10.8 and 8.6, 17.3 and 18.4).
    - Three and four with several strips where codes are bytes, since q8_1_gemv has no room for 16 warps then (Q8_0,
      four tokens: 10.9 and 10.0, 22.9 and 24.8; Q4_0: 8.5 and 8.2, 16.1 and 15.4).
    """
    fmt, m, n, k = problem.fmt, problem.m, problem.n, problem.k
    if problem.sm != WGMMA or not 2 < m <= FEW or not isinstance(fmt, BlockFormat):
        return False
    several, bytes_ = several_strips(n), Layout.of(fmt).code_bits == 8
    if not (m > 4 or (several and (fmt.has_min or bytes_)) or (m == 4 and fmt.has_min)):
        return False
    shape = Columns.shape(str(problem.sm), Weights(fmt, n, k, None), m)
    as_measured = (shape["CTAS"], shape["WARPS"]) == Columns.usual(fmt) and shape["STAGES"] > 1
    return as_measured and shape["X_BLOCKS"] * QK >= k


STEP = KernelSpec(
    "q8_1_columns",
    "gemm/q8_1/11_columns.cu",
    "q8_1",
    ASCENDING,
    "W4A8/W8A8, tokens as columns of tensor cores",
    Columns(),
    formats=LEGACY,
    cards=Cards(90),
    fastest=_fastest,
)
