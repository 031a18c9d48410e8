"""The header of a safetensors file."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path

from gguf_verify.audit.safetensors import MAX_DIMENSIONS, SIZES, read_header
from gguf_verify.gguf.mapped import Mapped
from gguf_verify.support.errors import MalformedFile
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line


def file_of(header: bytes, data: bytes) -> bytes:
    """A file with this header."""
    return struct.pack("<Q", len(header)) + header + data


def seeds() -> Iterator[bytes]:
    """Files with no, one and several tensors, and such that the format forbids."""
    one = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    two = {"v": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]}}
    strange = {"x": {"dtype": "F4", "shape": [], "data_offsets": [24, 30]}}
    for said in ({}, one, one | two, one | two | strange, {"__metadata__": {"format": "pt"}} | one):
        yield file_of(json.dumps(said).encode(), bytes(range(32)))
    for said in (
        {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}},
        {"w": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}, "v": two["v"] | {"data_offsets": [8, 16]}},
        {"w": {"dtype": "F32", "shape": [-1, True], "data_offsets": [0, 1e3]}},
    ):
        yield file_of(json.dumps(said).encode(), bytes(16))
    yield file_of(b'{"w":1,"w":2}', b"")
    yield file_of(b"[]", b"")
    yield struct.pack("<Q", 1 << 63) + b"{}"
    yield b"short"


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A value of the header changed, its length kept right; or any bytes."""
    if rng.randrange(4) == 0 or len(data) < 8:
        return mutations.of_bytes(data, rng)
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8)
    return file_of(mutations.of_json(data[8 : 8 + length], rng), data[8 + length :])


def check(folder: Path, data: bytes) -> None:
    """Each tensor lies in the file, has the bytes of its shape, and shares none."""
    path = folder / "fuzzed.safetensors"
    path.write_bytes(data)
    mapped = Mapped(path) if data else None
    if mapped is None:
        return
    try:
        with refused_in_one_line(MalformedFile):
            found = read_header(mapped)
            assert found == read_header(mapped)
            spans = []
            for entry in found.values():
                assert entry.dtype.isprintable()
                assert len(entry.shape) <= MAX_DIMENSIONS
                size = prod(entry.shape) * SIZES.get(entry.dtype, 0)
                assert 8 <= entry.offset <= entry.offset + size <= len(data)
                if size:
                    spans.append((entry.offset, entry.offset + size))
            assert all(stop <= start for (_, stop), (start, _) in pairwise(sorted(spans)))
    finally:
        mapped.close()


TARGET = Target(
    "safetensors", "a safetensors file", seeds, check, mutate, inputs=500, covered=("gguf_verify.audit.safetensors",)
)
