"""The x-ray of a block, in 100 columns.

    218578  8e a4 6a 36 96 92 …                    the bytes, and under them the fields that they belong to
            └─d─┘ └──────qs────
    d     +0   half   0xa48e = -0.0177917   scale   the fields
    uint8 qs[j]   │ 7 6 5 4 │ 3 2 1 0 │             the bit diagram
                  │ x[j+16] │  x[j]   │
     i qs  q        ours     llama.cpp              the values: the byte, the code in it, ours, = or ≠, llama.cpp's
     0 6a 10  -0.0355835 =  -0.0355835

Colour only repeats what the characters say already.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from ...audit.block_reading import FieldBytes
from ...audit.places import Place
from ...audit.xray import XRay, differing
from ...formats.diagram import bit_diagram
from ...support.text import printable
from ..writer import Form
from .console import BAD, BOLD, DIM, GOOD, rendered, said

WIDTH = 100
#: Differing values whose bits are located.
_EXPLAINED = 8
#: Columns of the labels, and where the values of fields begin.
_LABEL, _VALUE = 9, 24
_FIELDS = ("cyan", "magenta", "green", "yellow", "blue")


def render(xray: XRay, form: Form) -> str:
    """The x-ray of one block."""
    return rendered((line for line in xray_lines(xray)), form)


def xray_lines(x: XRay) -> list[Text]:
    """The x-ray, line by line."""
    parts = [list(_header(x)), list(_dump(x))]
    parts += [list(_fields(x))] if x.fields and not x.elements else []
    parts += [list(_diagram(x))] if x.fields else []
    parts += [list(_groups(x))] if x.scales else []
    return _joined([*parts, _table(_columns(x), x.n_values), list(_verdict(x))])


def pair_lines(a: XRay, b: XRay, names: tuple[str, str] = ("file", "source")) -> list[Text]:
    """Two x-rays of one type: the bytes of both, and below them only what differs.

    Raises ValueError for blocks of different types or sizes.
    """
    if (a.type, a.n_values, len(a.raw)) != (b.type, b.n_values, len(b.raw)):
        raise ValueError(f"{a.type} of {a.n_values} values beside {b.type} of {b.n_values}")
    both = _Pair(a, b, (printable(names[0], _LABEL - 2), printable(names[1], _LABEL - 2)))
    counts = f"{len(both.bytes)} of {len(a.raw)} bytes"
    if a.codes and not a.elements:
        counts += f", {len(both.codes)} of {a.n_values} codes"
    if both.ours:
        counts += f", {len(both.values)} of {a.n_values} values"
    verdict = said((f"{counts} differ", BAD if both.bytes else GOOD))
    table = _table(both.columns(), len(both.which))
    return _joined([list(both.header()), list(both.dumps()), list(both.fields()), table, [verdict]])


def _joined(parts: Sequence[Sequence[Text]]) -> list[Text]:
    """The parts that hold something, with empty lines between them."""
    lines = [line for part in parts if part for line in (Text(), *part)][1:]
    for line in lines:
        line.rstrip()
    return lines


# ---- words -----------------------------------------------------------------------------------------------------------


def _labelled(label: str, words: str, style: str = "", end: str = "") -> Text:
    """A labelled line that is cut to the width, but for its end."""
    shown = Text(printable(words), style)
    shown.truncate(WIDTH - _LABEL - len(end), overflow="ellipsis")
    return said((f"{label:<{_LABEL}}", DIM)) + shown + Text(end)


def _wrapped(words: str, indent: str = "") -> list[Text]:
    return [Text(line) for line in textwrap.wrap(words, WIDTH, subsequent_indent=indent)]


def _number(value: float, exact: bool = False) -> str:
    """Readable, or with `exact` so that it names one float32 only."""
    return f"{value:.9g}" if exact else f"{value:.6g}"


def _block(x: XRay) -> str:
    return "window" if x.elements else "block"


# ---- the header ------------------------------------------------------------------------------------------------------


def _header(x: XRay) -> Iterator[Text]:
    yield from _tensor(x)
    yield _labelled("file", Path(x.file).name, end=f", part {x.part + 1}" if x.part else "")
    yield _labelled("row", f"{x.row} of 0…{x.n_rows - 1}{_coordinates(x)}")
    yield _labelled(_block(x), f"{x.block} of 0…{x.blocks_per_row - 1} in the row, {x.flat} in the tensor")
    yield _labelled("values", f"{x.first} to {x.first + x.n_values - 1} of the row")
    held = "" if x.in_file else ", the bytes are not the file's"
    yield _labelled("bytes", f"{x.offset}-{x.stop}, {len(x.raw)} bytes{held}")
    yield _labelled("before", _neighbour(x.previous, _block(x), "first"))
    yield _labelled("after", _neighbour(x.next, _block(x), "last"))
    if x.asked:
        yield _labelled("asked", x.asked)


def _tensor(x: XRay) -> Iterator[Text]:
    yield _labelled("tensor", x.tensor, BOLD)
    yield _labelled("type", f"{x.type}, {' × '.join(map(str, x.shape)) or 'a single value'}")


def _coordinates(x: XRay) -> str:
    """Where a row is in a tensor of more than two dimensions."""
    if len(x.shape) < 3:
        return ""
    rest, parts = x.row, []
    for size in x.shape[1:]:
        rest, i = divmod(rest, size)
        parts.append(str(i))
    return f", at {', '.join(parts)} of {' × '.join(map(str, x.shape[1:]))}"


def _neighbour(place: Place | None, block: str, end: str) -> str:
    if place is None:
        return f"nothing: it is the tensor's {end}"
    return f"row {place.row} {block} {place.block}, byte {place.offset}"


# ---- the bytes -------------------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    """Bytes `start` to `stop` of the block that belong together."""

    start: int
    stop: int
    name: str
    style: str


def _marks(x: XRay) -> list[_Mark]:
    """The fields; of a window its elements."""
    if not x.elements:
        return [_Mark(f.start, f.stop, f.field.name, _style(x, f)) for f in x.fields]
    return [
        _Mark(at, at + f.field.item_bits // 8, str(i), _style(x, f))
        for f in x.fields
        for i, at in enumerate(range(f.start, f.stop, f.field.item_bits // 8))
    ]


def _style(x: XRay, field: FieldBytes) -> str:
    return _FIELDS[x.fields.index(field) % len(_FIELDS)]


def _spans(x: XRay) -> list[tuple[int, int]]:
    """The bytes of each line."""
    size = 24 if len(x.raw) <= 24 else 16
    return [(start, min(start + size, len(x.raw))) for start in range(0, len(x.raw), size)]


def _dump(x: XRay) -> Iterator[Text]:
    marks = _marks(x)
    digits = len(f"{x.stop}")
    for start, stop in _spans(x):
        yield Text(f"{x.offset + start:>{digits}}  ") + _hex(x.raw, start, stop, marks)
        if marks:
            yield Text(" " * (digits + 2)) + _brackets(start, stop, marks)


def _hex(raw: bytes, start: int, stop: int, marks: Sequence[_Mark], bad: Collection[int] = ()) -> Text:
    style = {i: mark.style for mark in marks for i in range(mark.start, mark.stop)} | dict.fromkeys(bad, BAD)
    return Text(" ").join(Text(f"{raw[i]:02x}", style.get(i, "")) for i in range(start, stop))


def _brackets(start: int, stop: int, marks: Sequence[_Mark]) -> Text:
    """Under the bytes of a line: `└─d─┘ └──qs──┘`, open where a field goes on in another line."""
    out = []
    for mark in marks:
        first, last = max(start, mark.start), min(stop, mark.stop)
        if first < last:
            left, right = "└" if first == mark.start else "─", "┘" if last == mark.stop else "─"
            width = 3 * (last - first) - 3
            name = mark.name if len(mark.name) <= width else ""
            out.append(Text(f"{left}{name:─^{width}}{right}", mark.style))
    return Text(" ").join(out)


# ---- the fields ------------------------------------------------------------------------------------------------------


def _fields(x: XRay) -> Iterator[Text]:
    for f in x.fields:
        field, one = f.field, f.field.count == 1
        kind = field.c_type + ("" if one else f"[{field.count}]")
        yield from _field(field.name, f"+{f.start}", kind, _item(f) if one else "", field.doc, _style(x, f))
        if one and field.item_bits > 16:
            yield said(" " * _VALUE, (_binary(f.raw), _style(x, f)), f"  bits {field.item_bits - 1} to 0")
    if x.minimum_is not in ("", "stored") and x.minimum is not None:
        yield from _field("m", "", x.minimum_is, _number(x.minimum), "what the offset of the codes adds", "")


def _field(name: str, at: str, kind: str, value: str, doc: str, style: str) -> Iterator[Text]:
    left = said((f"{name:<6}", style), f"{at:<5}{kind:<{_VALUE - 11}}")
    middle = f"{value:<26}  " if value else ""
    if _VALUE + len(middle) + len(doc) <= WIDTH:
        yield left + Text(middle + doc)
        return
    lines = [*([value] if value else []), *textwrap.wrap(doc, WIDTH - _VALUE)]
    yield left + Text(lines[0])
    yield from (Text(" " * _VALUE + line) for line in lines[1:])


def _binary(raw: bytes) -> str:
    """Bits from the highest to the lowest, a byte a group."""
    return " ".join(f"{byte:08b}" for byte in reversed(raw))


def _item(f: FieldBytes) -> str:
    """Such as `0x2ba1 = 0.0596008`."""
    bits = f"0x{int.from_bytes(f.raw, 'little'):0{2 * len(f.raw)}x}"
    if f.field.c_type != "half":
        return bits
    value = float(f.values[0])
    if not abs(value) < float("inf"):
        return f"{bits} = {value}, not finite"
    return f"{bits} = {_number(value)}{', subnormal' if 0 < abs(value) < 2.0**-14 else ''}"


def _diagram(x: XRay) -> Iterator[Text]:
    styles = {f.field.name: _style(x, f) for f in x.fields}
    yield Text(x.rule)
    for name, lines in bit_diagram([f.field for f in x.fields]):
        yield from (Text(line, styles[name]) for line in lines)


# ---- the values ------------------------------------------------------------------------------------------------------


def _groups(x: XRay) -> Iterator[Text]:
    """Scale and minimum of each group of values, multiplied out, four or more to a line."""
    size = x.n_values // len(x.scales)
    cells = []
    for g, d in enumerate(x.scales):
        m = f" m {_number(x.minima[g]):>11}" if x.minima else ""
        cells.append(f"{g * size:>3}… d {_number(d):>11}{m}")
    per_line = max(1, (WIDTH + 3) // (max(map(len, cells)) + 3))
    yield Text(f"groups of {size} values from", DIM)
    yield from (Text(" │ ".join(cells[i : i + per_line])) for i in range(0, len(cells), per_line))


class _Column(NamedTuple):
    """A column of a table: its heading, its cells, aligned to the right, and a style for each."""

    name: str
    cells: Sequence[str]
    styles: Sequence[str]
    width: int = 0


def _plain(name: str, cells: Sequence[str], style: str = "", width: int = 0) -> _Column:
    return _Column(name, cells, [style] * len(cells), width)


def _columns(x: XRay) -> list[_Column]:
    columns = [_plain("i", [str(i) for i in range(x.n_values)], DIM), *_code_columns(x)]
    if x.ours is not None and x.theirs is not None:
        return columns + _compared(("ours", "llama.cpp"), x.ours, x.theirs)
    for name, values in (("x", x.ours), ("llama.cpp", x.theirs)):
        if values is not None:
            return [*columns, _plain(name, [_number(v) for v in values], width=11)]
    return []


def _code_columns(x: XRay) -> list[_Column]:
    """The codes and the fields that their bits stand in; of elements their bits, sign and exponent."""
    if not x.codes:
        return []
    if x.elements:
        bits = _plain("bits", [f"{c:0{2 * len(x.raw) // x.n_values}x}" for c in x.codes])
        return [
            bits,
            *(_plain(name, [str(v) for v in part.values]) for name, part in zip(("s", "exp"), x.parts, strict=False)),
        ]
    styles = {f.field.name: _style(x, f) for f in x.fields}
    columns = []
    if x.items:
        digits = max(2, *(len(f"{v:x}") for v in x.items))
        low = x.parts[-1].name
        columns.append(_plain(low, [f"{v:0{digits}x}" for v in x.items], styles[low]))
    if len(x.parts) > 1:
        names = ("hi", "lo") if len(x.parts) == 2 else [part.name for part in x.parts]
        columns += [
            _plain(name, [f"{v:x}" for v in part.values], styles[part.name])
            for part, name in zip(x.parts, names, strict=True)
        ]
    return [*columns, _plain("q", [str(c) for c in x.codes])]


def _compared(names: tuple[str, str], x: Sequence[float], y: Sequence[float]) -> list[_Column]:
    """Two columns of values, and between them = or ≠; in full where they differ."""
    differs = set(differing(x, y))
    marks = ["≠" if i in differs else "=" for i in range(len(x))]
    styles = [BAD if i in differs else "" for i in range(len(x))]
    one, two = ([_number(v, i in differs) for i, v in enumerate(values)] for values in (x, y))
    return [_Column(names[0], one, styles, 11), _Column("", marks, styles, 1), _Column(names[1], two, styles, 11)]


def _table(columns: Sequence[_Column], n: int) -> list[Text]:
    """n rows, read downwards, in as many columns of rows (4, 2 or 1) as fit: halves and quarters stand side by side."""
    if not columns or not n:
        return []
    widths = [max(c.width, len(c.name), *map(len, c.cells)) for c in columns]
    width = sum(widths) + len(widths) - 1
    layouts = [(k, gap) for k in (4, 2) for gap in (" │ ", "  ") if n >= 2 * k]
    across, gap = next((lay for lay in layouts if lay[0] * (width + len(lay[1])) - len(lay[1]) <= WIDTH), (1, ""))
    height = -(-n // across)
    heading = " ".join(f"{c.name:>{w}}" for c, w in zip(columns, widths, strict=True))
    lines = [Text(gap.join([heading] * across), DIM)]
    for j in range(height):
        rows = (
            Text(" ").join(Text(f"{c.cells[i]:>{w}}", c.styles[i]) for c, w in zip(columns, widths, strict=True))
            for i in range(j, n, height)
        )
        lines.append(Text(gap).join(rows))
    return lines


def _verdict(x: XRay) -> Iterator[Text]:
    for note in x.notes:
        yield from _wrapped(f"note: {note}")
    if x.ours is None or x.theirs is None:
        return
    if not x.differs:
        yield Text(f"all {x.n_values} values have the bits of llama.cpp's", GOOD)
        return
    yield Text(f"{len(x.differs)} of {x.n_values} values differ from llama.cpp's", BAD)
    for i in x.differs[:_EXPLAINED] if x.sources else ():
        yield from _wrapped(f"x[{i}] is read from {x.sources[i]}", "    ")
    if len(x.differs) > _EXPLAINED:
        yield Text(f"… and {len(x.differs) - _EXPLAINED} more")


# ---- two x-rays ------------------------------------------------------------------------------------------------------


class _Pair:
    """Two x-rays of one type, and where they differ: bytes, codes, values, and either of the last two (`which`)."""

    def __init__(self, a: XRay, b: XRay, names: tuple[str, str]) -> None:
        self.a, self.b, self.names = a, b, names
        self.bytes = {i for i, (p, q) in enumerate(zip(a.raw, b.raw, strict=True)) if p != q}
        self.codes = {i for i, (p, q) in enumerate(zip(a.codes, b.codes, strict=True)) if p != q}
        # by our decode, or where it does not cover the type by llama.cpp's
        known = [(x, y) for x, y in ((a.ours, b.ours), (a.theirs, b.theirs)) if x is not None and y is not None]
        self.ours, self.theirs = known[0] if known else ((), ())
        self.values = set(differing(self.ours, self.theirs))
        self.which = sorted(self.codes | self.values)

    def header(self) -> Iterator[Text]:
        yield from _tensor(self.a)
        for name, x in zip(self.names, (self.a, self.b), strict=True):
            part = f"part {x.part + 1} of " if x.part else ""
            held = f"byte {x.offset} of {part}{Path(x.file).name}" if x.in_file else "made for this place"
            yield _labelled(name, f"row {x.row} {_block(x)} {x.block}, {held}")

    def dumps(self) -> Iterator[Text]:
        marks, left = _marks(self.a), Text(" " * (_LABEL + 6))
        for start, stop in _spans(self.a):
            for name, x in zip(self.names, (self.a, self.b), strict=True):
                yield Text(f"{name:<{_LABEL}}{f'+{start}':<6}") + _hex(x.raw, start, stop, marks, self.bytes)
            under = " ".join("^^" if i in self.bytes else "  " for i in range(start, stop))
            yield from [left + Text(under, BAD)] if under.strip() else []
            yield from [left + _brackets(start, stop, marks)] if marks else []

    def fields(self) -> Iterator[Text]:
        """The single items that differ: scales, minima, high bits."""
        for f, g in zip(self.a.fields, self.b.fields, strict=True):
            if f.field.count > 1 or f.raw == g.raw:
                continue
            yield said(f"{self.names[0]:<{_LABEL}}", (f"{f.field.name:<4}", _style(self.a, f)), f"  {_item(f)}")
            yield said(f"{self.names[1]:<{_LABEL}}{'':4}", ("≠", BAD), f" {_item(g)}")
            if f.field.item_bits > 16:
                one, two = _binary(f.raw), _binary(g.raw)
                under = "".join("^" if p != q else " " for p, q in zip(one, two, strict=True))
                yield from (Text(" " * (_LABEL + 6)) + Text(line, style) for line, style in
                            ((one, ""), (two, ""), (under, BAD)))  # fmt: skip

    def columns(self) -> list[_Column]:
        if not self.ours:
            return []
        index = _plain("i", [str(i) for i in self.which], DIM)
        values = [[of[i] for i in self.which] for of in (self.ours, self.theirs)]
        compared = _compared(self.names, *values)
        if not self.a.codes:
            return [index, *compared]
        digits = 2 * len(self.a.raw) // self.a.n_values
        p, q = (
            [f"{v.codes[i]:0{digits}x}" if v.elements else str(v.codes[i]) for i in self.which]
            for v in (self.a, self.b)
        )
        marks = ["≠" if one != two else "=" for one, two in zip(p, q, strict=True)]
        styles = [BAD if mark == "≠" else "" for mark in marks]
        return [index, _Column("q", p, styles), _Column("", marks, styles), _Column("q", q, styles), *compared]
