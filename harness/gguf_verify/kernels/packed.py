"""Packed weights: a layout of the kernels' own (kernels/packed.cuh), made once for any number of calls.

Packing is part of what is verified: the packed weights are decoded here from the description of the layout, with NumPy
or with arrays on the GPU, and must have the same meaning as the file's bytes: the same codes, scales and minima, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import FORMATS, WeightFormat
from ..hosts.base import Host
from ..support.arrays import Array, bits_of, contiguous, seen_as
from ..support.errors import KernelFault
from .launch import Launch
from .site import MAX_GRID, Site

Bytes = npt.NDArray[np.uint8]

#: Types with blocks of 32 values under one half scale, whose codes are stored as they are: packing only moves bits.
LEGACY = frozenset(fmt.name for fmt in FORMATS.values() if fmt.legacy)
#: Rows of a tile of packed weights, and values of a slice.
ROWS, QK = 128, 32
#: The layout in which a chunk is split into four strips of 32 rows.
STRIPS = "packed in strips"
_PACK = "pack/weights.cu"
_ROWS_AT_A_TIME = 4096  # decoding takes many times their size
#: The bits of special halves and floats: infinity, and a NaN.
_SPECIAL = {np.dtype(np.uint16): (0x7C00, 0x7E00), np.dtype(np.uint32): (0x7F800000, 0x7FC00000)}


@dataclass(frozen=True)
class Layout:
    """The contents of packed weights of a type, per 128 rows and 32 values.

    Args:
        code_bits: 4 or 5 if codes are unsigned and no wider, and scales are multiples of a half whose products with a
            power of two neither overflow nor underflow; otherwise 8, signed bytes.
        groups: scales per row and slice.
        half_scales: scales and minima are the halves d and m of blocks; otherwise float32.
        minima: there are as many minima as scales.
    """

    code_bits: int
    groups: int
    half_scales: bool
    minima: bool

    @classmethod
    def of(cls, fmt: BlockFormat) -> Self:
        """Return the layout of a type."""
        halves = any(f.name == "d" and f.dtype == "<f2" for f in fmt.fields)
        narrow = fmt.low == 0 and fmt.bits <= 5 and halves
        code_bits = 8 if not narrow else 4 if fmt.bits <= 4 else 5
        return cls(code_bits, 2 if fmt.group == 16 else 1, fmt.has_half_scale, fmt.has_min)

    @cached_property
    def members(self) -> dict[str, int]:
        """Return the bytes of the members of a chunk, in their order."""
        sizes = {"codes": ROWS * (32 if self.code_bits == 8 else 16)}
        if self.code_bits == 5:
            sizes["high"] = ROWS * 4
        scales = ROWS * self.groups * (2 if self.half_scales else 4)
        return sizes | {"d": scales} | ({"m": scales} if self.minima else {})

    @property
    def chunk(self) -> int:
        """Return the bytes of a chunk."""
        return sum(self.members.values())

    def token_bytes(self, fmt: BlockFormat) -> int:
        """Return the bytes of a token and slice of tiled activations.

        They are the codes as halves, then d, or d and z of each group.
        """
        sets = self.groups if fmt.has_min and not fmt.min_times_sum else 1
        return 64 + (8 * sets if fmt.offset or fmt.has_min else 4)

    @property
    def macros(self) -> dict[str, str]:
        """Return the macros for every source that includes packed.cuh, in addition to the type's macros."""
        return {"CODE_BITS": str(self.code_bits), "HALF_SCALES": str(int(self.half_scales))}


@dataclass(frozen=True)
class Contents:
    """Weights as the kernels read them, of n rows and K values.

    Args:
        codes: uint8[n, K], the codes as bytes.
        d, m: scales and minima, uint16 or uint32[n, K/32, groups], the bits of halves or floats. All NaNs are replaced
            by one, since hosts produce different NaNs. m is None if there are none.
    """

    codes: Array
    d: Array
    m: Array | None

    @classmethod
    def of(cls, fmt: BlockFormat, rows: Bytes) -> Self:
        """Decode the file's rows uint8[n, row bytes] with the record of the type."""
        layout, n = Layout.of(fmt), len(rows)
        blocks = rows.reshape(n, -1, fmt.block_bytes)
        slices = blocks.shape[1] * fmt.block_size // QK

        def scales(name: str, values: Callable[[Bytes], npt.NDArray[np.float32]]) -> Array:
            if layout.half_scales:
                bits = seen_as(contiguous(fmt.view(blocks)[name]), np.uint16)[..., None]
            else:
                with np.errstate(all="ignore"):
                    bits = seen_as(values(blocks), np.uint32)
            repeats = slices * layout.groups // (blocks.shape[1] * bits.shape[-1])
            return np.repeat(one_nan(bits), repeats, axis=-1).reshape(n, slices, layout.groups)

        codes = seen_as(contiguous(fmt.codes(blocks)), np.uint8).reshape(n, -1)
        return cls(codes, scales("d", fmt.scales), scales("m", fmt.minima) if layout.minima else None)

    def __eq__(self, other: object) -> bool:
        """Compare bit for bit."""
        if not isinstance(other, Contents) or (self.m is None) != (other.m is None):
            return NotImplemented
        return _same(self.codes, other.codes) and _same(self.d, other.d) and (self.m is None or _same(self.m, other.m))


