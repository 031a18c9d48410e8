"""CRC-32 by several threads: zlib's CRC of each piece, then combined.

CRC-32 is a polynomial remainder over GF(2), so the CRC of two concatenated pieces is crc(a)·x^(8·|b|) + crc(b) modulo
the generator. Polynomials here have x^0 in their highest bit, as zlib's have.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

from .threads import each

#: Bytes per piece.
PIECE = 4 << 20
_GENERATOR, _ONE = 0xEDB88320, 1 << 31


def crc32_of(read: Callable[[int, int], memoryview], nbytes: int, threads: int) -> int:
    """Return `zlib.crc32` of `nbytes` bytes.

    Args:
        read: returns `count` bytes from `first` on, as read(first, count); called by several threads.
    """
    if nbytes <= PIECE:
        return zlib.crc32(read(0, nbytes))
    starts = range(0, nbytes, PIECE)
    parts = each(lambda at: zlib.crc32(read(at, min(PIECE, nbytes - at))), starts, threads)
    total = parts[0]
    for at, part in zip(starts[1:], parts[1:], strict=True):
        total = _times(_behind(min(PIECE, nbytes - at)), total) ^ part
    return total


def crc32(data: memoryview, threads: int) -> int:
    """Return `zlib.crc32` of contiguous bytes, computed by at most `threads` threads."""
    return crc32_of(lambda at, count: data[at : at + count], len(data), threads)


def _times(a: int, b: int) -> int:
    """Multiply two polynomials modulo the generator."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_GENERATOR if b & 1 else 0)
    return product


@cache
def _behind(nbytes: int) -> int:
    """Return x^(8·nbytes) modulo the generator."""
    power, square, n = _ONE, _ONE >> 8, nbytes
    while n:
        if n & 1:
            power = _times(power, square)
        square, n = _times(square, square), n >> 1
    return power
