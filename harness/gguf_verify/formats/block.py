"""A block format is data: a frozen record of fields and a decode rule. Sizes and offsets are derived, never typed in.

A quantized row of K values is K / block_size blocks, each block_bytes long, one after the other. All arrays of blocks
here are `uint8[..., block_bytes]`; all arrays of values are `float32[..., block_size]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8] | npt.NDArray[np.int8]


#: Of a smaller scale, finite in itself, any code makes a finite value.
_LARGE = 2.0**100


@dataclass(frozen=True)
class Run:
    """Neighbouring bits of an item of a field, which mean one thing.

    Args:
        width: how many bits.
        name: what they are: "x" for bits of a value's code, the name of another packed array, or plain words.
        index: of the value (or member of that array) that they belong to in the first item of their group; None where
            there is only one.
        low: which bit of it the lowest of these is.
        step: what the index grows by from one item of the group to the next.
    """

    width: int
    name: str
    index: int | None = None
    low: int = 0
    step: int = 1


@dataclass(frozen=True)
class Items:
    """A group of items of a field whose bits are laid out alike: item `items[j]`, with j counted from 0.

    Args:
        items: which items of the field.
        runs: the bits of each, from the high bit to the low.
    """

    items: range
    runs: tuple[Run, ...]


def each(count: int, *runs: Run) -> tuple[Items]:
    """The layout of a field all of whose `count` items are laid out alike."""
    return (Items(range(count), runs),)


@dataclass(frozen=True)
class Piece:
    """Bits `shift` up to `shift + width` of one item: bits `low` and up of `name[index]`. See `Run`."""

    item: int
    shift: int
    width: int
    name: str
    index: int | None
    low: int


@dataclass(frozen=True)
class Field:
    """One member of the block struct: `count` little-endian items of NumPy type `dtype`.

    Raises ValueError for a layout that does not give each bit of each item exactly one meaning.
    """

    name: str
    dtype: str
    count: int
    doc: str
    layout: tuple[Items, ...]

    def __post_init__(self) -> None:
        if sorted(i for group in self.layout for i in group.items) != list(range(self.count)):
            raise ValueError(f"the layout of {self.name} is not one of {self.count} items")
        if any(sum(run.width for run in group.runs) != self.item_bits for group in self.layout):
            raise ValueError(f"the layout of {self.name} is not one of {self.item_bits} bits")

    @property
    def item_bits(self) -> int:
        return 8 * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return self.item_bits // 8 * self.count

    @property
    def c_type(self) -> str:
        """Type of an item, as a kernel's author would write it."""
        name = np.dtype(self.dtype).name
        return {"float16": "half", "float32": "float"}.get(name, name)

    def pieces(self) -> Iterator[Piece]:
        """What each bit means: group by group, item by item, from the high bit to the low."""
        for group in self.layout:
            for j, item in enumerate(group.items):
                shift = self.item_bits
                for run in group.runs:
                    shift -= run.width
                    index = None if run.index is None else run.index + run.step * j
                    yield Piece(item, shift, run.width, run.name, index, run.low)


Structs = npt.NDArray[np.void]