def packed_shape(fmt: BlockFormat, n: int, k: int) -> tuple[int, int, int]:
    """Return the number of tiles, the slices per row (an even number) and the bytes of a chunk."""
    slices = k // QK
    return -(-n // ROWS), slices + slices % 2, Layout.of(fmt).chunk


def unpacked(fmt: BlockFormat, packed: Bytes, n: int, k: int, strips: bool = False) -> tuple[Contents, bool]:
    """Decode packed weights of n rows of k values; also return whether all padding is zero.

    Args:
        strips: the chunks are split into strips.
    """
    tiles, slices, _ = packed_shape(fmt, n, k)
    layout = Layout.of(fmt)
    of = _members(layout, packed, tiles, slices, strips)
    codes = _codes(of["codes"], tiles, slices, layout.code_bits)
    if "high" in of:
        codes = codes | _high_bits(of["high"], tiles, slices) << 4
    codes = codes.reshape(tiles * ROWS, -1)
    scales = [_scales(of[name], layout, tiles, slices, strips) for name in ("d", "m") if name in of]
    clean = all_zero(codes[n:]) and all_zero(codes[:n, k:])
    clean &= all(all_zero(bits[n:]) and all_zero(bits[:n, k // QK :]) for bits in scales)
    d, *m = (one_nan(bits[:n, : k // QK]) for bits in scales)
    return Contents(codes[:n, :k], d, m[0] if m else None), clean


def _members(layout: Layout, packed: Bytes, tiles: int, slices: int, strips: bool) -> dict[str, Bytes]:
    """Return the members of all chunks, uint8[tile, slice, bytes], or of strips, uint8[tile, slice, w, bytes]."""
    at, of = 0, {}
    parts = packed.reshape(tiles, 4, slices, -1) if strips else packed.reshape(tiles, slices, -1)
    for name, size in layout.members.items():
        if strips:  # each member of a chunk is stored in four parts
            of[name] = contiguous(parts[..., at // 4 : (at + size) // 4].transpose(0, 2, 1, 3))
        else:
            of[name] = contiguous(parts[..., at : at + size])
        at += size
    return of


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and all_zero(seen_as(contiguous(a ^ b), np.uint8))


def one_nan(bits: Array) -> Array:
    """Replace all NaNs in the bits of halves uint16[…] or floats uint32[…] by one: hosts differ in theirs."""
    kind = bits.dtype
    infinity, nan = _SPECIAL[kind]
    without_sign = bits & kind.type(np.iinfo(kind).max >> 1)
    return np.where(without_sign > infinity, kind.type(nan), bits)


def all_zero(values: Bytes) -> bool:
    """Return whether all bytes are 0.

    They are viewed as one row, since the GPU array library compiles a separate reduction for each shape.
    """
    return not values.size or int(contiguous(values).reshape(-1).max()) == 0


def _codes(part: Bytes, tiles: int, slices: int, bits: int) -> Array:
    """Decode the member `codes`, uint8[tile rows, slice, 32]; of 5-bit codes, the lower four bits."""
    if bits == 8:
        # [tile, slice, w, g, c, t, r, j, i] → [tile, t, w, r, g, slice, j, c, i]
        bytes_of = part.reshape(tiles, slices, 4, 8, 4, 2, 2, 2, 4).transpose(0, 5, 2, 6, 3, 1, 7, 4, 8)
        return contiguous(bytes_of).reshape(tiles * ROWS, slices, 32)
    # [tile, slice, w, g, c, t, r, i] → [tile, t, w, r, g, slice, c, i]
    both = part.reshape(tiles, slices, 4, 8, 4, 2, 2, 4).transpose(0, 5, 2, 6, 3, 1, 4, 7)
    both = contiguous(both).reshape(tiles * ROWS, slices, 16)
    return np.concatenate([both & 15, both >> 4], axis=-1)


def _high_bits(part: Bytes, tiles: int, slices: int) -> Array:
    """Decode the member `high`, uint8[tile rows, slice, 32]: 0 or 1."""
    # bit 8·i + 4·t + 2·r + j of a word: [tile, slice, w, g, c, i, t, r, j] → [tile, t, w, r, g, slice, j, c, i]
    bits = bits_of(part).reshape(tiles, slices, 4, 8, 4, 4, 2, 2, 2).transpose(0, 6, 2, 7, 3, 1, 8, 4, 5)
    return contiguous(bits).reshape(tiles * ROWS, slices, 32)


def _scales(part: Bytes, layout: Layout, tiles: int, slices: int, strips: bool) -> Array:
    """Decode the members `d` and `m`, uint16 or uint32[tile rows, slice, group]."""
    bits = part.view(np.uint16 if layout.half_scales else np.uint32)
    # the quads of a group are contiguous: in a chunk those of all four w, in a strip its own
    if strips:
        # [tile, slice, w, group, g, t, r] → [tile, t, w, r, g, slice, group]
        bits = bits.reshape(tiles, slices, 4, layout.groups, 8, 2, 2).transpose(0, 5, 2, 6, 4, 1, 3)
    else:
        # [tile, slice, group, w, g, t, r] → the same
        bits = bits.reshape(tiles, slices, layout.groups, 4, 8, 2, 2).transpose(0, 5, 3, 6, 4, 1, 2)
    return contiguous(bits).reshape(tiles * ROWS, slices, layout.groups)


def check_contents(host: Host, out: Any, rows: Bytes, fmt: BlockFormat, strips: bool) -> None:
    """Raise KernelFault unless the packed weights in `out` have the meaning of the file's rows.

    Args:
        rows: uint8[N, row bytes].
        strips: the chunks are split into strips.
    """
    k = rows.shape[1] // fmt.block_bytes * fmt.block_size

    def holds(packed: Bytes, some: Bytes) -> bool:
        found, clean = unpacked(fmt, packed, len(some), k, strips)
        return clean and found == Contents.of(fmt, some)

    check_packed(host, out, rows, -(-len(rows) // ROWS), ROWS, holds)


def check_packed(
    host: Host, out: Any, rows: Bytes, tiles: int, tile_rows: int, holds: Callable[[Bytes, Bytes], bool]
) -> None:
    """Raise KernelFault unless the packed weights in `out` hold the file's rows.

    Args:
        rows: uint8[N, row bytes] of the file.
        tiles, tile_rows: number of tiles of the packed weights, which are contiguous, and rows of each.
        holds: returns whether some tiles hold these rows, and zeros in the padding.
    """
    packed, given = host.side_by_side(out, rows)
    packed, given = packed.reshape(tiles, -1), given.reshape(len(rows), -1)
    at_a_time = max(1, _ROWS_AT_A_TIME // tile_rows)
    for first in range(0, tiles, at_a_time):
        some = given[first * tile_rows : (first + at_a_time) * tile_rows]
        if not holds(packed[first : first + at_a_time], some):
            raise KernelFault("the packed weights do not hold the file's bytes")


class Packed(Launch):
    """A launch that packs weights once; `gemm` reads the packed ones, in chunks of 128 rows or in strips of 32."""

    layout: ClassVar[str] = "packed"

    def prepare(self, site: Site, fmt: WeightFormat, rows: Bytes) -> Any:
        """Pack the weights. Raises KernelFault if the result does not have the meaning of the file's bytes."""
        assert isinstance(fmt, BlockFormat)
        host, strips, layout = site.host, self.layout == STRIPS, Layout.of(fmt)
        n, k = rows.shape[0], rows.shape[1] // fmt.block_bytes * fmt.block_size
        tiles, padded, chunk = packed_shape(fmt, n, k)
        out = host.output(tiles * padded * chunk, "packed weights")
        macros = {**layout.macros, "STRIPS": str(int(strips)), "CHUNK_BYTES": str(chunk)}
        args = [host.upload(rows, "weights"), out, np.int64(n), np.int64(k // QK), np.int64(padded)]
        pack = site.function("pack", fmt, _PACK, macros)
        host.launch(pack, (min(tiles * padded, MAX_GRID), 1, 1), (ROWS, 1, 1), args)
        check_contents(host, out, rows, fmt, strips)
        return out
