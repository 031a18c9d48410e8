"""Kernels that want their operands in a layout of their own (kernels/packed.cuh): packed weights, tiled activations.

Packing is part of what is verified: what the kernel packed is taken apart again here, by the layout's description in
NumPy, and must be the file's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from .errors import KernelFault
from .formats import BlockFormat, WeightFormat
from .launches import MAX_GRID, Launch

if TYPE_CHECKING:
    from .kernels import Kernel, Weights

Bytes = npt.NDArray[np.uint8]

#: Rows of a tile of packed weights.
ROWS = 128
_PACK, _TILE = "pack/weights.cu", "pack/activations.cu"
_TILES_AT_A_TIME = 16  # taken apart, which takes many times their size
_MULTIPROCESSORS = 132  # of the cards that 07 runs on
#: What a source that holds more than the GEMM is compiled with for the rest of it.
_ANY_TILE = {"TOKENS": "16", "WARPGROUPS": "1", "CTAS": "1", "STAGES": "2"}


def packed_shape(fmt: BlockFormat, n: int, k: int) -> tuple[int, int, int]:
    """Tiles, blocks of a row (an even number) and bytes of a chunk."""
    blocks = k // fmt.block_size
    return -(-n // ROWS), blocks + blocks % 2, ROWS * fmt.block_bytes


def unpacked(fmt: BlockFormat, packed: Bytes, n: int, k: int) -> tuple[Bytes, bool]:
    """The rows of packed weights, uint8[n, row bytes], and whether all beside them is zero."""
    tiles, blocks, chunk = packed_shape(fmt, n, k)
    rows = np.zeros((tiles * ROWS, blocks, fmt.block_bytes), np.uint8)
    out = fmt.view(rows)
    chunks = packed.reshape(tiles, blocks, chunk)
    words = 2 if fmt.name == "Q8_0" else 1
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
    """Weights are packed once; `gemm` gets the packed ones."""

    layout: ClassVar[str] = "packed"

    def prepare(self, kernel: Kernel, fmt: WeightFormat, rows: Bytes) -> Any:
        assert isinstance(fmt, BlockFormat)
        n, blocks = rows.shape[0], rows.shape[1] // fmt.block_bytes
        tiles, padded, chunk = packed_shape(fmt, n, blocks * fmt.block_size)
        out = kernel.host.output(tiles * padded * chunk)
        grid = (min(tiles * padded, MAX_GRID), 1, 1)
        args = [kernel.host.upload(rows), out, np.int64(n), np.int64(blocks), np.int64(padded)]
        kernel.host.launch(kernel.compiled("pack", fmt, _PACK), grid, (ROWS, 1, 1), args)
        packed = kernel.host.download(out).reshape(tiles, -1)
        for first in range(0, tiles, _TILES_AT_A_TIME):
            some = rows.reshape(n, -1)[first * ROWS : (first + _TILES_AT_A_TIME) * ROWS]
            of_some = packed[first : first + _TILES_AT_A_TIME]
            again, clean = unpacked(fmt, of_some, len(some), blocks * fmt.block_size)
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
        return -(-self.tiles(m, n) * parts // _MULTIPROCESSORS) * self.tokens * self.groups

    def gemm(self, kernel: Kernel, weights: Weights, entry: str, x: Any, out: Any, m: int, split: int = 0) -> None:
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

    def multiply(self, kernel: Kernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self.tiling(weights.fmt, m, weights.n).gemm(kernel, weights, "tile", x, out, m)

    def multiply_values(self, kernel: Kernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self.tiling(weights.fmt, m, weights.n).gemm(kernel, weights, "quantize_tiled", x, out, m)

    def tiling(self, fmt: WeightFormat, m: int, n: int) -> Tiling:
        """Large tiles where registers hold them, unless the last to run would leave more multiprocessors idle."""
        tilings = (Tiling(128), Tiling(64)) if fmt.name == "Q8_0" else (Tiling(64),)
        return min(tilings, key=lambda tiling: tiling.rounds(m, n))


#: Values of a part of a row, in `SplitK`.
SPLIT = 1024


class SplitK(Packed):
    """kernels/gemm/q8_1/09_split_k.cu, with tiles as small as the tokens allow."""

    def multiply(self, kernel: Kernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(kernel, weights, "tile", x, out, m)

    def multiply_values(self, kernel: Kernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        self._multiply(kernel, weights, "quantize_tiled", x, out, m)

    def tiling(self, m: int, n: int, parts: int) -> Tiling:
        """Small tiles where there are few tokens: more blocks at a time hide each other's waits."""
        if m <= 16:
            return Tiling(16, 1, 4)
        return min((Tiling(64), Tiling(32, 1, 3)), key=lambda tiling: tiling.rounds(m, n, parts))

    def _multiply(self, kernel: Kernel, weights: Weights, entry: str, x: Any, out: Any, m: int) -> None:
        parts, fours = -(-weights.k // SPLIT), -(-m * weights.n // 4)
        sums = kernel.host.output(16 * parts * fours)
        self.tiling(m, weights.n, parts).gemm(kernel, weights, entry, x, sums, m, SPLIT)
        args = [sums, out, np.int64(parts), np.int64(m * weights.n)]
        added = kernel.compiled("add_parts", weights.fmt, None, _ANY_TILE)
        kernel.host.launch(added, (min(-(-fours // 128), MAX_GRID), 1, 1), (128, 1, 1), args)


class Gemv(Packed):
    """kernels/gemm/q8_1/08_gemv.cu: up to 8 tokens at a time read the weights once."""

    def multiply(self, kernel: Kernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        tokens = next(t for t in (1, 2, 4, 8) if t >= min(m, 8))
        gemm = kernel.compiled("gemm", weights.fmt, None, {"TOKENS": str(tokens)})
        args = [weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k // 32)]
        grid = (-(-weights.n // ROWS) * 4, -(-m // tokens), 1)
        kernel.host.launch(gemm, grid, (512, 1, 1), args)
