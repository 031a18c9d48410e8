"""The x-ray of a block: its bytes, what each of them means, and its values beside llama.cpp's. Nothing is printed.

A tensor of element type (F32, F16, …) has no blocks: there a "block" is a window of 32 elements of a row, the last of
which may be shorter.
"""

from __future__ import annotations

import difflib
import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..formats import ACTIVATION_FORMATS, ELEMENTS, FORMATS, NO_TO_FLOAT, BlockFormat, Field, decode_elements
from ..formats.layout import Piece
from ..gguf import GgufFile, Model, Range, Tensor
from ..llama import Llama
from ..support.errors import UsageError
from ..support.text import printable, quoted

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Elements in a window of a tensor that has no blocks.
WINDOW = 32

_COVERED = FORMATS | ACTIVATION_FORMATS
_SUGGESTED, _SEARCHED = 3, 10_000


class Place(NamedTuple):
    """A block of the tensor, and its absolute byte offset in the file."""

    row: int
    block: int
    offset: int


@dataclass(frozen=True)
class FieldBytes:
    """A field of this block.

    Args:
        field: its description.
        start: byte in the block; the field ends before `stop`.
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
    """One part of every code: what one field holds of them, since codes may be put together from several.

    Args:
        name: the field it stands in; of an element "sign", "exponent" or "mantissa".
        high, low: the bits of the code that it is.
        values: of each value in order.
    """

    name: str
    high: int
    low: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class XRay:
    """A block.

    Args:
        file: path of the file; `part` is its index in a split model.
        tensor, type, shape: as in the file; the name is not escaped.
        n_rows, blocks_per_row: of the tensor.
        row, block: which one; `block` counts in its row.
        first: index in the row of its first value.
        n_values: how many values it has.
        offset: absolute byte offset in the file; it ends before `stop`.
        in_file: the bytes are the file's, not some that the caller gave for this place.
        previous, next: the neighbours in the file; None at the tensor's ends.
        raw: its bytes.
        elements: it is a window of elements, not a block.
        rule: how a value comes from its code, "" where our decode does not cover the type.
        fields: of the struct, in file order; empty likewise.
        scale: d; None where groups of values have scales of their own.
        minimum: m of `d·q + m`; None where there is none.
        minimum_is: "stored", or what it is computed as, or "".
        scales, minima: of each group, multiplied out; empty where the block is one group, or has no minima.
        codes: as stored, before any offset; the bits of elements. Empty where our decode does not cover the type.
        parts: of the codes, high bits first.
        items: for each value the item that holds the low bits of its code, as an integer.
        sources: for each value where its code's bits stand, in words.
        ours, theirs: the decoded values, float32; None where there is no decode, or llama.cpp was not asked.
        differs: values whose bits differ; any NaN equals any NaN.
        asked: the byte that was asked for, in words, or "".
        notes: what is missing and why.
    """

    file: str
    part: int
    tensor: str
    type: str
    shape: tuple[int, ...]
    n_rows: int
    blocks_per_row: int
    row: int
    block: int
    first: int
    n_values: int
    offset: int
    stop: int
    in_file: bool
    previous: Place | None
    next: Place | None
    raw: bytes
    elements: bool
    rule: str
    fields: tuple[FieldBytes, ...]
    scale: float | None
    minimum: float | None
    minimum_is: str
    scales: tuple[float, ...]
    minima: tuple[float, ...]
    codes: tuple[int, ...]
    parts: tuple[Part, ...]
    items: tuple[int, ...]
    sources: tuple[str, ...]
    ours: tuple[float, ...] | None
    theirs: tuple[float, ...] | None
    differs: tuple[int, ...]
    asked: str
    notes: tuple[str, ...]

    @property
    def flat(self) -> int:
        """Number of the block in the tensor."""
        return self.row * self.blocks_per_row + self.block


# -- the geometry -----------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """How a tensor is cut into blocks: values and bytes of a whole one, and how many a row has."""

    values: int
    nbytes: int
    per_row: int


def grid(tensor: Tensor) -> Grid:
    """Blocks of the type, or windows of elements."""
    kind = tensor.type
    if kind.quantized:
        return Grid(kind.block_size, kind.block_bytes, tensor.blocks_per_row)
    return Grid(WINDOW, WINDOW * kind.block_bytes, -(-tensor.k // WINDOW))


def _place(tensor: Tensor, row: int, block: int) -> Place:
    return Place(row, block, tensor.offset + row * tensor.row_bytes + block * grid(tensor).nbytes)


def _extent(tensor: Tensor, row: int, block: int) -> tuple[int, int, int]:
    """Absolute offset, end, and number of values. Raises IndexError for a block that the tensor does not have."""
    cut = grid(tensor)
    if not (0 <= row < tensor.n_rows and 0 <= block < cut.per_row):
        raise IndexError(f"row {row}, block {block} of {quoted(tensor.name)}")
    start = _place(tensor, row, block).offset
    stop = min(start + cut.nbytes, tensor.offset + (row + 1) * tensor.row_bytes)
    return start, stop, min(cut.values, tensor.k - block * cut.values)


def _neighbour(tensor: Tensor, flat: int) -> Place | None:
    per_row = grid(tensor).per_row
    return _place(tensor, *divmod(flat, per_row)) if 0 <= flat < tensor.n_rows * per_row else None


# -- which block ------------------------------------------------------------------------------------------------


def parse_offset(text: str) -> int:
    """A byte offset as a user writes it: decimal, or hexadecimal after 0x. Raises UsageError."""
    if re.fullmatch(r"[0-9]{1,20}", text):
        return int(text)
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        return int(text, 16)
    raise UsageError(f"--offset must be a byte of the file, such as 107184 or 0x1a2b0, not {quoted(text)}")


def find_block(
    model: Model,
    tensor_name: str | None = None,
    row: int | None = None,
    block: int | None = None,
    offset: int | None = None,
    part: int = 0,
) -> tuple[Tensor, int, int]:
    """The block that was asked for: tensor, row, and block in the row.

    Args:
        tensor_name: as in the file, or as `printable` shows it.
        row: of the tensor; without it `block` counts through the whole tensor.
        block: 0 by default.
        offset: an absolute byte offset in the file instead: the block that holds this byte.
        part: index of the file that `offset` is in, in a split model.

    Raises UsageError, one line, for what does not exist, with what does; for a byte that is not a tensor's data with
    the field that owns it.
    """
    if offset is not None:
        if not (tensor_name is None and row is None and block is None):
            raise UsageError("--offset says which block by itself: leave out --tensor, --row and --block")
        return _at_offset(model, offset, part)
    if tensor_name is None:
        raise UsageError("which block? --tensor NAME --block B, --tensor NAME --row R --block B, or --offset BYTE")
    tensor = _named(model, tensor_name)
    name, cut = quoted(tensor.name), grid(tensor)
    total = tensor.n_rows * cut.per_row
    what = "block" if tensor.type.quantized else "window"
    if not total:
        raise UsageError(f"{name} holds no values")
    if row is None:
        _in_range(what, block or 0, total, name)
        return tensor, *divmod(block or 0, cut.per_row)
    _in_range("row", row, tensor.n_rows, name)
    _in_range(what, block or 0, cut.per_row, f"row {row} of {name}")
    return tensor, row, block or 0


def _in_range(what: str, number: int, count: int, owner: str) -> None:
    if not 0 <= number < count:
        allowed = f"{what}s 0 to {count - 1}" if count > 1 else f"{what} 0 only"
        raise UsageError(f"there is no {what} {number} in {owner}, which has {allowed}")


def _named(model: Model, name: str) -> Tensor:
    tensor = model.tensors.get(name)
    if tensor is not None:
        return tensor
    if not model.tensors:
        raise UsageError(f"there is no tensor {quoted(name)}: the file has none")
    # A name that no shell can pass on is given as it was shown, in which no two look the same. Only so many names are
    # compared, since a hostile file may have a great many.
    shown = {printable(other): other for other in islice(model.tensors, _SEARCHED)}
    if name in shown:
        return model.tensors[shown[name]]
    near = [other for other in shown if name and name.casefold() in other.casefold()]
    near = near or difflib.get_close_matches(name, shown, _SUGGESTED)
    if near:
        hint = "did you mean " + " or ".join(quoted(shown[other]) for other in near[:_SUGGESTED]) + "?"
    else:
        hint = f"the file has {len(model.tensors)}, of which {quoted(next(iter(model.tensors)))} is the first"
    raise UsageError(f"there is no tensor {quoted(name)}: {hint}")


def _at_offset(model: Model, offset: int, part: int) -> tuple[Tensor, int, int]:
    if not 0 <= part < len(model.parts):
        raise UsageError(f"there is no part {part + 1}: the model has {len(model.parts)}")
    file = model.parts[part]
    if not 0 <= offset < file.size:
        raise UsageError(f"byte {offset} is outside {printable(file.path.name, 64)}, which has bytes 0 to "
                         f"{file.size - 1}")  # fmt: skip
    owned = _owner(file, offset)
    if owned.kind != "data":
        raise UsageError(f"byte {offset} is {describe_byte(file, offset)}, not a tensor's data")
    tensor = model.tensors[owned.owner]
    row, rest = divmod(offset - tensor.offset, tensor.row_bytes)
    return tensor, row, rest // grid(tensor).nbytes


def _owner(file: GgufFile, offset: int) -> Range:
    return file.byte_map[bisect_right(file.byte_map, offset, key=lambda owned: owned.start) - 1]


def describe_byte(file: GgufFile, offset: int) -> str:
    """The field that owns a byte of the file, in words. Raises IndexError for a byte that the file does not have."""
    if not 0 <= offset < file.size:
        raise IndexError(f"byte {offset} of {file.size}")
    owned = _owner(file, offset)
    extent = f"(bytes {owned.start} to {owned.stop - 1})"
    owner = quoted(owned.owner)
    match owned.kind:
        case "key":
            return f"the key {owner} {extent}"
        case "value type" | "element type" | "element count" | "value":
            return f"the {owned.kind} of key {owner} {extent}"
        case "tensor name":
            return f"the name of tensor {owner} {extent}"
        case "dimensions" | "type" | "offset":
            return f"the {owned.kind} of tensor {owner} {extent}"
        case "data":
            return f"data of tensor {owner} {extent}"
        case "padding":
            return f"padding after the {'data of tensor ' + owner if owned.owner else 'header'} {extent}"
        case "gap":
            return f"in a gap that no tensor owns {extent}"
        case "trailing":
            return f"behind the last tensor {extent}"
        case kind:
            return f"the {kind} in the file's header {extent}"


# -- the x-ray --------------------------------------------------------------------------------------------------


def llama_values(llama: Llama, tensor: Tensor, row: int, block: int) -> Floats | None:
    """llama.cpp's `to_float` of a block, float32[values]; None where llama.cpp has no conversion from the type.

    Raises IndexError for a block that the tensor does not have, EnvironmentFault where llama.cpp dies, MalformedFile
    where the file has shrunk.
    """
    start, stop, n = _extent(tensor, row, block)
    if tensor.type.name in NO_TO_FLOAT:
        return None
    return llama.to_float(tensor.type.type_id, np.array(tensor.mapped.read()[start:stop]), n)


def xray(
    tensor: Tensor,
    row: int,
    block: int,
    theirs: Floats | None,
    *,
    raw: bytes | None = None,
    asked: int | None = None,
) -> XRay:
    """The x-ray of one block.

    Args:
        tensor, row, block: as `find_block` gives them.
        theirs: llama.cpp's values, float32[values of the block], see `llama_values`; None where there are none.
        raw: bytes to look at instead of the file's, such as what llama.cpp makes of the source in this place.
        asked: absolute offset of the byte that was asked for.

    Raises IndexError for a block that the tensor does not have, ValueError for `theirs` or `raw` of another size,
    MalformedFile where the file has shrunk.
    """
    start, stop, n = _extent(tensor, row, block)
    content = tensor.mapped.read()[start:stop].tobytes() if raw is None else raw
    if len(content) != stop - start:
        raise ValueError(f"{len(content)} bytes for a block of {stop - start}")
    if theirs is not None and theirs.shape != (n,):
        raise ValueError(f"values of shape {theirs.shape} for a block of {n}")
    what = "block" if tensor.type.quantized else "window"
    kind, flat = tensor.type, row * grid(tensor).per_row + block
    read = read_block(kind.name, content, start)
    ours = read.values
    return XRay(
        file=str(tensor.mapped.path), part=tensor.part, tensor=tensor.name, type=kind.name, shape=tensor.shape,
        n_rows=tensor.n_rows, blocks_per_row=grid(tensor).per_row, row=row, block=block,
        first=block * grid(tensor).values, n_values=n, offset=start, stop=stop, in_file=raw is None,
        previous=_neighbour(tensor, flat - 1), next=_neighbour(tensor, flat + 1),
        raw=content, elements=not kind.quantized, rule=read.rule, fields=read.fields, scale=read.scale,
        minimum=read.minimum, minimum_is=read.minimum_is, scales=read.scales, minima=read.minima,
        codes=read.codes, parts=read.parts,
        items=read.items, sources=read.sources,
        ours=None if ours is None else tuple(ours.tolist()),
        theirs=None if theirs is None else tuple(theirs.tolist()),
        differs=() if ours is None or theirs is None else tuple(differing(ours, theirs)),
        asked="" if asked is None else _asked(read.fields, what, start, stop, asked),
        notes=tuple(_notes(kind.name, ours, theirs)),
    )  # fmt: skip


def differing(a: Floats | Sequence[float], b: Floats | Sequence[float]) -> list[int]:
    """Indices of the values whose float32 bits differ; any NaN equals any NaN."""
    x, y = np.asarray(a, np.float32), np.asarray(b, np.float32)
    differs = (x.view(np.uint32) != y.view(np.uint32)) & ~(np.isnan(x) & np.isnan(y))
    return [int(i) for i in np.flatnonzero(differs)]


def _notes(kind: str, ours: Floats | None, theirs: Floats | None) -> list[str]:
    notes = []
    if ours is None:
        notes.append(f"our decode does not cover {kind}: the fields are not known here")
    if theirs is None and kind in NO_TO_FLOAT:
        notes.append(f"llama.cpp has no conversion from {kind} to compare with")
    elif theirs is None:
        notes.append("llama.cpp's values are not at hand")
    return notes


def read_block(kind: str, content: bytes, offset: int = 0) -> Reading:
    """What our decode makes of a block's bytes, or of a window of elements; nothing for a type that it does not cover.

    Args:
        kind: name of the type.
        content: the whole block, or whole elements; ValueError otherwise.
        offset: where it stands in the file.
    """
    fmt = _COVERED.get(kind)
    if fmt is not None:
        if len(content) != fmt.block_bytes:
            raise ValueError(f"{len(content)} bytes for a block of {fmt.block_bytes}")
        return _of_block(fmt, content, offset)
    if kind not in ELEMENTS:
        return Reading()
    if not content or len(content) * 8 % (8 * ELEMENTS[kind].block_bytes):
        raise ValueError(f"{len(content)} bytes are no elements of {kind}")
    return _of_elements(kind, content, offset)


@dataclass
class Reading:
    """What our decode makes of the bytes; nothing by default. See `XRay`."""

    rule: str = ""
    fields: tuple[FieldBytes, ...] = ()
    scale: float | None = None
    minimum: float | None = None
    minimum_is: str = ""
    codes: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    items: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    values: Floats | None = None
    scales: tuple[float, ...] = ()
    minima: tuple[float, ...] = ()


def _of_block(fmt: BlockFormat, content: bytes, offset: int) -> Reading:
    raw = np.frombuffer(content, np.uint8)[None]
    fields = tuple(_fields(fmt.fields, content, offset))
    with np.errstate(invalid="ignore"):  # a signalling NaN
        scales, minima, values = fmt.scales(raw)[0].tolist(), fmt.minima(raw)[0].tolist(), fmt.decode(raw)[0]
    has_min = fmt.has_min or fmt.offset != 0
    if fmt.groups > 1:
        scale = minimum = None
    else:
        scale, minimum = scales[0], minima[0] if has_min else None
    computed = f"-{fmt.offset}·d" if fmt.offset else ""
    items, sources = _sources(fields, fmt.block_size)
    return Reading(
        fmt.rule, fields, scale, minimum, "stored" if fmt.has_min else computed,
        tuple(fmt.codes(raw)[0].tolist()), _parts(fields, fmt.block_size), items, sources, values,
        tuple(scales) if fmt.groups > 1 else (), tuple(minima) if fmt.groups > 1 and has_min else (),
    )  # fmt: skip


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
        f"x is {field.doc}", tuple(_fields([field], content, offset)), codes=codes, parts=tuple(parts), items=codes,
        sources=sources, values=values,
    )  # fmt: skip


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
    """The items' bits as integers."""
    return [int(v) for v in np.frombuffer(field.raw, f"<u{field.field.item_bits // 8}")]


