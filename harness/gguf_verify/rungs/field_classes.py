"""Blocks and activations with each field at each class of its number format.

The fields, and the numbers that their bits hold, are those of `formats`: a format with a layout gets its probes from
it. A kernel that treats one class otherwise (a scale of −0, the largest half, a sub-scale of 0) is wrong in a block of
its own, where nothing larger hides the error.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
#: Of each bit of a number: its place in the block, and in the number.
Places = list[tuple[int, int]]

#: Classes of a half (IEEE 754 binary16): zero, the least and largest subnormal, the least normal, 1, the largest finite
#: one; then the same below zero. Fields of float32 get the same values: their own least ones vanish in a product.
HALVES = (0, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF)
_HALVES = np.array([*HALVES, *(bits | 0x8000 for bits in HALVES)], np.uint16)
#: Halves that are neither infinite nor NaN.
FINITE_HALVES = 2 * 31 * 1024
#: Parts of a floating-point number that are fields of a layout by themselves.
_PARTS = {"sign", "exponent", "mantissa", "unused"}
#: Members of an array that are also set one by one, at most.
_MOST_ALONE = 16


def numbers_of(fmt: BlockFormat) -> dict[str, list[Places]]:
    """The numbers that a block stores, by name: "x" for codes, in the order of their indices.

    Bits of one number may lie in several fields (the 6-bit scales of Q4_K).
    """
    found: dict[str, dict[int, Places]] = defaultdict(lambda: defaultdict(list))
    start = 0
    for item in fmt.fields:
        pieces = list(item.pieces())
        whole = {piece.name for piece in pieces} <= _PARTS
        apart = len({(p.name, p.low) for p in pieces if p.index is None}) < sum(p.index is None for p in pieces)
        for p in pieces:
            name = item.name if whole or p.index is None else p.name
            key = p.item if whole or (p.index is None and apart) else p.index or 0
            if p.index is None and not apart and not whole:
                name = f"{item.name} {p.name}"
            at = 8 * start + item.item_bits * p.item + p.shift
            low = p.shift if whole else p.low
            found[name][key] += [(at + t, low + t) for t in range(p.width)]
        start += item.nbytes
    return {name: [numbers[i] for i in sorted(numbers)] for name, numbers in found.items()}


def classes(width: int, each: bool) -> npt.NDArray[np.int64]:
    """Bit patterns of a number of `width` bits: the classes of a half or of a float32; the ends of unsigned and signed
    integers, and their neighbours; or, of up to 8 bits and if `each`, every pattern."""
    if width == 16:
        return _HALVES.astype(np.int64)
    if width == 32:
        return _HALVES.view(np.float16).astype(np.float32).view(np.uint32).astype(np.int64)
    if each and width <= 8:
        return np.arange(1 << width)
    middle, most = 1 << width - 1, (1 << width) - 1
    return np.unique(np.array([0, 1, middle - 1, middle, middle + 1, most - 1, most]) & most)


def every_class(fmt: BlockFormat, blocks: Bytes) -> Bytes:
    """uint8[n, block bytes] from `blocks` of the same width, in which numbers are set, and the rest is as it was.

    All numbers of a name get each class together; those of short arrays (scales of superblocks) also one by one; and
    two floating-point numbers (d and m, d and s) each pair of classes. Integer sums of the codes stay their sums, since
    a kernel may read either.
    """
    sums = [field for field in fmt.fields if "i" in field.dtype and {piece.name for piece in field.pieces()} == {"sum"}]
    numbers = {name: members for name, members in numbers_of(fmt).items() if not (sums and name == "sum")}
    sets: list[list[tuple[Places, int]]] = []
    for name, members in numbers.items():
        sets += [[(places, int(v)) for places in members] for v in classes(len(members[0]), True)]
        if name != "x" and 1 < len(members) <= _MOST_ALONE:
            sets += [[(places, int(v))] for places in members for v in classes(len(places), False)]
    floats = [members[0] for members in numbers.values() if len(members) == 1 and len(members[0]) in (16, 32)]
    for i, first in enumerate(floats):
        for second in floats[i + 1 :]:
            both = product(classes(len(first), False), classes(len(second), False))
            sets += [[(first, int(v)), (second, int(w))] for v, w in both]
    bits = np.unpackbits(np.resize(blocks, (len(sets), fmt.block_bytes)), axis=1, bitorder="little")
    for row, values in zip(bits, sets, strict=True):
        at, of = np.array([place for places, _ in values for place in places]).T
        row[at] = np.repeat([v for _, v in values], [len(places) for places, _ in values]) >> of & 1
    made = np.packbits(bits, axis=1, bitorder="little")
    for field in sums:
        fmt.view(made)[field.name] = fmt.codes(made).reshape(len(made), field.count, -1).sum(axis=-1)
    return made


def halves_of(fmt: BlockFormat) -> dict[str, Places]:
    """The numbers of 16 bits that a block has once, by name: its scale, its minimum, its sum."""
    numbers = numbers_of(fmt).items()
    return {name: members[0] for name, members in numbers if len(members) == 1 and len(members[0]) == 16}


def every_half(fmt: BlockFormat, block: Bytes, name: str) -> Bytes:
    """uint8[FINITE_HALVES, block bytes]: a block uint8[block bytes] with each finite half as the number of this name.
    Its other halves are 0, so that none hides the error of a small one."""
    patterns = np.arange(1 << 16)
    patterns = patterns[patterns & 0x7C00 != 0x7C00]
    made = np.tile(block, (len(patterns), 1))
    for of, places in halves_of(fmt).items():
        for at, low in places:
            made[:, at // 8] &= 0xFF ^ 1 << at % 8
            made[:, at // 8] |= ((patterns >> low & 1) * (of == name) << at % 8).astype(np.uint8)
    return made


def values_of_classes(k: int, largest_code: int = 127) -> Floats:
    """float32[M, K] whose scale d = max|x| / `largest_code`, or whose sum s of 32 values, is at each class of a half;
    and a scale that is rounded to 0 while s is not. Values have mixed signs, or one value has either sign."""
    sizes = np.array(HALVES[1:], np.uint16).view(np.float16).astype(np.float32)
    tiny = np.float32(2.0**-26)  # d is rounded to 0; 127 times it, 32 times, is 2^-14
    codes = (np.arange(k) * 37 % (2 * largest_code + 1) - largest_code).astype(np.float32)
    codes[::32] = largest_code
    alike = np.full(k, largest_code, np.float32)
    rows = [v * sign for v in (tiny, *sizes) for sign in (codes, alike, -alike)]
    rows += [np.full(k, sign * v / 32, np.float32) for v in sizes for sign in (1, -1)]
    return np.asarray(np.stack(rows), np.float32)


def numbers_of_classes(k: int) -> Floats:
    """float32[M, K] of numbers that a kernel takes as they are: zeros of either sign; each class of a half, of either
    sign, throughout and beside zeros only; powers of two; and all of these mixed. A float32 or a bfloat16 gets the same
    values: its own least ones vanish in a product, or are flushed to zero."""
    sizes, at = np.array(HALVES[1:], np.uint16).view(np.float16).astype(np.float32), np.arange(k)
    each = np.concatenate([sizes, -sizes])
    alone = np.zeros((len(each), k), np.float32)
    alone[np.arange(len(each)), np.arange(len(each)) * 37 % k] = each
    powers = np.ldexp(np.float32(1), at * 11 % 30 - 14)
    mixed = [each[(at * step + step) % len(each)] for step in (1, 3, 7, 9)]
    zeros = np.zeros((2, k), np.float32) * np.array([[1], [-1]], np.float32)
    return np.concatenate([zeros, np.repeat(each[:, None], k, axis=1), alone, np.stack([powers, -powers, *mixed])])


def elements_of_classes(fmt: ElementFormat, k: int) -> Bytes:
    """uint8[N, row bytes] of weights of such numbers."""
    rounded = fmt.round(numbers_of_classes(k))
    if fmt.block_bytes == 4:
        return rounded.astype("<f4").view(np.uint8)
    words = rounded.astype("<f2").view("<u2") if fmt.exponent == 5 else (rounded.view(np.uint32) >> 16).astype("<u2")
    return words.view(np.uint8)


def encodes_each(fmt: BlockFormat) -> bool:
    """Whether the fields of blocks of activations are independent: none is an integer sum of the codes, of which a
    kernel may read either."""
    return all(field.count == 1 or {piece.name for piece in field.pieces()} == {"x"} for field in fmt.fields)
