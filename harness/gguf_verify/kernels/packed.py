"""Kernels whose weights have a layout of their own (kernels/packed.cuh), which is packed once for any number of calls.

Packing is part of what is verified: what the kernel packed is unpacked here, after the layout's description, by NumPy
or by a card's arrays, and must be the file's bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..formats import FORMATS, BlockFormat, WeightFormat
from ..hosts.base import Host
from ..support.arrays import Array, bits_of, contiguous, seen_as
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
#: Members of a chunk, in this order.
_MEMBERS = ("qs", "qh", "d", "m")
_ROWS_AT_A_TIME = 4096  # unpacking takes many times their size


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
    assert fmt.dtype.fields is not None
    places = sorted((place[1], name, place[0].itemsize) for name, place in fmt.dtype.fields.items())
    held = {name: size for _, name, size in places}
    ends = list(itertools.accumulate(ROWS * held[name] for name in _MEMBERS if name in held))
    if strips:  # a chunk is four parts of each of its members
        parts = packed.reshape(tiles, 4, blocks, chunk // 4).transpose(0, 2, 1, 3)
        starts = [0, *(end // 4 for end in ends)]
        found = [parts[..., a:b].reshape(tiles, blocks, -1) for a, b in itertools.pairwise(starts)]
    else:
        whole = packed.reshape(tiles, blocks, chunk)
        found = [whole[..., a:b] for a, b in itertools.pairwise([0, *ends])]
    of = dict(zip((name for name in _MEMBERS if name in held), found, strict=True))
    read = {"qs": _codes, "qh": _high_bits}
    bytes_of = [
        read.get(name, _halves)(contiguous(of[name]), tiles, blocks).reshape(tiles * ROWS, blocks, size)
        for _, name, size in places
    ]
    rows: Bytes = np.concatenate(bytes_of, axis=-1)
    blocks_of_row = k // fmt.block_size
    clean = all_zero(rows[n:]) and all_zero(rows[:n, blocks_of_row:])
    return rows[:n, :blocks_of_row].reshape(n, -1), clean


def all_zero(values: Bytes) -> bool:
    """Whether all bytes are 0. They are looked at as one row, since a card's library compiles other
    reductions for each shape."""
    return not values.size or int(contiguous(values).reshape(-1).max()) == 0


def _codes(part: Bytes, tiles: int, blocks: int) -> Array:
    words = part.shape[-1] // (ROWS * 16)
    # [tile, block, w, g, c, t, r, word] → [tile, t, w, r, g, block, word, c]
    codes = part.view("<u4").reshape(tiles, blocks, 4, 8, 4, 2, 2, words).transpose(0, 5, 2, 6, 3, 1, 7, 4)
    return seen_as(codes, np.uint8)


def _high_bits(part: Bytes, tiles: int, blocks: int) -> Array:
    # bit 8·i + 4·t + 2·r + j of a word: [tile, block, w, g, c, i, t, r, j] → [tile, t, w, r, g, block, j, c, i]
    bits = bits_of(part).reshape(tiles, blocks, 4, 8, 4, 4, 2, 2, 2).transpose(0, 6, 2, 7, 3, 1, 8, 4, 5)
    return np.packbits(contiguous(bits).reshape(-1), bitorder="little")


def _halves(part: Bytes, tiles: int, blocks: int) -> Array:
    # [tile, block, w, g, t, r] → [tile, t, w, r, g, block]
    halves = part.view("<u2").reshape(tiles, blocks, 4, 8, 2, 2).transpose(0, 4, 2, 5, 3, 1)
    return seen_as(halves, np.uint8)


def check_packed(
    host: Host, out: Any, rows: Bytes, tiles: int, tile_rows: int, unpack: Callable[[Bytes, int], tuple[Bytes, bool]]
) -> None:
    """Raise KernelFault unless the buffer `out` of packed weights holds the file's bytes.

    Args:
        rows: uint8[N, row bytes], the file's.
        tiles, tile_rows: tiles of the packed weights, one after the other, and rows of each.
        unpack: the rows uint8[n, row bytes] of some tiles that hold n rows, and whether what pads them is zero.
    """
    packed, given = host.side_by_side(out, rows)
    packed, given = packed.reshape(tiles, -1), given.reshape(len(rows), -1)
    at_a_time = max(1, _ROWS_AT_A_TIME // tile_rows)
    for first in range(0, tiles, at_a_time):
        some = given[first * tile_rows : (first + at_a_time) * tile_rows]
        again, clean = unpack(packed[first : first + at_a_time], len(some))
        if not clean or not all_zero(again ^ some):
            raise KernelFault("the packed weights do not hold the file's bytes")


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
        check_packed(
            host, out, rows, tiles, ROWS, lambda some, n: unpacked(fmt, some, n, blocks * fmt.block_size, strips)
        )
        return out


__all__ = ["LEGACY", "QK", "ROWS", "STRIPS", "Packed", "all_zero", "check_packed", "packed_shape", "unpacked"]
