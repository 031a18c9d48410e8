"""Kernels that want their operands in a layout of their own (kernels/packed.cuh): packed weights, tiled activations.

Packing is part of what is verified: what the kernel packed is taken apart again here, by the layout's description in
NumPy, and must be the file's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat
from ..support.errors import KernelFault
from .launch import MAX_GRID, Launch

if TYPE_CHECKING:
    from .shipped import ShippedKernel, Weights

Bytes = npt.NDArray[np.uint8]

#: Rows of a tile of packed weights, values of a block.
ROWS, QK = 128, 32
_PACK, _TILE = "pack/weights.cu", "pack/activations.cu"
_TILES_AT_A_TIME = 16  # taken apart, which takes many times their size
#: Of the cards that 07 runs on.
MULTIPROCESSORS = 132
_STRIPS = "packed in strips"
#: What a source that holds more than the GEMM is compiled with for the rest of it.
_ANY_TILE = {"TOKENS": "16", "WARPGROUPS": "1", "CTAS": "1", "STAGES": "2"}


def packed_shape(fmt: BlockFormat, n: int, k: int) -> tuple[int, int, int]:
    """Tiles, blocks of a row (an even number) and bytes of a chunk."""
    blocks = k // fmt.block_size
    return -(-n // ROWS), blocks + blocks % 2, ROWS * fmt.block_bytes


def unpacked(fmt: BlockFormat, packed: Bytes, n: int, k: int, strips: bool = False) -> tuple[Bytes, bool]:
    """The rows of packed weights (in `strips` or chunks), uint8[n, row bytes], and whether all beside them is zero."""
    tiles, blocks, chunk = packed_shape(fmt, n, k)
    rows = np.zeros((tiles * ROWS, blocks, fmt.block_bytes), np.uint8)
    out = fmt.view(rows)
    words = 2 if fmt.name == "Q8_0" else 1
    if strips:  # a chunk is four parts of each of its members
        parts = packed.reshape(tiles, 4, blocks, chunk // 4).transpose(0, 2, 1, 3)
        sizes = [
            512 * words,
            *({"qh": 128}.get(name, 64) for name in ("qh", "d", "m") if name in (out.dtype.names or ())),
        ]
        members = np.split(parts, np.cumsum(sizes)[:-1], axis=-1)
        chunks = np.concatenate([member.reshape(tiles, blocks, -1) for member in members], axis=-1)
    else:
        chunks = packed.reshape(tiles, blocks, chunk)
    at = ROWS * 16 * words
    # [tile, block, w, g, c, t, r, word] → [tile, t, w, r, g, block, word, c]
    codes = chunks[:, :, :at].view("<u4").reshape(tiles, blocks, 4, 8, 4, 2, 2, words)
    codes = codes.transpose(0, 5, 2, 6, 3, 1, 7, 4).reshape(tiles * ROWS, blocks, 4 * words)
    out["qs"] = np.ascontiguousarray(codes).view(np.uint8).view(out["qs"].dtype)
    if "qh" in (out.dtype.names or ()):
        high = chunks[:, :, at : at + ROWS * 4].view("<u4").reshape(tiles, blocks, 4, 8, 4)
        at += ROWS * 4
        t, r, j, i = np.indices((2, 2, 2, 4)).astype(np.uint32)
        bits = high[..., None, None, None, None] >> (8 * i + 4 * t + 2 * r + j) & 1
        # [tile, block, w, g, c, t, r, j, i] → [tile, t, w, r, g, block, j, c, i]
        bits = bits.transpose(0, 5, 2, 6, 3, 1, 7, 4, 8).reshape(tiles * ROWS, blocks, 32)
        out["qh"] = (
            np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")
            .view(out["qh"].dtype)
            .reshape(out["qh"].shape)
        )
    for name in ("d", "m"):
        if name in (out.dtype.names or ()):
            halves = chunks[:, :, at : at + ROWS * 2].view("<f2").reshape(tiles, blocks, 4, 8, 2, 2)
            at += ROWS * 2
            out[name] = halves.transpose(0, 4, 2, 5, 3, 1).reshape(tiles * ROWS, blocks)
    inside = rows[:n, : k // fmt.block_size].copy()
    rows[:n, : k // fmt.block_size] = 0
    return inside.reshape(n, -1), not rows.any()


class Packed(Launch):
    """Weights are packed once; `gemm` gets the packed ones, in chunks of 128 rows or in strips of 32."""

    layout: ClassVar[str] = "packed"

    def prepare(self, kernel: ShippedKernel, fmt: WeightFormat, rows: Bytes) -> Any:
        assert isinstance(fmt, BlockFormat)
        n, blocks = rows.shape[0], rows.shape[1] // fmt.block_bytes
        tiles, padded, chunk = packed_shape(fmt, n, blocks * fmt.block_size)
        out = kernel.host.output(tiles * padded * chunk)
        grid = (min(tiles * padded, MAX_GRID), 1, 1)
        args = [kernel.host.upload(rows), out, np.int64(n), np.int64(blocks), np.int64(padded)]
        strips = self.layout == _STRIPS
        kernel.host.launch(kernel.compiled("pack", fmt, _PACK, {"STRIPS": str(int(strips))}), grid, (ROWS, 1, 1), args)
        packed = kernel.host.download(out).reshape(tiles, -1)
        for first in range(0, tiles, _TILES_AT_A_TIME):
            some = rows.reshape(n, -1)[first * ROWS : (first + _TILES_AT_A_TIME) * ROWS]
            of_some = packed[first : first + _TILES_AT_A_TIME]
            again, clean = unpacked(fmt, of_some, len(some), blocks * fmt.block_size, strips)
            if not clean or not np.array_equal(again, some):
                raise KernelFault("the packed weights do not hold the file's bytes")
        return out


@dataclass(frozen=True)
class Tiling:
    """How kernels/gemm/q8_1/07_wgmma.cu cuts [M, N] outputs: tiles of `groups` · 128 rows and `tokens` tokens.

    Args:
        tokens, groups, ctas: its TOKENS, WARPGROUPS and CTAS, the blocks that share a multiprocessor.
    """

    tokens: int
    groups: int = 2
    ctas: int = 1

    def tiles(self, m: int, n: int) -> int:
        """Tiles of [m, n] outputs."""
        return -(-n // (self.groups * ROWS)) * -(-m // self.tokens)

    def rounds(self, m: int, n: int, parts: int = 1) -> int:
        """A measure of the time that they take: outputs that a multiprocessor adds up one after the other."""
        return -(-self.tiles(m, n) * parts // MULTIPROCESSORS) * self.tokens * self.groups

    def gemm(
        self, kernel: ShippedKernel, weights: Weights, entry: str, x: Any, out: Any, m: int, split: int = 0
    ) -> None:
        """Into `out` from activations that the function `entry` of kernels/pack/activations.cu tiles.

        Args:
            split: values of a part of a row, whose sums then go into `out` one after the other; 0: a row is one part.
        """
        host = kernel.host
        assert isinstance(weights.fmt, BlockFormat)
        _, padded, chunk = packed_shape(weights.fmt, weights.n, weights.k)
        token_tiles, stages = -(-m // self.tokens), padded // 2

        tokens = {"TOKENS": str(self.tokens)}
        tiled = host.output(token_tiles * stages * self.tokens * 144)
        args = [x, tiled, np.int64(m), np.int64(weights.k // 32), np.int64(stages)]
        grid = (min(token_tiles * self.tokens // 4, MAX_GRID), min(-(-stages // 8), 65535), 1)
        host.launch(kernel.compiled(entry, weights.fmt, _TILE, tokens), grid, (256, 1, 1), args)

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
        host.launch(kernel.compiled("gemm", weights.fmt, None, macros), grid, block, args, shared=ring * slot)


class Wgmma(Packed):
    """kernels/gemm/q8_1/07_wgmma.cu, with the tiles that keep the card busy: bits do not depend on them."""

    def multiply(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self.tiling(weights.fmt, m, weights.n).gemm(kernel, weights, "tile", x, out, m)

    def multiply_values(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self.tiling(weights.fmt, m, weights.n).gemm(kernel, weights, "quantize_tiled", x, out, m)

    def tiling(self, fmt: WeightFormat, m: int, n: int) -> Tiling:
        """Large tiles where registers hold them, unless the last to run would leave more multiprocessors idle."""
        tilings = (Tiling(128), Tiling(64)) if fmt.name == "Q8_0" else (Tiling(64),)
        return min(tilings, key=lambda tiling: tiling.rounds(m, n))


#: Values of a part of a row, in `SplitK`.
SPLIT = 1024


class SplitK(Packed):
    """kernels/gemm/q8_1/09_split_k.cu, with tiles as small as the tokens allow."""

    def multiply(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(kernel, weights, "tile", x, out, m)

    def multiply_values(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(kernel, weights, "quantize_tiled", x, out, m)

    def tiling(self, m: int, n: int, parts: int) -> Tiling:
        """Small tiles where there are few tokens: more blocks at a time hide each other's waits."""
        if m <= 16:
            return Tiling(16, 1, 4)
        return min((Tiling(64), Tiling(32, 1, 3)), key=lambda tiling: tiling.rounds(m, n, parts))

    def _multiply(self, kernel: ShippedKernel, weights: Weights, entry: str, x: Any, out: Any, m: int) -> None:
        parts, fours = -(-weights.k // SPLIT), -(-m * weights.n // 4)
        sums = kernel.host.output(16 * parts * fours)
        self.tiling(m, weights.n, parts).gemm(kernel, weights, entry, x, sums, m, SPLIT)
        args = [sums, out, np.int64(parts), np.int64(m * weights.n)]
        added = kernel.compiled("add_parts", weights.fmt, None, _ANY_TILE)
        kernel.host.launch(added, (min(-(-fours // 128), MAX_GRID), 1, 1), (128, 1, 1), args)


#: Bytes of shared memory that `Gemv` may take beside its barriers, by compute capability; elsewhere what every card
#: from sm_80 on offers.
_SHARED, _SHARED_ELSEWHERE = {"75": 62 << 10, "90": 200 << 10}, 97 << 10
#: Bytes of activations that `Gemv` keeps there; more are taken in parts.
_X_BYTES = 40 << 10


class Gemv(Packed):
    """kernels/gemm/q8_1/08_gemv.cu: up to 16 tokens at a time read the weights once.

    Its launches overlap the one before them and read weights meanwhile, which were packed and seen to be right by then.
    """

    layout: ClassVar[str] = _STRIPS

    def multiply(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        if m > 4:
            self._some("tile", kernel, weights, x, out, m)
        else:
            self._few("gemm", kernel, weights, x, out, m, self.shape(kernel.host.sm, weights, m))

    def multiply_values(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        if m > 4:
            self._some("tile_values", kernel, weights, x, out, m)
            return
        shape = self.shape(kernel.host.sm, weights, m)
        if shape["X_BLOCKS"] * QK < weights.k:
            super().multiply_values(kernel, weights, x, out, m)
        else:
            self._few("gemm_values", kernel, weights, x, out, m, shape)

    @classmethod
    def shape(cls, sm: str | None, weights: Weights, m: int) -> dict[str, int]:
        """The macros for up to four tokens: eight warps, or four where shared memory then holds all of x; else x is
        taken in parts of X_BLOCKS."""
        tokens, blocks = next(t for t in (1, 2, 4) if t >= m), weights.k // QK
        found = []
        for warps in (8, 4):
            shape = {"TOKENS": tokens, "WARPS": warps, "STAGES": 2, "X_BLOCKS": 0}
            room = _SHARED.get(sm or "90", _SHARED_ELSEWHERE) - cls.shared(weights.fmt, shape)
            a_round = 4 * warps
            most = min(_X_BYTES, room) // (40 * tokens) // a_round * a_round
            found.append(shape | {"X_BLOCKS": min(most, -(-blocks // a_round) * a_round)})
        whole = [shape for shape in found if shape["X_BLOCKS"] >= blocks]
        return next(shape for shape in whole + found if shape["X_BLOCKS"] > 0)

    @staticmethod
    def shared(fmt: WeightFormat, shape: dict[str, int]) -> int:
        """Bytes of shared memory: the ring, terms (and what minima add), activations."""
        assert isinstance(fmt, BlockFormat)
        a_round, a_term = 4 * shape["WARPS"], 12 if "m" in (fmt.dtype.names or ()) else 8
        terms = shape["TOKENS"] * a_round * 36 * a_term
        return shape["STAGES"] * a_round * 32 * fmt.block_bytes + terms + shape["TOKENS"] * shape["X_BLOCKS"] * 40

    def _few(
        self, entry: str, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int, shape: dict[str, int]
    ) -> None:
        host, shared = kernel.host, self.shared(weights.fmt, shape)
        threads = (shape["WARPS"] + shape["TOKENS"]) * 32
        gemm = kernel.compiled(entry, weights.fmt, None, {k: str(v) for k, v in shape.items()})
        strips = -(-weights.n // ROWS) * 4
        grid = (min(strips, host.resident(gemm, threads, shared)), 1, 1)
        args = [weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k // QK)]
        host.launch(gemm, grid, (threads, 1, 1), args, shared=shared, overlaps=True)

    def _some(self, entry: str, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        fmt, host, blocks = weights.fmt, kernel.host, weights.k // QK
        assert isinstance(fmt, BlockFormat)
        tokens, strips = 8 if m <= 8 else 16, -(-weights.n // ROWS) * 4
        stage = 8 * (32 * fmt.block_bytes + tokens * 40)
        stages = (54 << 10) // stage
        macros = {"TOKENS": str(tokens), "STAGES": str(stages)}
        tiles = -(-m // tokens)
        tiled = host.output(tiles * blocks * tokens * 40)
        grid = (min(-(-tiles * tokens // 8 * blocks // 8), MAX_GRID), 1, 1)
        tile = kernel.compiled(entry, fmt, None, macros)
        host.launch(tile, grid, (256, 1, 1), [x, tiled, np.int64(m), np.int64(blocks)], overlaps=True)
        gemm = kernel.compiled("gemm", fmt, None, macros)
        args = [weights.buffer, tiled, out, np.int64(m), np.int64(weights.n), np.int64(blocks)]
        # where they fill no card, blocks of two launches meet on some multiprocessors and leave others empty
        crowded = strips * tiles * 2 > host.resident(gemm, 128, stages * stage)
        host.launch(gemm, (strips, tiles, 1), (128, 1, 1), args, shared=stages * stage, overlaps=crowded)
