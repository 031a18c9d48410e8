"""Our decoding of one block: fields, scales, codes by their bits, and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.block import BlockFormat
from ..formats.layout import Field, Piece
from ..formats.tensor_types import ACTIVATION_FORMATS, ELEMENTS, FORMATS, decode_elements

_COVERED = FORMATS | ACTIVATION_FORMATS


@dataclass(frozen=True)
class FieldBytes:
    """A field of a block.

    Args:
        field: its description.
        start, stop: byte range in the block, half-open.
        offset: absolute byte offset in the file.
        raw: its bytes.
        values: its items: halves as floats, everything else as integers.
    """

    field: Field
    start: int
    stop: int
    offset: int
    raw: bytes
    values: tuple[int | float, ...]


@dataclass(frozen=True)
class Part:
    """One part of every code: the bits that one field holds. A code may be composed of several parts.

    Args:
        name: the field that holds it; for an element "sign", "exponent" or "mantissa".
        high, low: its range of bits in the code.
        values: the part of each value's code, in order.
    """

    name: str
    high: int
    low: int
    values: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Our decoding of some bytes; empty by default.

    Args:
        rule: the formula of a value from its code; "" if our decoder does not support the type.
        fields: of the struct, in file order; empty likewise.
        scale: d; None if groups of values have their own scales.
        minimum: m of `d·q + m`; None if there is none.
        minimum_is: "stored", or its formula, or "".
        scales, minima: of each group, multiplied out; empty if the block is one group, or has no minima.
        codes: as stored, before any offset; for elements their bits. Empty if our decoder does not support the type.
        parts: parts of the codes, high bits first.
        items: for each value the item that holds the low bits of its code, as an integer.
        sources: for each value the location of its code's bits, in words.
        ours: the decoded values, float32; None without a decoder.
    """

    rule: str = ""
    fields: tuple[FieldBytes, ...] = ()
    scale: float | None = None
    minimum: float | None = None
    minimum_is: str = ""
    scales: tuple[float, ...] = ()
    minima: tuple[float, ...] = ()
    codes: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    items: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    ours: tuple[float, ...] | None = None


def read_block(kind: str, content: bytes, offset: int = 0) -> Reading:
    """Decode a block, or a window of elements; the result is empty for an unsupported type.

    Args:
        kind: name of the type.
        content: the whole block, or whole elements; otherwise ValueError is raised.
        offset: its absolute byte offset in the file.
    """
    fmt = _COVERED.get(kind)
    if fmt is not None:
        if len(content) != fmt.block_bytes:
            raise ValueError(f"{len(content)} bytes for a block of {fmt.block_bytes}")
        return _of_block(fmt, content, offset)
    if kind not in ELEMENTS:
        return Reading()
    if not content or len(content) * 8 % (8 * ELEMENTS[kind].block_bytes):
        raise ValueError(f"{len(content)} bytes are not whole elements of {kind}")
    return _of_elements(kind, content, offset)


def _of_block(fmt: BlockFormat, content: bytes, offset: int) -> Reading:
    raw = np.frombuffer(content, np.uint8)[None]
    fields = tuple(_fields(fmt.fields, content, offset))
    with np.errstate(invalid="ignore"):  # a signalling NaN
        scales, minima, values = fmt.scales(raw)[0].tolist(), fmt.minima(raw)[0].tolist(), fmt.decode(raw)[0]
    has_min = fmt.has_min or fmt.offset != 0
    minima = minima if has_min else []
    if fmt.groups > 1:
        of_scales: dict[str, Any] = {"scales": tuple(scales), "minima": tuple(minima)}
    else:
        of_scales = {"scale": scales[0], "minimum": minima[0] if minima else None}
    computed = f"-{fmt.offset}·d" if fmt.offset else ""
    items, sources = _sources(fields, fmt.block_size)
    return Reading(
        rule=fmt.rule,
        fields=fields,
        minimum_is="stored" if fmt.has_min else computed,
        codes=tuple(fmt.codes(raw)[0].tolist()),
        parts=_parts(fields, fmt.block_size),
        items=items,
        sources=sources,
        ours=tuple(values.tolist()),
        **of_scales,
    )


def _of_elements(kind: str, content: bytes, offset: int) -> Reading:
    raw = np.frombuffer(content, np.uint8)
    n = len(raw) // ELEMENTS[kind].block_bytes
    field = ELEMENTS[kind].field(n)
    words = raw.view(field.dtype)
    parts, low = [], field.item_bits
    for bits in field.layout[0].bits:
        low -= bits.width
        of_all = (words >> low) & ((1 << bits.width) - 1)
        parts.append(Part(bits.name, low + bits.width - 1, low, tuple(of_all.tolist())))
    with np.errstate(invalid="ignore"):
        values = decode_elements(kind, raw)
    codes = tuple(words.tolist())
    size = field.item_bits // 8
    sources = tuple(f"byte {offset + i * size}" for i in range(n))
    return Reading(
        rule=f"x is {field.doc}",
        fields=tuple(_fields([field], content, offset)),
        codes=codes,
        parts=tuple(parts),
        items=codes,
        sources=sources,
        ours=tuple(values.tolist()),
    )


def _fields(fields: Sequence[Field], content: bytes, offset: int) -> list[FieldBytes]:
    out, start = [], 0
    for field in fields:
        raw = content[start : start + field.nbytes]
        with np.errstate(invalid="ignore"):
            values = tuple(np.frombuffer(raw, field.dtype).tolist())
        out.append(FieldBytes(field, start, start + field.nbytes, offset + start, raw, values))
        start += field.nbytes
    return out


def _items(field: FieldBytes) -> list[int]:
    """Return the items' bits as integers."""
    return [int(v) for v in np.frombuffer(field.raw, f"<u{field.field.item_bits // 8}")]


def _parts(fields: Sequence[FieldBytes], n: int) -> tuple[Part, ...]:
    """Split the codes by the fields that hold their bits, high bits first."""
    parts = []
    for field in fields:
        pieces = [p for p in field.field.pieces() if p.name == "x" and p.index is not None]
        if not pieces:
            continue
        items, low = _items(field), min(p.low for p in pieces)
        values = [0] * n
        for p in pieces:
            assert p.index is not None
            values[p.index] |= (items[p.item] >> p.shift & (1 << p.width) - 1) << (p.low - low)
        parts.append(Part(field.field.name, max(p.low + p.width for p in pieces) - 1, low, tuple(values)))
    return tuple(sorted(parts, key=lambda part: -part.low))


def _sources(fields: Sequence[FieldBytes], n: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return, for each value, the item with its code's low bits, and a description of the code's bits; empty without
    codes."""
    found: list[list[tuple[int, int, str]]] = [[] for _ in range(n)]
    for field in fields:
        items = _items(field)
        for p in field.field.pieces():
            if p.name == "x" and p.index is not None:
                byte = field.offset + (p.item * field.field.item_bits + p.shift) // 8
                found[p.index].append((p.low, items[p.item], f"{_bits_of(field.field, p)} (byte {byte})"))
    if not all(found):
        return (), ()
    for of_value in found:
        of_value.sort()
    return tuple(v[0][1] for v in found), tuple(", ".join(words for _, _, words in v) for v in found)


def _bits_of(field: Field, piece: Piece) -> str:
    """Describe a piece, such as `qs[3] bits 7…4`."""
    item = f"{field.name}[{piece.item}]" if field.count > 1 else field.name
    if piece.width == field.item_bits:
        return item
    if piece.width == 1:
        return f"{item} bit {piece.shift}"
    return f"{item} bits {piece.shift + piece.width - 1}…{piece.shift}"
