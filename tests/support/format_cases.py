"""Blocks and values for tests of formats, and the two decoders and encoders under one interface."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ACTIVATION_FORMATS, FORMATS
from tests.support.slow_encoders import ENCODERS

Bytes = npt.NDArray[np.uint8]


Floats = npt.NDArray[np.float32]


ALL = FORMATS | ACTIVATION_FORMATS


QK = 32


#: At most so many bytes of blocks (values: half of it) a case for the slow decoder, evenly spread; in `make test-all`
#: eight times as many.
SCALAR_BYTES = 512 * 18
SCALAR_BYTES_OF_ALL = 4096 * 18


def vectorised_decode(fmt: BlockFormat, blocks: Bytes) -> Floats:
    return fmt.decode(blocks)


def scalar_decode(fmt: BlockFormat, blocks: Bytes) -> Floats:
    return np.array([fmt.slow_decode(b.tobytes()) for b in blocks], np.float32)


def scalar_decode_of_more(fmt: BlockFormat, blocks: Bytes) -> Floats:
    """The same on a larger sample."""
    return scalar_decode(fmt, blocks)


def scalar_encode(fmt: BlockFormat, x: Floats) -> Bytes:
    return np.array([list(ENCODERS[fmt.name](row.tolist())) for row in x], np.uint8)


def sample(cases: npt.NDArray, implementation: Callable) -> npt.NDArray:
    at_most = {
        scalar_decode: SCALAR_BYTES // cases.shape[1],
        scalar_decode_of_more: SCALAR_BYTES_OF_ALL // cases.shape[1],
        scalar_encode: 4096,
    }
    most = at_most.get(implementation, len(cases))
    if len(cases) > most:
        return cases[np.linspace(0, len(cases) - 1, most).astype(int)]
    return cases


def generator(*names: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


Numbers = dict[str, npt.NDArray[np.int64]]


#: Values of a float of 4 bits, in halves: sign, two bits of exponent, one of mantissa.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


@dataclass(frozen=True)
class Place:
    """Where bits of a block belong: bits `low` up to `low + width` of `name[member]`."""

    bit: int
    width: int
    name: str
    member: int
    low: int


def places(fmt: BlockFormat) -> list[Place]:
    """The layout of a block as one list. Where words stand for many items alike, each item is a member."""
    out: list[Place] = []
    for field in fmt.fields:
        pieces = list(field.pieces())
        alike = Counter((p.name, p.low) for p in pieces if p.index is None)
        start: dict[str, int] = {}
        for p in pieces:
            member = p.index or 0
            if p.index is None and alike[p.name, p.low] > 1:
                member = p.item - start.setdefault(p.name, p.item)
            at = 8 * fmt.field_offset(field.name) + field.item_bits * p.item + p.shift
            out.append(Place(at, p.width, p.name, member, p.low))
    return out


def members(fmt: BlockFormat) -> dict[str, tuple[int, int]]:
    """name → (how many members, bits of each). Each bit of each must have just one place."""
    bits: dict[str, list[tuple[int, int]]] = {}
    for p in places(fmt):
        bits.setdefault(p.name, []).extend((p.member, p.low + k) for k in range(p.width))
    out = {}
    for name, found in bits.items():
        count, width = (max(b[i] for b in found) + 1 for i in (0, 1))
        assert sorted(found) == [(i, k) for i in range(count) for k in range(width)], (fmt.name, name)
        out[name] = count, width
    return out


def written(fmt: BlockFormat, numbers: Numbers) -> Bytes:
    """Blocks that hold these numbers, put together by the layout."""
    n = len(next(iter(numbers.values())))
    bits = np.zeros((n, 8 * fmt.block_bytes), np.uint8)
    for p in places(fmt):
        for k in range(p.width):
            bits[:, p.bit + k] = numbers[p.name][:, p.member] >> (p.low + k) & 1
    return np.packbits(bits, axis=1, bitorder="little")
