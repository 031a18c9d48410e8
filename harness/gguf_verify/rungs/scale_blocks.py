"""Blocks with every half as a scale, and every code under each of them, as far as a block can hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat

Bytes = npt.NDArray[np.uint8]

#: Numbers that a half can be.
HALVES = 1 << 16
#: The most values of a block whose codes are chosen; those of superblocks are random.
_MOST_VALUES = 64
#: Values of the blocks that are made at a time.
_AT_A_TIME = 1 << 22


def any_bits(fmt: BlockFormat, n: int, seed: int) -> Bytes:
    """uint8[n, block bytes]: random bytes, also of scales that are NaN and infinite."""
    return np.random.default_rng((seed, 1)).integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)


def every_scale(fmt: BlockFormat, seed: int, brief: bool = False) -> Iterator[Bytes]:
    """Blocks uint8[n, block bytes], some at a time, in which every scale of 16 bits takes each of its values, and every
    scale of 8 bits, too; the other bits are random. Where codes are bits of their own, each code occurs under each
    scale, if a block has as many values as there are codes; else under some, or, unless `brief`, also under each.

    Args:
        brief: one of 16 scales.
    """
    bits = fmt.stored_bits if fmt.block_size <= _MOST_VALUES and all(map(len, _code_bits(fmt))) else 0
    rounds = 1 if brief or not bits else max(1, (1 << bits) // fmt.block_size)
    step = 16 if brief else 1
    size = max(1, _AT_A_TIME // fmt.block_size)
    for number in range(rounds):
        for start in range(0, HALVES // step, size):
            which = np.arange(start, min(start + size, HALVES // step)) * step + (seed % step)
            yield _blocks(fmt, which, number, bits, seed)


def _blocks(fmt: BlockFormat, which: npt.NDArray[np.intp], number: int, bits: int, seed: int) -> Bytes:
    rng = np.random.default_rng((seed, 2, number, int(which[0])))
    blocks = rng.integers(0, 256, (len(which), fmt.block_bytes), dtype=np.uint8)
    if bits:
        at = np.arange(fmt.block_size)
        codes = (at * max(1, (1 << bits) // fmt.block_size) + which[:, None] + number) % (1 << bits)
        _write_codes(fmt, blocks, codes)
    structs = fmt.view(blocks)
    for i, item in enumerate(fmt.fields):
        pattern = (which * (1 if i == 0 else 40503 + 2 * i) + i) % HALVES
        if item.dtype == "<f2" and item.count == 1:
            structs[item.name] = pattern.astype("<u2").view("<f2")
        elif item.dtype == "u1" and item.count == 1:
            structs[item.name] = pattern % 256
    return blocks


def _code_bits(fmt: BlockFormat) -> list[list[tuple[int, int]]]:
    """For each value of a block, (its bit in the block, the bit of its code) of every bit that the block stores."""
    places: list[list[tuple[int, int]]] = [[] for _ in range(fmt.block_size)]
    start = 0
    for item in fmt.fields:
        for piece in item.pieces():
            if piece.name == "x" and piece.index is not None:
                at = 8 * start + item.item_bits * piece.item + piece.shift
                places[piece.index] += [(at + t, piece.low + t) for t in range(piece.width)]
        start += item.nbytes
    return places


def _write_codes(fmt: BlockFormat, blocks: Bytes, codes: npt.NDArray[np.integer]) -> None:
    """Write codes[n, values] into the bits that blocks uint8[n, block bytes] store for them."""
    bits = np.unpackbits(blocks, axis=1, bitorder="little")
    for value, places in enumerate(_code_bits(fmt)):
        for at, bit in places:
            bits[:, at] = codes[:, value] >> bit & 1
    blocks[...] = np.packbits(bits, axis=1, bitorder="little")
