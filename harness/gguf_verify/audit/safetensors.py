"""Parser for the untrusted header of a safetensors file.

The format: a length in eight bytes, little-endian; a JSON object of that length, name → {dtype, shape, data_offsets};
the data, to which the offsets are relative (https://huggingface.co/docs/safetensors, format 0.4 and later, which limits
the header to 100 MB, and allows neither holes nor overlaps).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from ..gguf.mapped import Mapped
from ..support.errors import MalformedFile
from ..support.text import printable, quoted

MAX_HEADER = 100_000_000
MAX_DIMENSIONS = 8
#: dtype → bytes of a value. Tensors of other dtypes are listed but not compared.
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tensor: its dtype, its shape as in PyTorch (rows first), and the absolute offset of its data in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_header(mapped: Mapped) -> dict[str, Entry]:
    """Return the tensors of a file by name. Raises MalformedFile with one line."""
    raw, path = mapped.read(), mapped.path
    if mapped.size < 8:
        raise _malformed(path, f"it has {mapped.size} bytes, fewer than the eight of a header's length")
    (length,) = struct.unpack("<Q", raw[:8].tobytes())
    if not 2 <= length <= min(MAX_HEADER, mapped.size - 8):
        raise _malformed(path, f"byte 0: a header of {length:,} bytes in a file of {mapped.size:,}")
    made = read_json(raw[8 : 8 + length].tobytes(), path)
    data = 8 + length
    found: dict[str, Entry] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in made.items():
        if name == "__metadata__":
            continue
        dtype, shape, start, stop = _entry(path, name, entry)
        if stop > mapped.size - data:
            raise _malformed(path, f"{quoted(name)} ends at byte {data + stop:,} of {mapped.size:,}")
        if dtype in SIZES and prod(shape) * SIZES[dtype] != stop - start:
            raise _malformed(path, f"{quoted(name)} has {stop - start:,} bytes for {prod(shape):,} values of {dtype}")
        found[name] = Entry(dtype, shape, data + start)
        if stop > start:
            spans.append((start, stop, name))
    spans.sort()
    for (_, stop, one), (start, _, other) in pairwise(spans):
        if start < stop:
            raise _malformed(path, f"{quoted(one)} and {quoted(other)} share bytes")
    return found


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        right = isinstance(dtype, str) and all(_size(n) for n in (*shape, start, stop)) and start <= stop
        right = right and len(shape) <= MAX_DIMENSIONS
    except (TypeError, KeyError, ValueError):
        right = False
    if not right:
        raise _malformed(path, f"the entry of {quoted(name)} is not a valid dtype, shape and data_offsets")
    return printable(dtype, 20), tuple(shape), start, stop


def _size(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 62


def read_json(raw: bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object without duplicate names. Raises MalformedFile."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise _malformed(path, "a name occurs twice in an object of its JSON")
        return made

    try:
        made = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError, OverflowError) as error:
        raise _malformed(path, f"its header is not JSON: {printable(str(error), 100)}") from None
    if not isinstance(made, dict):
        raise _malformed(path, "its header is not a JSON object")
    return made


def _malformed(path: Path, what: str) -> MalformedFile:
    return MalformedFile(f"{printable(str(path))}: not a safetensors file: {what}")
