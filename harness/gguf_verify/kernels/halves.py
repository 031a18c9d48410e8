"""Packed weights for half-precision kernels (kernels/gemm/f16/halves.cuh): codes beside premultiplied scales.

Packing is part of what is verified: the packed weights are decoded here from the description of the layout, with NumPy
or with arrays on the GPU, and must equal the codes, scales and minima of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..hosts.base import Host
from ..support.arrays import Array, contiguous, seen_as
from ..support.errors import KernelFault
from ..support.numbers import number_type
from .packed import all_zero, one_nan
from .site import MAX_GRID, Site

Bytes = npt.NDArray[np.uint8]

#: Rows of a tile, values of a stage, and threads that share a chunk.
ROWS, STAGE, THREADS = 64, 64, 128
_PACK = "pack/halves.cu"
_TILES_AT_A_TIME = 32  # decoding takes many times their size


@dataclass(frozen=True)
class Layout:
    """The chunks of a type.

    Args:
        fmt: the type.
    """

    fmt: BlockFormat

    @property
    def bits(self) -> int:
        """Return the bits of a code."""
        return 4 if self.fmt.bits <= 4 else 8

    @property
    def half_scales(self) -> bool:
        """Return whether a block's scale and minimum are halves in the file and are used unchanged."""
        stored = self.fmt.read_scales is None and self.fmt.read_minima is None
        return stored and all(f.dtype == "<f2" for f in self.fmt.fields if f.name in ("d", "m"))

    @property
    def groups(self) -> int:
        """Return the number of scales per slice of 32 values."""
        return 2 if self.fmt.group == 16 else 1

    @property
    def scale_bytes(self) -> int:
        """Return the bytes of the scales and minima of four threads, which share two rows."""
        return (2 if self.half_scales else 4) * 4 * self.groups * (2 if self.fmt.has_min else 1)

    @property
    def chunk(self) -> int:
        """Return the bytes of a chunk."""
        return ROWS * STAGE * self.bits // 8 + 32 * self.scale_bytes

    @property
    def macros(self) -> dict[str, str]:
        """Return the macros of the sources, in addition to those of the type."""
        return {
            "CODE_BITS": str(self.bits), "CODE_LOW": str(self.fmt.low), "HALF_SCALES": str(int(self.half_scales)),
        }  # fmt: skip

    def shape(self, n: int, k: int) -> tuple[int, int]:
        """Return the number of tiles, and of stages per row."""
        return -(-n // ROWS), -(-k // STAGE)

    def codes(self, chunks: Bytes) -> Array:
        """Decode the codes of chunks uint8[tiles, stages, chunk], uint8[tiles·64, stages·64]."""
        tiles, stages = chunks.shape[:2]
        raw = contiguous(chunks[..., : ROWS * STAGE * self.bits // 8])
        if self.bits == 4:
            # bytes of [w, g, c, s, r]: nibbles i and i + 4 are values 2i and 2i + 1
            by_thread = raw.reshape(tiles, stages, 4, 8, 4, 2, 2, 4)
            nibbles = np.stack([by_thread & 15, by_thread >> 4], axis=-1).reshape(tiles, stages, 4, 8, 4, 2, 2, 2, 2, 2)
            # [tile, stage, w, g, c, s, r, j, half, i] → [tile, w, g, r, stage, s, half, c, i, j]
            values = nibbles.transpose(0, 2, 3, 6, 1, 5, 8, 4, 9, 7)
        else:
            # [tile, stage, s, w, g, c, r, half, value] → [tile, w, g, r, stage, s, half, c, value]
            values = raw.reshape(tiles, stages, 2, 4, 8, 4, 2, 2, 4).transpose(0, 3, 4, 6, 1, 2, 7, 5, 8)
        return contiguous(values).reshape(tiles * ROWS, stages * STAGE)

    def scales(self, chunks: Bytes) -> Array:
        """Decode the scales and any minima: float32 or float16[1 or 2, tiles·64, stages·2·groups]."""
        tiles, stages = chunks.shape[:2]
        raw = contiguous(chunks[..., ROWS * STAGE * self.bits // 8 :]).view("<f2" if self.half_scales else "<f4")
        # [tile, stage, w, g, kind, r, s, group] → [kind, tile, w, g, r, stage, s, group]
        by_row = raw.reshape(tiles, stages, 4, 8, -1, 2, 2, self.groups).transpose(4, 0, 2, 3, 5, 1, 6, 7)
        return contiguous(by_row).reshape(-1, tiles * ROWS, stages * 2 * self.groups)


def _padded(values: Array, rows: int, columns: int) -> Array:
    """Pad [n, k] with zeros to a size."""
    found = np.zeros_like(values, shape=(rows, columns))
    found[: values.shape[0], : values.shape[1]] = values
    return found


def _same(a: Array, b: Array) -> bool:
    """Return whether two arrays of one type have the same bits, with all NaNs considered equal."""

    def bits(values: Array) -> Array:
        of = seen_as(contiguous(values), number_type(f"uint{8 * values.dtype.itemsize}").type)
        return of if values.dtype == np.uint8 else one_nan(of)

    return all_zero(seen_as(contiguous(bits(a) ^ bits(b)), np.uint8))


def check_halves(host: Host, out: Any, rows: Bytes, fmt: BlockFormat) -> None:
    """Raise KernelFault unless the packed weights in `out` hold the codes and scales of rows uint8[N, row bytes].

    The padding must be zero.
    """
    layout = Layout(fmt)
    n, k = len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size
    tiles, stages = layout.shape(n, k)
    packed, given = host.side_by_side(out, rows)
    packed = packed.reshape(tiles, stages, layout.chunk)
    blocks = given.reshape(n, -1, fmt.block_bytes)
    per_slice = max(1, fmt.group // 32)
    for tile in range(0, tiles, _TILES_AT_A_TIME):
        some, chunks = blocks[tile * ROWS : (tile + _TILES_AT_A_TIME) * ROWS], packed[tile : tile + _TILES_AT_A_TIME]
        stored = (fmt.codes(some).reshape(len(some), -1) - fmt.low).astype(np.uint8)
        size = len(chunks) * ROWS
        right = _same(layout.codes(chunks), _padded(stored, size, stages * STAGE))
        found = layout.scales(chunks)
        of_groups = [fmt.scales(some), fmt.minima(some)] if fmt.has_min else [fmt.scales(some)]
        for kind, held in zip(of_groups, found, strict=True):
            wide = np.repeat(kind.reshape(len(some), -1), per_slice, axis=1).astype(held.dtype)
            right = right and _same(held, _padded(wide, size, held.shape[1]))
        if not right:
            raise KernelFault("the packed weights do not hold the file's codes, scales and minima")


def packed_halves(site: Site, fmt: WeightFormat, rows: Bytes) -> Any:
    """Pack the rows uint8[N, row bytes]. Raises KernelFault if the result does not hold the file's contents."""
    assert isinstance(fmt, BlockFormat)
    host, layout = site.host, Layout(fmt)
    n, k = len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size
    tiles, stages = layout.shape(n, k)
    out = host.output(tiles * stages * layout.chunk, "packed weights")
    pack = site.function("pack", fmt, _PACK, layout.macros)
    args = [host.upload(rows, "weights"), out, np.int64(n), np.int64(k // 32), np.int64(stages)]
    host.launch(pack, (min(tiles * stages, MAX_GRID), 1, 1), (THREADS, 1, 1), args)
    check_halves(host, out, rows, fmt)
    return out