@dataclass(frozen=True)
class BlockFormat:
    """A quantized type whose value i of a block is `d[g]·q[i] + m[g]`, where g = i // group.

    Every type of llama.cpp is one: scales of a superblock are multiplied out, signs, zero points, grids and tables of
    non-linear values are part of the integers q. Where the file stores no minimum, m is `-offset·d` (Q4_0: offset 8) or
    zero; those formats keep their codes as stored, before the offset, because kernels that use the sum s of the
    activations work on those.

    Args:
        name: ggml's name of the type.
        type_id: ggml's number of the type (`enum ggml_type`).
        block_size: values in a block.
        fields: the members of the struct in file order, without padding.
        bits: the codes lie in `low` up to, not including, `low + 2^bits`.
        offset: what is subtracted from a code before scaling.
        source: where the layout and the rule were read.
        read_codes: `structs -> codes[..., block_size]`.
        encode_values: `float32[..., block_size] -> blocks`, llama.cpp's reference quantizer, bit for bit; None where
            only llama.cpp itself quantizes to the type.
        group: values that share a scale: 16, 32 or the whole block.
        low: the smallest code.
        zero: the zero point that is part of the codes: code + zero is what the file holds, and what some code
            multiplies before it subtracts the zero point's product.
        read_scales: `structs -> float32[..., groups]`; None where the field d is the scale of all.
        read_minima: `structs -> float32[..., groups]`; None where the field m, if there is one, is the minimum of all.
        read_sound: `structs -> bool[...]`: whether what the block stores is a number, where bits that stand for none
            decode as if they did; None where no bits are such.
        rule: how a value is decoded, as text.
    """

    name: str
    type_id: int
    block_size: int
    fields: tuple[Field, ...]
    bits: int
    offset: int
    source: str
    read_codes: Callable[[Structs], Codes]
    encode_values: Callable[[Floats], Bytes] | None = None
    group: int = 32
    low: int = 0
    zero: int = 0
    read_scales: Callable[[Structs], Floats] | None = None
    read_minima: Callable[[Structs], Floats] | None = None
    read_sound: Callable[[Structs], npt.NDArray[np.bool_]] | None = None
    rule: str = "x = d·q"

    def __post_init__(self) -> None:
        if self.block_size % self.group:
            raise ValueError(f"{self.name}: blocks of {self.block_size} are not whole groups of {self.group}")

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The struct as a packed NumPy dtype."""
        return np.dtype([(f.name, f.dtype, (f.count,)) if f.count > 1 else (f.name, f.dtype) for f in self.fields])

    @property
    def block_bytes(self) -> int:
        return sum(f.nbytes for f in self.fields)

    @property
    def unit(self) -> int:
        """Values that the rungs look at together: a block."""
        return self.block_size

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_size

    @property
    def groups(self) -> int:
        """Scales in a block."""
        return self.block_size // self.group

    @property
    def has_min(self) -> bool:
        """The block stores minima of its own."""
        return self.read_minima is not None or any(f.name == "m" for f in self.fields)

    @property
    def min_times_sum(self) -> bool:
        """The minimum meets the activations' stored s; else (in superblocks) the sum of their codes, times d_a."""
        return self.read_minima is None

    def field_offset(self, name: str) -> int:
        """Byte offset of a field in the block. Raises KeyError for an unknown name."""
        at = 0
        for f in self.fields:
            if f.name == name:
                return at
            at += f.nbytes
        raise KeyError(name)

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k values. Raises ValueError where k is not a whole number of blocks."""
        if k % self.block_size:
            raise ValueError(f"a row of {k} values is not a whole number of {self.name} blocks of {self.block_size}")
        return k // self.block_size * self.block_bytes

    def view(self, blocks: Bytes) -> Structs:
        """`uint8[..., block_bytes]` seen as structs `[...]`, without a copy where the blocks are contiguous."""
        packed = np.ascontiguousarray(blocks)
        return packed.view(self.dtype)[..., 0]

    def codes(self, blocks: Bytes) -> Codes:
        """The codes q, `[..., block_size]`: as stored, before the offset, or the integers that stand for them."""
        return self.read_codes(self.view(blocks))

    def scales(self, blocks: Bytes) -> Floats:
        """The scales d, `float32[..., groups]`."""
        if self.read_scales is not None:
            return self.read_scales(self.view(blocks))
        d = np.asarray(self.view(blocks)["d"]).astype(np.float32)
        return np.repeat(d[..., None], self.groups, axis=-1) if self.groups > 1 else d[..., None]

    def minima(self, blocks: Bytes) -> Floats:
        """The terms m of `d·q + m`, `float32[..., groups]`; exact, since offset is a power of two."""
        if self.read_minima is not None:
            return self.read_minima(self.view(blocks))
        if self.has_min:
            return np.asarray(self.view(blocks)["m"]).astype(np.float32)[..., None]
        return np.float32(-self.offset) * self.scales(blocks)

    def scale(self, blocks: Bytes) -> Floats:
        """The scale of a format that has one a block, `float32[...]`. Raises ValueError for another."""
        return self._one(self.scales(blocks))

    def minimum(self, blocks: Bytes) -> Floats:
        """The minimum of a format that has one a block, `float32[...]`. Raises ValueError for another."""
        return self._one(self.minima(blocks))

    def _one(self, values: Floats) -> Floats:
        if self.groups > 1:
            raise ValueError(f"{self.name} has {self.groups} groups a block")
        return np.asarray(values[..., 0])

    def decode(self, blocks: Bytes) -> Floats:
        """The values, `float32[..., block_size]`, bit-equal to llama.cpp's `to_float`.

        d·(q-offset) is exact in float32 in every format (significands of 24 bits at most together), so one rounding
        remains at most, that of adding m: contraction to a fused multiply-add cannot change it.
        """
        codes = self.codes(blocks)
        q = codes.astype(np.float32).reshape(*codes.shape[:-1], self.groups, self.group)
        if self.offset:
            q -= np.float32(self.offset)
        with np.errstate(invalid="ignore", over="ignore"):
            q *= self.scales(blocks)[..., None]
            if self.has_min:
                q += self.minima(blocks)[..., None]
        return q.reshape(codes.shape)

    def finite(self, blocks: Bytes) -> npt.NDArray[np.bool_]:
        """Whether all scales and minima of a block are finite numbers, and its values are, `bool[...]`."""
        with np.errstate(invalid="ignore", over="ignore"):
            scales = self.scales(blocks)
            sound = np.asarray((np.isfinite(scales) & np.isfinite(self.minima(blocks))).all(axis=-1))
            if self.read_sound is not None:
                sound &= self.read_sound(self.view(blocks))
            large = sound & (np.abs(scales).max(axis=-1) > _LARGE)
            if large.any():  # d is finite, d·q may not be
                sound[large] = np.isfinite(self.decode(blocks[large])).all(axis=-1)
        return sound

    def encode(self, x: Floats) -> Bytes:
        """Quantize `float32[..., block_size]` as llama.cpp's reference quantizer does.

        Raises ValueError for a format that only llama.cpp itself quantizes to.
        """
        if self.encode_values is None:
            raise ValueError(f"only llama.cpp quantizes to {self.name}")
        return self.encode_values(np.ascontiguousarray(x, dtype=np.float32))

    def pack(self, **members: npt.ArrayLike) -> Bytes:
        """Build blocks from the members of the struct, as `uint8[..., block_bytes]`."""
        first = self.fields[0]
        shape = np.shape(members[first.name])
        if first.count > 1:
            shape = shape[:-1]
        out = np.zeros(shape, self.dtype)
        for name, value in members.items():
            out[name] = value
        return out.view(np.uint8).reshape(*shape, self.block_bytes)
