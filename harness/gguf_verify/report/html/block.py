"""The x-ray of a failing block for a page: its bytes by field, the fields' values, and the values that they make.
For blocks of weights, and for the activations that they are multiplied by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...audit.block_reading import FieldBytes, Reading, read_block
from ...formats.tensor_types import ACTIVATION_FORMATS, ELEMENTS, FORMATS


class Part(NamedTuple):
    """A field: its offset, its bytes in hex, its type and its values."""

    name: str
    start: int
    bytes: tuple[str, ...]
    kind: str
    value: str
    doc: str


class Value(NamedTuple):
    """A value: its place in the block, its code as stored, decoded."""

    at: int
    code: str
    value: str


@dataclass(frozen=True)
class Block:
    """The contents of a block; `why` explains what is missing, if anything is."""

    type: str
    n_bytes: int
    rule: str = ""
    parts: Sequence[Part] = ()
    scales: Sequence[str] = ()
    values: Sequence[Value] = field(default_factory=list)
    why: str = ""


def of(kind: str, digits: str) -> Block | None:
    """Of a type's name and a block's bytes in hex, as a report has them; None where they are no bytes."""
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    if not raw:
        return None
    unread = Part("", 0, tuple(f"{b:02x}" for b in raw), "", "", "")
    fmt = FORMATS.get(kind) or ACTIVATION_FORMATS.get(kind)
    if fmt is None and kind not in ELEMENTS:
        return Block(
            kind, len(raw), parts=[unread], why=f"the fields of {kind or 'a tensor without a type'} are not known"
        )
    try:
        read = read_block(kind, raw)
    except ValueError as error:
        return Block(kind, len(raw), parts=[unread], why=f"not decoded: {error}")
    values = [
        Value(i, str(code), number(x)) for i, (code, x) in enumerate(zip(read.codes, read.ours or (), strict=True))
    ]
    return Block(kind, len(raw), read.rule, [_part(f) for f in read.fields], _scales(read), values)


def of_activations(kind: str, digits: str, most: int = 8) -> list[Block]:
    """The x-rays of one block of activations or of several, one after the other; none where they are no bytes."""
    fmt = ACTIVATION_FORMATS.get(kind)
    size = len(digits) if fmt is None else 2 * fmt.block_bytes
    found = [of(kind, digits[at : at + size]) for at in range(0, len(digits), max(1, size))][:most]
    return [made for made in found if made is not None]


def number(value: float) -> str:
    return f"{value:.6g}"


def _part(f: FieldBytes) -> Part:
    kind = f.field.c_type + (f"[{f.field.count}]" if f.field.count > 1 else "")
    value = ""
    if f.field.count == 1:
        value = number(f.values[0]) if isinstance(f.values[0], float) else f"0x{int.from_bytes(f.raw, 'little'):x}"
    return Part(f.field.name, f.start, tuple(f"{b:02x}" for b in f.raw), kind, value, f.field.doc)


def _scales(read: Reading) -> list[str]:
    if read.scale is not None:
        return [f"d {number(read.scale)}" + ("" if read.minimum is None else f", m {number(read.minimum)}")]
    out = []
    for g, d in enumerate(read.scales):
        out.append(f"d {number(d)}" + (f", m {number(read.minima[g])}" if read.minima else ""))
    return out
