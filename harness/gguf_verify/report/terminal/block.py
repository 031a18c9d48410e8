"""The block of a failure in a few lines: its fields with their bytes, and its codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...audit.block_reading import FieldBytes, read_block
from ...formats import ACTIVATION_FORMATS, ELEMENTS

_MOST_CODES = 64


def as_lines(kind: str, digits: str, title: str = "x-ray") -> list[str]:
    """Of a type's name and a block's bytes in hex, as a report has them; empty where its fields are not known.

    Of several blocks, the first.
    """
    content = bytes.fromhex(digits)
    if kind in ELEMENTS:
        whole = len(content) // ELEMENTS[kind].block_bytes * ELEMENTS[kind].block_bytes
        return [_values(title, ELEMENTS[kind].decode(np.frombuffer(content[:whole], np.uint8)[None])[0].tolist())]
    form = ACTIVATION_FORMATS.get(kind)
    try:
        read = read_block(kind, content if form is None else content[: form.block_bytes])
    except ValueError:
        return []
    return [*_fields(read.fields, title), *_codes(read.codes)]


def _fields(fields: tuple[FieldBytes, ...], title: str) -> Iterator[str]:
    """Single numbers in one line, then each field of several bytes."""
    single = [
        f"{f.field.name} = {f.values[0]:.6g}" if isinstance(f.values[0], float) else f"{f.field.name} = 0x{f.raw.hex()}"
        for f in fields
        if f.field.count == 1
    ]
    if single:
        yield f"{title}: {', '.join(single)}"
    yield from (f"{f.field.name:<4} {f.raw.hex(' ')}" for f in fields if f.field.count > 1)


def _values(title: str, values: list[float]) -> str:
    return f"{title}: {_numbers([f'{v:.6g}' for v in values])}"


def _codes(codes: tuple[int, ...]) -> Iterator[str]:
    if codes:
        yield f"q    {_numbers([str(code) for code in codes])}"


def _numbers(texts: list[str]) -> str:
    return " ".join(texts[:_MOST_CODES]) + (" …" if len(texts) > _MOST_CODES else "")