def _parts(fields: Sequence[FieldBytes], n: int) -> tuple[Part, ...]:
    """The codes by the fields that their bits stand in, high bits first."""
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
    """For each value the item with the low bits of its code, and where its code's bits stand; empty without codes."""
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
    """Such as `qs[3] bits 7…4`."""
    item = f"{field.name}[{piece.item}]" if field.count > 1 else field.name
    if piece.width == field.item_bits:
        return item
    if piece.width == 1:
        return f"{item} bit {piece.shift}"
    return f"{item} bits {piece.shift + piece.width - 1}…{piece.shift}"


def _asked(fields: Sequence[FieldBytes], what: str, start: int, stop: int, asked: int) -> str:
    """Such as `byte 10 of the block, qs[2]: bits of x[18] and x[2]`."""
    if not start <= asked < stop:
        raise ValueError(f"byte {asked} is not in the {what}, which has bytes {start} to {stop - 1}")
    words = f"byte {asked - start} of the {what}"
    for field in fields:
        if not field.start <= asked - start < field.stop:
            continue
        size = field.field.item_bits // 8
        item, byte = divmod(asked - field.offset, size)
        words += f", {field.field.name}[{item}]" if field.field.count > 1 else f", {field.field.name}"
        words += f" byte {byte}" if size > 1 else ""
        here = sorted(
            p.index
            for p in field.field.pieces()
            if p.name == "x" and p.index is not None and p.item == item and 8 * byte - p.width < p.shift < 8 * byte + 8
        )
        if len(here) > 2 and here == list(range(here[0], here[-1] + 1)):
            words += f": bits of x[{here[0]}] to x[{here[-1]}]"
        elif here:
            words += f": bits of {' and '.join(f'x[{i}]' for i in here)}"
    return words


def to_dict(x: XRay) -> dict[str, Any]:
    """The x-ray as plain objects that JSON can hold.

    Bytes are hex. Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"; names are not escaped,
    but what was no UTF-8 in them. Keys are those of `XRay`; a field has name, type, count, doc, start, stop, offset,
    hex and values; a neighbour row, block and offset; a part of the codes name, high, low and values.
    """
    plain = {
        **{name: getattr(x, name) for name in x.__dataclass_fields__ if name not in ("raw", "items")},
        "hex": x.raw.hex(),
        "fields": [
            {"name": f.field.name, "type": f.field.c_type, "count": f.field.count, "doc": f.field.doc, "start": f.start,
             "stop": f.stop, "offset": f.offset, "hex": f.raw.hex(), "values": f.values}
            for f in x.fields
        ],
        "parts": [{"name": p.name, "high": p.high, "low": p.low, "values": p.values} for p in x.parts],
        "previous": x.previous and x.previous._asdict(),
        "next": x.next and x.next._asdict(),
    }  # fmt: skip
    safe = _safe(plain)
    assert isinstance(safe, dict)
    return safe


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _safe(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):  # a name that was no UTF-8 holds surrogates, which JSON text cannot
        return value.encode("utf-8", "backslashreplace").decode()
    return value
