"""The record of a block format: data that describe a quantized type completely.

Sizes, offsets and traits that follow from the layout are derived, never written down. A quantized row of K values is K
/ block_size contiguous blocks of block_bytes each. All arrays of blocks here are `uint8[..., block_bytes]`; all arrays
of values are `float32[..., block_size]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from ..support.arrays import Array, on_host
from .kernel_table import KernelTable
from .layout import Field
from .llama_products import LlamaProducts

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8] | npt.NDArray[np.int8]
Structs = npt.NDArray[np.void]

#: Under any smaller finite scale, every code gives a finite value.
_LARGE = 2.0**100
#: Values of one block of activations for CUDA kernels, and of a legacy block of weights.
QK = 32
#: Values of a superblock.
QK_K = 256
_NOT_WEIGHTS = LlamaProducts()
#: The `type_id` of a layout without a number in ggml, since no file contains it.
NO_TYPE_ID = -1


@dataclass(frozen=True)
class Members:
    """Blocks uint8[..., block_bytes] on a GPU as structs `[...]`, since arrays there have no struct types.

    A member of several bytes is copied, since a GPU only reads it at a multiple of its size.
    """

    fmt: BlockFormat
    blocks: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the structs."""
        return tuple(self.blocks.shape[:-1])

    def __getitem__(self, name: str) -> Array:
        """Return a member of all structs. Raises KeyError for an unknown name."""
        at = self.fmt.field_offset(name)
        field = next(f for f in self.fmt.fields if f.name == name)
        dtype, raw = np.dtype(field.dtype), self.blocks[..., at : at + field.nbytes]
        items = (raw if dtype.itemsize == 1 else raw.copy()).view(dtype)
        return items if field.count > 1 else items[..., 0]


