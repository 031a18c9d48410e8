"""Kernels whose weights have a layout of their own (kernels/packed.cuh), which is packed once for any number of calls.

Packing is part of what is verified: what the kernel packed is unpacked here, by NumPy after the layout's description,
and must be the file's bytes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..formats import FORMATS, BlockFormat, WeightFormat
from ..support.errors import KernelFault
from .launch import Launch
from .site import MAX_GRID, Site

Bytes = npt.NDArray[np.uint8]

#: The types that can be packed: blocks of 32 values under one half scale, whose codes are stored as they are.
LEGACY = frozenset(fmt.name for fmt in FORMATS.values() if fmt.legacy)
#: Rows of a tile of packed weights, values of a block.
ROWS, QK = 128, 32
#: The layout in which a chunk is cut in four strips of 32 rows.
STRIPS = "packed in strips"
_PACK = "pack/weights.cu"
_TILES_AT_A_TIME = 16  # unpacking takes many times their size


def packed_shape(fmt: BlockFormat, n: int, k: int) -> tuple[int, int, int]:
    """Tiles, blocks of a row (an even number) and bytes of a chunk."""
    blocks = k // fmt.block_size
    return -(-n // ROWS), blocks + blocks % 2, ROWS * fmt.block_bytes


def unpacked(fmt: BlockFormat, packed: Bytes, n: int, k: int, strips: bool = False) -> tuple[Bytes, bool]:
    """The rows uint8[n, row bytes] of packed weights, and whether the padding beside them is all zero.

    Args:
        strips: the chunks are cut in strips.
    """
    tiles, blocks, chunk = packed_shape(fmt, n, k)
    rows = np.zeros((tiles * ROWS, blocks, fmt.block_bytes), np.uint8)
    out = fmt.view(rows)
    members = out.dtype.names or ()
    words = out["qs"].dtype.itemsize * out["qs"][0, 0].size // 16
    sizes = {"qs": ROWS * 16 * words, **{name: ROWS * (4 if name == "qh" else 2) for name in ("qh", "d", "m")}}
    sizes = {name: size for name, size in sizes.items() if name in members}
    ends = np.cumsum(list(sizes.values()))
    if strips:  # a chunk is four parts of each of its members
        parts = packed.reshape(tiles, 4, blocks, chunk // 4).transpose(0, 2, 1, 3)
        found = [part.reshape(tiles, blocks, -1) for part in np.split(parts, ends[:-1] // 4, axis=-1)]
    else:
        found = np.split(packed.reshape(tiles, blocks, chunk), ends[:-1], axis=-1)
    for name, part in zip(sizes, found, strict=True):
        read = {"qs": _codes, "qh": _high_bits}.get(name, _halves)
        out[name] = read(np.ascontiguousarray(part), tiles, blocks).view(out[name].dtype).reshape(out[name].shape)
    inside = rows[:n, : k // fmt.block_size].copy()
    rows[:n, : k // fmt.block_size] = 0
    return inside.reshape(n, -1), not rows.any()


def _codes(part: Bytes, tiles: int, blocks: int) -> Bytes:
    words = part.shape[-1] // (ROWS * 16)
    # [tile, block, w, g, c, t, r, word] → [tile, t, w, r, g, block, word, c]
    codes = part.view("<u4").reshape(tiles, blocks, 4, 8, 4, 2, 2, words).transpose(0, 5, 2, 6, 3, 1, 7, 4)
    return np.ascontiguousarray(codes).view(np.uint8)


def _high_bits(part: Bytes, tiles: int, blocks: int) -> Bytes:
    high = part.view("<u4").reshape(tiles, blocks, 4, 8, 4)
    t, r, j, i = np.indices((2, 2, 2, 4)).astype(np.uint32)
    bits = high[..., None, None, None, None] >> (8 * i + 4 * t + 2 * r + j) & 1
    # [tile, block, w, g, c, t, r, j, i] → [tile, t, w, r, g, block, j, c, i]
    bits = bits.transpose(0, 5, 2, 6, 3, 1, 7, 4, 8).reshape(tiles * ROWS, blocks, 32)
    return np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")


def _halves(part: Bytes, tiles: int, blocks: int) -> Bytes:
    # [tile, block, w, g, t, r] → [tile, t, w, r, g, block]
    halves = part.view("<u2").reshape(tiles, blocks, 4, 8, 2, 2).transpose(0, 4, 2, 5, 3, 1)
    return np.ascontiguousarray(halves).view(np.uint8)


class Packed(Launch):
    """Weights are packed once; `gemm` takes the packed ones, in chunks of 128 rows or in strips of 32."""

    layout: ClassVar[str] = "packed"

    def prepare(self, site: Site, fmt: WeightFormat, rows: Bytes) -> Any:
        """Raises KernelFault where the packed weights do not hold the file's bytes."""
        assert isinstance(fmt, BlockFormat)
        host, strips = site.host, self.layout == STRIPS
        n, blocks = rows.shape[0], rows.shape[1] // fmt.block_bytes
        tiles, padded, chunk = packed_shape(fmt, n, blocks * fmt.block_size)
        out = host.output(tiles * padded * chunk, "packed weights")
        pack = site.function("pack", fmt, _PACK, {"STRIPS": str(int(strips))})
        args = [host.upload(rows, "weights"), out, np.int64(n), np.int64(blocks), np.int64(padded)]
        host.launch(pack, (min(tiles * padded, MAX_GRID), 1, 1), (ROWS, 1, 1), args)
        packed = host.download(out).reshape(tiles, -1)
        for first in range(0, tiles, _TILES_AT_A_TIME):
            some = rows.reshape(n, -1)[first * ROWS : (first + _TILES_AT_A_TIME) * ROWS]
            of_some = packed[first : first + _TILES_AT_A_TIME]
            again, clean = unpacked(fmt, of_some, len(some), blocks * fmt.block_size, strips)
            if not clean or not np.array_equal(again, some):
                raise KernelFault("the packed weights do not hold the file's bytes")
        return out


__all__ = ["LEGACY", "QK", "ROWS", "STRIPS", "Packed", "packed_shape", "unpacked"]
