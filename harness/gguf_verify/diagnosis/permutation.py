"""Test whether a packing only moves bits, by planting bits.

Every bit of the rows gets a number, and in the t-th trial the bits whose number has bit t are flipped in a row of
zeros. A packed bit that copies (or inverts) one bit of the rows then flips in exactly the trials of its number; a
constant one never flips. The result is a hypothesis until it has predicted the packing of random rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: Most bits of rows for which a permutation is searched.
MOST_BITS = 1 << 25
#: Random rows whose packing it must predict.
_RANDOM = 2


@dataclass(frozen=True)
class Moves:
    """The sources of the bits of packed rows.

    Args:
        source: for each packed bit, the bit of the rows that it copies, or -1 for a constant one.
        zeros: the packed bits of rows of zeros.
    """

    source: npt.NDArray[np.int32]
    zeros: npt.NDArray[np.uint8]

    def packed(self, rows: Bytes) -> Bytes:
        """Return the packing of rows."""
        bits = np.unpackbits(rows.reshape(-1))
        moved = np.where(self.source < 0, 0, bits[self.source]) ^ self.zeros
        return np.packbits(moved.astype(np.uint8))

    def rows(self, packed: Bytes, shape: tuple[int, int]) -> Bytes:
        """Return the rows that were packed."""
        known = self.source >= 0
        bits = np.zeros(shape[0] * shape[1] * 8, np.uint8)
        bits[self.source[known]] = (np.unpackbits(packed) ^ self.zeros)[known]
        return np.packbits(bits).reshape(shape)


@dataclass(frozen=True)
class Lost:
    """Bits of rows that a packing drops: their number, the number of all, and the place of the first.

    `byte` is its byte in the rows, and `bit` its bit, where 7 is the highest.
    """

    count: int
    bits: int
    byte: int
    bit: int


def find_moves(pack: Callable[[Bytes], Bytes], shape: tuple[int, int], seed: int = 0) -> Moves | Lost | str:
    """Find how a packing moves the bits of rows uint8[shape].

    Args:
        pack: rows → packed bytes uint8[n].

    Returns the moves, the bits that it drops, or why it is no such packing, in words. Raises the exceptions of `pack`.
    """
    n = shape[0] * shape[1] * 8
    if n > MOST_BITS:
        return f"its rows have more than {MOST_BITS:,} bits"
    zeros = np.unpackbits(pack(np.zeros(shape, np.uint8)))
    numbers = np.arange(1, n + 1, dtype=np.uint32)
    found = np.zeros(len(zeros), np.uint32)
    for t in range(int(n).bit_length()):
        packed = np.unpackbits(pack(np.packbits((numbers >> t & 1).astype(np.uint8)).reshape(shape)))
        if packed.shape != zeros.shape:
            return "the size of what it makes depends on the rows' bytes"
        found |= (packed ^ zeros).astype(np.uint32) << t
    if (found > n).any():
        return "its bits are not those of the rows in another order"
    source = found.astype(np.int64).astype(np.int32) - 1
    moves = Moves(source, zeros)
    lost = np.ones(n, bool)
    lost[source[source >= 0]] = False
    rng = np.random.default_rng(seed)
    for _ in range(_RANDOM):
        rows = rng.integers(0, 256, shape, dtype=np.uint8)
        if not np.array_equal(pack(rows), moves.packed(rows)):
            return "its bits are not those of the rows in another order"
    if lost.any():
        first = int(lost.argmax())
        return Lost(int(lost.sum()), n, first // 8, 7 - first % 8)
    return moves
