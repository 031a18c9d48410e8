"""Random operands of fused kernels, seeded with the bytes of a call.

Each number only depends on the bytes of its own row of weights and of its own token, so a part of a product has the
same numbers as in the whole product: rows may be judged some at a time, tokens called some at a time. Every number has
7 significant bits, so float32, float16 and bfloat16 hold it exactly.
"""

from __future__ import annotations

import zlib
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .sums import Doubles

Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]

#: The unit for which an operand has one number.
Place = Literal["one", "row", "token", "output"]

#: Exponents of random numbers: halves hold them as normal numbers.
_LEAST, _MOST = -12, 12
#: Values of weights that are decoded at a time.
_CHUNK = 1 << 22
#: -log2 of the size of addends, in standard deviations of an output for activations of size 1. They are small so that
#: they do not hide the product in the rounding of a half output if the activations are small.
_SMALLER = 4


def _mixed(words: _Words) -> _Words:
    """Mix 64-bit words by a permutation in which all bits depend on all.

    The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    z = words + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def hashes(rows: Bytes, salt: str) -> _Words:
    """Return one word for each row of bytes, uint64[n], which depends on the salt."""
    seed = zlib.crc32(salt.encode())
    found = np.array([zlib.crc32(row, seed) for row in np.ascontiguousarray(rows)], np.uint64)
    return _mixed(found ^ np.uint64(seed) << np.uint64(32))


def keys_of_slots(x: Bytes, slots: npt.NDArray[np.integer[Any]]) -> Bytes:
    """Return the seeds of operands of slots, uint8[S, row bytes + 8]: a slot's activations, and its number.

    So the slots of a token have different operands.
    """
    return np.concatenate([x, np.ascontiguousarray(slots, np.int64)[:, None].view(np.uint8)], axis=1)


def numbers(words: _Words) -> Doubles:
    """Convert words to ±(64 … 127)/64 or half of that, float64."""
    sign = 1 - 2 * (words & np.uint64(1)).astype(np.float64)
    significand = (64 + (words >> np.uint64(1) & np.uint64(63)).astype(np.float64)) / 64
    return np.asarray(sign * significand * np.where(words >> np.uint64(7) & np.uint64(1), 1.0, 0.5))


def sizes(fmt: BlockFormat, w: Bytes) -> Doubles:
    """Return a power of two for each row of weights uint8[N, row bytes], float64[N]: the approximate size of an addend.

    It is derived from the largest value of the row, whose place does not matter, so it is the same in any part of W. An
    output for activations of size 1 is about √K·max|w|/3; an addend is about an eighth of that.
    """
    k = w.shape[1] // fmt.block_bytes * fmt.block_size
    step, exponents = max(1, _CHUNK // max(1, k)), np.zeros(len(w), np.int64)
    with np.errstate(all="ignore"):
        for start in range(0, len(w), step):
            part = w[start : start + step]
            values = np.abs(fmt.decode(part.reshape(len(part), -1, fmt.block_bytes)).reshape(len(part), -1))
            largest = np.where(np.isfinite(values), values, 0).max(axis=1)
            exponents[start : start + step] = np.where(largest > 0, np.frexp(largest)[1], 0)
    exponents += int(np.log2(max(1, k))) // 2 - _SMALLER
    return np.asarray(np.ldexp(1.0, np.clip(exponents, _LEAST, _MOST)))


def addend(place: Place, salt: str, fmt: BlockFormat, w: Bytes, x: Bytes) -> Doubles:
    """Return addends [N] or [M, N] for the product of weights uint8[N, row bytes] and activations uint8[M, row bytes].

    Raises ValueError for another place.
    """
    if place == "row":
        return np.asarray(numbers(hashes(w, salt)) * sizes(fmt, w))
    if place == "output":
        words = _mixed(hashes(x, salt)[:, None] + hashes(w, salt))
        return np.asarray(numbers(words) * sizes(fmt, w))
    raise ValueError(f"nothing is added to each {place}")


def factor(place: Place, salt: str, w: Bytes, x: Bytes) -> Doubles:
    """Return factors of the product, in [0.5, 2) and never 1: [1], [N] or [M]. Raises ValueError for "output"."""
    if place == "one":
        return np.array([0.6875])
    if place == "output":
        raise ValueError("no operation multiplies each output by a number of its own")
    found = np.abs(numbers(hashes(w if place == "row" else x, salt)))
    return np.where(found == 1, 1.25, found)


def companions(fmt: BlockFormat, w: Bytes) -> Bytes:
    """Return a second matrix of weights of the same shape, uint8[N, row bytes], each row derived from the row of w.

    A row's blocks are rotated, and some bits of their codes flipped: those of the largest field, which holds codes in
    every type. Blocks whose values would not be finite keep their bits.
    """
    blocks = np.ascontiguousarray(w).reshape(len(w), -1, fmt.block_bytes)
    count = blocks.shape[1]
    if not blocks.size:
        return w.copy()
    by = 1 + hashes(w, "up") % np.uint64(max(1, count - 1))
    at = (np.arange(count) + by.astype(np.int64)[:, None]) % count
    rotated = np.take_along_axis(blocks, at[..., None], axis=1)
    largest = max((f for f in fmt.fields if f.dtype != "<f2"), key=lambda f: f.nbytes)
    start = fmt.field_offset(largest.name)
    flipped = rotated.copy()
    flipped[..., start : start + largest.nbytes] ^= 0x55
    sound = fmt.finite(flipped)
    return np.ascontiguousarray(np.where(sound[..., None], flipped, rotated)).reshape(w.shape)
