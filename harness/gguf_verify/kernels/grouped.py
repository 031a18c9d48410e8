"""A grouped product for mixtures of experts: each token times the matrices of its experts, for any routing.

A slot is a pair of a token and one of its experts. If there are no more slots than experts, one launch multiplies each
slot by its expert's weights (kernels/gemm/experts/decode.cu). Otherwise, the GPU sorts the slots by expert and pads
each expert's slots to whole tiles (kernels/pack/routing.cu), tiles the activations in that order
(kernels/pack/activations.cu), and kernels/gemm/q8_1/07_wgmma.cu multiplies each tile by its expert's weights and writes
every output to its slot. The host need not know the routing: it launches as many tiles as any routing of that many
slots can fill, and the surplus ones exit at once. Each output has the bits of the kernel for one matrix, whose order is
ascending k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..hosts.base import Host
from ..support.errors import UsageError
from ..support.paths import kernel_root
from .interface import Weights
from .interleaved import ROWS as STRIP
from .ladder.q8_1_decode import STEP as DECODE
from .ladder.q8_1_decode import Decode
from .ladder.q8_1_wgmma import STEP, Wgmma
from .packed import ROWS, Layout, packed_shape
from .routing import Routing, padded_slots
from .site import MAX_GRID
from .tiling import LARGE, SMALL, SMALLEST, Tiling

#: The number of experts that kernels/pack/routing.cu can count.
MOST_EXPERTS = 1024
_THREADS, _DECODE = 256, "gemm/experts/decode.cu"
#: Tilings, each with the most slots per expert for which it is used. The last tile of an expert is half empty on
#: average, so tiles are small.
_TILINGS = ((16, Tiling(16)), (64, SMALL), (256, LARGE))
#: Largest size of a packed block of 128 rows by 32 values, in bytes, for which the smallest tiles have few rows: with
#: larger blocks, the rings of four thread blocks on a multiprocessor have too few stages (8 experts for Q4_K: 149 and
#: 188 µs, 64 for Q8_0: 75 and 71).
_NARROW = ROWS * 32 * 6 // 8


@dataclass(frozen=True)
class ExpertWeights:
    """The matrices of all experts in the layout of the kernel.

    Args:
        count: number of experts.
        n: rows of each.
        packed: all matrices as one, each padded to whole tiles of rows.
        strips: the same in the layout of q8_1_decode.
    """

    count: int
    n: int
    packed: Weights
    strips: Weights


class Grouped:
    """The grouped product on a host. Raises EnvironmentFault if the host's GPU has no `wgmma`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.site = STEP.site(host, kernel_root())
        if host.sm is not None:
            STEP.cards.target_or_fault("q8_1_grouped", host.sm)

    def upload(self, fmt: BlockFormat, rows: npt.NDArray[np.uint8], count: int) -> ExpertWeights:
        """Pack the rows uint8[count·N, row bytes] of an expert tensor of a GGUF file.

        Raises UsageError if the rows are not `count` matrices of equal size; KernelFault.
        """
        if not 1 <= count <= MOST_EXPERTS or len(rows) % count:
            raise UsageError(f"{len(rows)} rows are not equal matrices of 1 to {MOST_EXPERTS} experts")
        n, k = len(rows) // count, rows.shape[1] // fmt.block_bytes * fmt.block_size
        filled = np.zeros((count, -(-n // ROWS) * ROWS, rows.shape[1]), np.uint8)
        filled[:, :n] = rows.reshape(count, n, -1)
        flat = filled.reshape(-1, rows.shape[1])
        packed, strips = (
            Weights(fmt, len(flat), k, step.launch.prepare(step.site(self.host, kernel_root()), fmt, flat))
            for step in (STEP, DECODE)
        )
        return ExpertWeights(count, n, packed, strips)

    @staticmethod
    def decodes(slots: int, count: int) -> bool:
        """Return whether slots are multiplied one by one, so that an expert's weights are read once per slot."""
        return slots <= count

    @staticmethod
    def tiling(fmt: BlockFormat, slots: int, count: int) -> Tiling:
        """Choose a tiling by the slots per expert, as if all had equally many; measured on one H200."""
        of_expert, largest = -(-slots // count), max(Wgmma.tilings(fmt), key=lambda tiling: tiling.tokens)
        found = next((tiling for most, tiling in _TILINGS if of_expert <= most), largest)
        return SMALLEST if found.tokens == SMALLEST.tokens and Layout.of(fmt).chunk <= _NARROW else found

    def multiply(
        self, weights: ExpertWeights, x: Any, ids: Any, out: Any, m: int, top_k: int, own: bool = False
    ) -> None:
        """Compute float32[m·top_k, N] into `out`, from float32[m, K] and int32[m, top_k], all of them buffers.

        Args:
            own: each slot has activations of its own, float32[m·top_k, K].

        Raises KernelFault.
        """
        self._multiply("quantize_tiled", weights, x, ids, out, m, top_k, own)

    def multiply_blocks(
        self, weights: ExpertWeights, x: Any, ids: Any, out: Any, m: int, top_k: int, own: bool = False
    ) -> None:
        """Like `multiply`, from activations that are Q8_1 blocks. Raises KernelFault."""
        self._multiply("tile", weights, x, ids, out, m, top_k, own)

    def routed(
        self, fmt: BlockFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8], routing: Routing
    ) -> npt.NDArray[np.float32]:
        """Implement `Kernel.routed` for Q8_1 blocks uint8[M, row bytes], or [M·top_k, row bytes]."""
        (m, top_k), host = routing.ids.shape, self.host
        weights = self.upload(fmt, rows, routing.experts)
        out = host.output(4 * m * top_k * weights.n)
        given, ids = host.upload(x.copy(), "activations"), host.upload(routing.ids, "ids")
        self.multiply_blocks(weights, given, ids, out, m, top_k, own=len(x) != m)
        return host.download(out).view(np.float32).reshape(m, top_k, weights.n)

    def _multiply(
        self, entry: str, weights: ExpertWeights, x: Any, ids: Any, out: Any, m: int, top_k: int, own: bool
    ) -> None:
        if self.decodes(m * top_k, weights.count):
            self._decode(entry == "quantize_tiled", weights, x, ids, out, m, top_k, own)
            return
        fmt, host, used = weights.packed.fmt, self.host, m * top_k
        assert isinstance(fmt, BlockFormat)
        tiling = self.tiling(fmt, used, weights.count)
        capacity = padded_slots(m, top_k, weights.count, tiling.tokens)
        slots, experts = host.output(4 * capacity, "slots"), host.output(4 * capacity // tiling.tokens, "experts")
        tokens = {**Layout.of(fmt).macros, "TOKENS": str(tiling.tokens), "EXPERTS": "1"}
        route = self.site.function("route", fmt, "pack/routing.cu", tokens)
        args = [ids, slots, experts, np.int64(used), np.int64(capacity)]
        host.launch(route, (weights.count, 1, 1), (_THREADS, 1, 1), args, overlaps=True)

        _, padded, _ = packed_shape(fmt, weights.packed.n, weights.packed.k)
        stages, token_bytes = padded // 2, 2 * Layout.of(fmt).token_bytes(fmt)
        tiled = host.output(capacity * stages * token_bytes, "tiled activations")
        args = [
            x, tiled, np.int64(used if own else m), np.int64(weights.packed.k // 32), np.int64(stages),
            np.int64(capacity), slots, np.int64(used), np.int64(1 if own else top_k),
        ]  # fmt: skip
        grid = (min(capacity // 4, MAX_GRID), min(-(-stages // 8), 65535), 1)
        tile = self.site.function(entry, fmt, "pack/activations.cu", tokens)
        host.launch(tile, grid, (_THREADS, 1, 1), args, overlaps=True)

        macros, threads, shared = tiling.build(fmt)
        args = [
            weights.packed.buffer, tiled, out, np.int64(capacity), np.int64(weights.n), np.int64(stages), slots,
            experts, np.int64(used),
        ]  # fmt: skip
        gemm = self.site.function("gemm", fmt, macros={**tokens, **macros})
        grid = (tiling.tiles(capacity, weights.n), 1, 1)
        host.launch(gemm, grid, (threads, 1, 1), args, shared=shared, overlaps=True)

    def _decode(
        self, values: bool, weights: ExpertWeights, x: Any, ids: Any, out: Any, m: int, top_k: int, own: bool
    ) -> None:
        of, host, slots = weights.strips, self.host, m * top_k
        site, fmt = DECODE.site(host, kernel_root()), of.fmt
        assert isinstance(fmt, BlockFormat)
        shape = Decode.shape(host.sm, of, 1) | {"CLUSTER": 1}  # each slot has its own x
        if values and shape["X_SLICES"] * 32 < of.k:
            x, values = site.quantized(x, (slots if own else m) * of.k // 32), False
        threads, shared = shape["WARPS"] * 32, Decode.shared(fmt, shape)
        macros = {name: str(value) for name, value in shape.items()}
        gemm = site.function("gemm_values" if values else "gemm", fmt, _DECODE, macros)
        of_slot = min(-(-weights.n // STRIP), max(1, host.resident(gemm, threads, shared) // slots))
        args = [
            of.buffer, x, out, ids, np.int64(weights.n), np.int64(of.k // fmt.block_size),
            np.int64(of.n // weights.count // STRIP), np.int64(1 if own else top_k), np.int64(of_slot),
        ]  # fmt: skip
        host.launch(gemm, (slots * of_slot, 1, 1), (threads, 1, 1), args, shared=shared, overlaps=True)
