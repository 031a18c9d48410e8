"""The meaning of each bit of a block, as data: the fields of the struct, their items, and the bits of each item.

The bit diagrams (`diagram.py`), the audit's view of a block and the tests of the decoders are all derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Bits:
    """Neighbouring bits of an item of a field that have one meaning.

    Args:
        width: the number of bits.
        name: their meaning: "x" for bits of a value's code, the name of another packed array, or plain words.
        index: the value (or the member of that array) that they belong to in the first item of their group; None if
            there is only one.
        low: the place of the lowest of these bits in that value or member.
        step: the increment of the index from one item of the group to the next.
    """

    width: int
    name: str
    index: int | None = None
    low: int = 0
    step: int = 1


@dataclass(frozen=True)
class Items:
    """A group of items of a field with the same layout of bits: item `items[j]`, with j counted from 0.

    Args:
        items: the numbers of the items in the field.
        bits: the bits of each item, from the high bit to the low.
    """

    items: range
    bits: tuple[Bits, ...]


def each(count: int, *bits: Bits) -> tuple[Items]:
    """Return the layout of a field of `count` items with the same layout."""
    return (Items(range(count), bits),)


@dataclass(frozen=True)
class Piece:
    """Bits `shift` to `shift + width - 1` of one item are bits `low` and up of `name[index]`. See `Bits`."""

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
        if any(sum(bits.width for bits in group.bits) != self.item_bits for group in self.layout):
            raise ValueError(f"the layout of {self.name} is not one of {self.item_bits} bits")

    @cached_property
    def item_bits(self) -> int:
        return 8 * np.dtype(self.dtype).itemsize

    @cached_property
    def nbytes(self) -> int:
        return self.item_bits // 8 * self.count

    @property
    def c_type(self) -> str:
        """The C type of an item, as a kernel's author would write it."""
        name = np.dtype(self.dtype).name
        return {"float16": "half", "float32": "float"}.get(name, name)

    def pieces(self) -> Iterator[Piece]:
        """Yield the meaning of each bit: group by group, item by item, from the high bit to the low."""
        for group in self.layout:
            for j, item in enumerate(group.items):
                shift = self.item_bits
                for bits in group.bits:
                    shift -= bits.width
                    index = None if bits.index is None else bits.index + bits.step * j
                    yield Piece(item, shift, bits.width, bits.name, index, bits.low)