@dataclass(frozen=True, kw_only=True)
class BlockFormat:
    """A quantized type whose value i of a block is `d[g]·q[i] + m[g]`, where g = i // group.

    Every type of llama.cpp has this form: scales of a superblock are multiplied out; signs, zero points, grids and
    tables of non-linear values are part of the integers q. If the file stores no minimum, m is `-offset·d` (Q4_0:
    offset 8) or zero; those formats keep their codes as stored, before the offset, because kernels that use the sum s
    of the activations work with these.

    Args:
        name: ggml's name of the type.
        type_id: ggml's number of the type (`enum ggml_type`); NO_TYPE_ID if ggml has none.
        file_type: llama.cpp's number of files of this main type (`enum llama_ftype`), of several recipes the medium
            one; None if there is none.
        not_quantized_alone: why llama.cpp cannot quantize a whole file to the type without further input; empty if it
            can.
        recipes: names of file types whose tensors are mainly of this type although their name differs
            (`llama_ftype_get_default_type`).
        block_size: values in a block.
        fields: the members of the struct in file order, without padding.
        bits: the codes lie in `low` up to, not including, `low + 2^bits`.
        offset: subtracted from a code before scaling.
        source: the source of the layout and the rule.
        rule: the decoding of a value, as text.
        read_codes: `structs -> codes[..., block_size]`.
        encode_values: `float32[..., block_size] -> blocks`, llama.cpp's reference quantizer, bit for bit; None if only
            llama.cpp itself quantizes to the type.
        slow_decode: one block's bytes → its values, in plain Python, which shares nothing with the rest: see `_slow`.
        group: values that share a scale: 16, 32 or the whole block.
        low: the smallest code.
        zero: the zero point that is part of the codes: the file holds code + zero. Some code multiplies that and
            subtracts the product of the zero point.
        read_scales: `structs -> float32[..., groups]`; None if the field d is the scale of all.
        read_minima: `structs -> float32[..., groups]`; None if the field m, if there is one, is the minimum of all.
        read_sound: `structs -> bool[...]`: False for a block whose bits mean NaN although they decode as a number; None
            if there are no such bits.
        make_finite: makes the scales of structs of random bytes finite, in place, with a random generator; None if
            finite fields of type half suffice.
        llama: the definitions of llama.cpp's products with such weights.
        activations: some definition quantizes activations to it.
        tables: the tables that its CUDA header includes.
    """

    name: str
    type_id: int
    block_size: int
    fields: tuple[Field, ...]
    bits: int
    read_codes: Callable[[Structs], Codes]
    slow_decode: Callable[[bytes], list[float]]
    encode_values: Callable[[Floats], Bytes] | None = None
    file_type: int | None = None
    not_quantized_alone: str = ""
    recipes: tuple[str, ...] = ()
    offset: int = 0
    source: str = "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)"
    rule: str = "x = d·q"
    group: int = 32
    low: int = 0
    zero: int = 0
    read_scales: Callable[[Structs], Floats] | None = None
    read_minima: Callable[[Structs], Floats] | None = None
    read_sound: Callable[[Structs], npt.NDArray[np.bool_]] | None = None
    make_finite: Callable[[Structs, np.random.Generator], None] | None = None
    llama: LlamaProducts = _NOT_WEIGHTS
    activations: bool = False
    tables: tuple[KernelTable, ...] = ()

    def __post_init__(self) -> None:
        if self.block_size % self.group:
            raise ValueError(f"{self.name}: blocks of {self.block_size} are not whole groups of {self.group}")

    def __hash__(self) -> int:
        return hash(self.name)  # that of all fields takes as long as a small dictionary's other work

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The struct as a packed NumPy dtype."""
        return np.dtype([(f.name, f.dtype, (f.count,)) if f.count > 1 else (f.name, f.dtype) for f in self.fields])

    @cached_property
    def block_bytes(self) -> int:
        return sum(f.nbytes for f in self.fields)

    @property
    def unit(self) -> int:
        """Values that the rungs report as one block."""
        return self.block_size

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_size

    @property
    def groups(self) -> int:
        """Scales in a block."""
        return self.block_size // self.group

    @cached_property
    def has_min(self) -> bool:
        """Whether the block stores its own minima."""
        return self.read_minima is not None or any(f.name == "m" for f in self.fields)

    @property
    def min_times_sum(self) -> bool:
        """Whether the minimum is multiplied by the activations' stored s; in superblocks, by the sum of their codes
        times d_a.
        """
        return self.read_minima is None

    # -- traits that follow from the layout ----------------------------------------------------------------------------

    @property
    def weights(self) -> bool:
        """Whether matrices of a file may have this type: llama.cpp multiplies them."""
        return bool(self.llama.cpu)

    @property
    def to_float(self) -> bool:
        """Whether llama.cpp converts it to float32 (`to_float` in ggml.c's `type_traits`); it does for all weights."""
        return self.weights

    @property
    def macros(self) -> dict[str, str]:
        """The macros of a kernel for such weights: the struct, its header in kernels/formats, and its size."""
        header = f'"{self.name.lower()}.cuh"'
        return {"FORMAT": self.name, "FORMAT_HEADER": header, "BLOCK_BYTES": str(self.block_bytes)}

    @cached_property
    def stored_bits(self) -> int:
        """Bits that a block stores for each code: those named "x" in the layout."""
        return sum(p.width for f in self.fields for p in f.pieces() if p.name == "x") // self.block_size

    @cached_property
    def nibble_distance(self) -> int | None:
        """The distance of the two values whose codes share a byte, a nibble each; None if there are none."""
        for f in self.fields:
            for group in f.layout:
                low, high = group.bits[-1], group.bits[0]
                if [(b.width, b.name, b.low) for b in group.bits] == [(4, "x", 0)] * 2:
                    return (high.index or 0) - (low.index or 0)
        return None

    @cached_property
    def has_fifth_bits(self) -> bool:
        """Whether the fifth bits of the codes are stored separately from the other four, one bit for each value."""
        bits = (b for f in self.fields for group in f.layout for b in group.bits)
        return any((b.width, b.name, b.low) == (1, "x", 4) for b in bits)

    @property
    def has_half_scale(self) -> bool:
        """Whether a block has one scale, which is a half."""
        return self.read_scales is None and any(f.name == "d" and f.dtype == "<f2" for f in self.fields)

    @property
    def legacy(self) -> bool:
        """Whether llama.cpp calls it a legacy quant: 32 values under one half scale, with plain codes."""
        plain = self.block_size == QK and self.has_half_scale and self.stored_bits == self.bits
        return plain and self.weights

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def field_offset(self, name: str) -> int:
        """Return the byte offset of a field in the block. Raises KeyError for an unknown name."""
        at = 0
        for f in self.fields:
            if f.name == name:
                return at
            at += f.nbytes
        raise KeyError(name)

    def row_bytes(self, k: int) -> int:
        """Return the bytes of a row of k values. Raises ValueError if k is not a whole number of blocks."""
        if k % self.block_size:
            raise ValueError(f"a row of {k} values is not a whole number of {self.name} blocks of {self.block_size}")
        return k // self.block_size * self.block_bytes

    def view(self, blocks: Bytes) -> Structs:
        """View `uint8[..., block_bytes]` as structs `[...]`, on a GPU as `Members`; without a copy if contiguous."""
        if not on_host(blocks):
            return cast(Structs, Members(self, blocks))
        packed = np.ascontiguousarray(blocks)
        return packed.view(self.dtype)[..., 0]

    def codes(self, blocks: Bytes) -> Codes:
        """Return the codes q, `[..., block_size]`: as stored, before the offset, or the integers they stand for."""
        return self.read_codes(self.view(blocks))

    def scales(self, blocks: Bytes) -> Floats:
        """Return the scales d, `float32[..., groups]`."""
        if self.read_scales is not None:
            return self.read_scales(self.view(blocks))
        d = self.view(blocks)["d"].astype(np.float32)
        return np.repeat(d[..., None], self.groups, axis=-1) if self.groups > 1 else d[..., None]

    def minima(self, blocks: Bytes) -> Floats:
        """Return the terms m of `d·q + m`, `float32[..., groups]`; exact, since offset is a power of two."""
        if self.read_minima is not None:
            return self.read_minima(self.view(blocks))
        if self.has_min:
            return self.view(blocks)["m"].astype(np.float32)[..., None]
        return np.float32(-self.offset) * self.scales(blocks)

    def scale(self, blocks: Bytes) -> Floats:
        """Return the scale of a format with one per block, `float32[...]`. Raises ValueError for another."""
        return self._one(self.scales(blocks))

    def minimum(self, blocks: Bytes) -> Floats:
        """Return the minimum of a format with one per block, `float32[...]`. Raises ValueError for another."""
        return self._one(self.minima(blocks))

    def _one(self, values: Floats) -> Floats:
        if self.groups > 1:
            raise ValueError(f"{self.name} has {self.groups} groups a block")
        return values[..., 0]

    def decode(self, blocks: Bytes) -> Floats:
        """Decode to values, `float32[..., block_size]`, bit-equal to llama.cpp's `to_float`.

        d·(q-offset) is exact in float32 in every format (the significands have 24 bits at most together). So there is
        at most one rounding, that of adding m, and contraction to a fused multiply-add cannot change it.
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
        """Return whether all scales, minima and values of a block are finite numbers, `bool[...]`."""
        with np.errstate(invalid="ignore", over="ignore"):
            scales = self.scales(blocks)
            sound = np.asarray((np.isfinite(scales) & np.isfinite(self.minima(blocks))).all(axis=-1))
            if self.read_sound is not None:
                sound &= self.read_sound(self.view(blocks))
            large = sound & (np.abs(scales).max(axis=-1) > _LARGE)
            if large.any():  # d is finite, but d·q may overflow
                sound[large] = np.isfinite(self.decode(blocks[large])).all(axis=-1)
        return sound

    def encode(self, x: Floats) -> Bytes:
        """Quantize `float32[..., block_size]` as llama.cpp's reference quantizer does.

        Raises ValueError for a format that only llama.cpp itself quantizes to, and if the last axis is no block.
        """
        if x.shape[-1:] != (self.block_size,):
            raise ValueError(f"{self.name} has blocks of {self.block_size} values, not arrays of {list(x.shape)}")
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


def decodes_rightly(fmt: BlockFormat, blocks: Bytes) -> bool:
    """Return whether `BlockFormat.decode` agrees with the format's slow decoder on blocks uint8[n, block_bytes].

    The two share nothing.
    """
    if not len(blocks):
        return True
    with np.errstate(all="ignore"):
        ours = fmt.decode(blocks)
        slow = np.array([fmt.slow_decode(block.tobytes()) for block in blocks], np.float64).astype(np.float32)
    same = (ours.view(np.uint32) == slow.view(np.uint32)) | (np.isnan(ours) & np.isnan(slow))
    return bool(same.all())
