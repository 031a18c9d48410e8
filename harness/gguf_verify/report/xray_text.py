"""The x-ray of a block at the terminal, in 100 columns. It reads `XRay` records and computes nothing.

    0x355d2  8e a4 6a 36 96 92 …                    the bytes, and under them whose they are
             └─d─┘ └──────qs────
    d     +0   half   0xa48e = -0.0177917   scale   the fields
    uint8 qs[j]   │ 7 6 5 4 │ 3 2 1 0 │             the bit diagram
                  │ x[j+16] │  x[j]   │
     i qs  q        ours     llama.cpp              the values: the byte, the code in it, ours, = or ≠, llama.cpp's
     0 6a 10  -0.0355835 =  -0.0355835

Colour only says again what the characters say already.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..audit.xray import FieldBytes, Place, XRay, differing
from ..formats.diagram import bit_diagram
from ..gguf import printable

WIDTH = 100
_EXPLAINED = 8  # differing values whose bits are located
_LABEL = 9  # columns of the labels of the header

_FIELDS = ("36", "35", "32", "33", "34")
_BOLD, _DIM, _BAD, _GOOD = "1", "2", "1;31", "32"

Paint = Callable[[str, str], str]


def render(xray: XRay, colour: bool) -> str:
    """The x-ray as text that ends with a line feed; with `colour` as a terminal shows it (ANSI escapes)."""
    paint = _painter(colour)
    lines = [*_header(xray, paint), "", *_dump(xray, paint)]
    if xray.fields and not xray.elements:
        lines += ["", *_fields(xray, paint)]
    if xray.fields:
        lines += ["", *_diagram(xray, paint)]
    if xray.scales:
        lines += ["", *_groups(xray, paint)]
    table = _table(_columns(xray), xray.n_values, paint)
    if table:
        lines += ["", *table]
    lines += ["", *_verdict(xray, paint)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def pair(a: XRay, b: XRay, colour: bool, names: tuple[str, str] = ("file", "source")) -> str:
    """Two x-rays of one type, of which only what differs is shown, below the bytes of both.

    Raises ValueError for blocks of different types or sizes.
    """
    if (a.type, a.n_values, len(a.raw)) != (b.type, b.n_values, len(b.raw)):
        raise ValueError(f"{a.type} of {a.n_values} values beside {b.type} of {b.n_values}")
    paint = _painter(colour)
    shown = (printable(names[0], _LABEL - 2), printable(names[1], _LABEL - 2))
    lines = [*_tensor(a, paint)]
    for name, x in zip(shown, (a, b), strict=True):
        of_part = f"part {x.part + 1} of " if x.part else ""
        held = f"byte {_at(x.offset)} of {of_part}{Path(x.file).name}" if x.in_file else "made for this place"
        lines.append(_labelled(name, f"row {x.row} {_block(x)} {x.block}, {held}", paint))
    bytes_ = [i for i, (p, q) in enumerate(zip(a.raw, b.raw, strict=True)) if p != q]
    codes = [i for i, (p, q) in enumerate(zip(a.codes, b.codes, strict=True)) if p != q]
    ours, theirs = _decoded(a, b)
    values = differing(ours, theirs)
    lines += ["", *_two_dumps(a, b, shown, set(bytes_), paint)]
    fields = list(_two_fields(a, b, shown, paint))
    lines += ["", *fields] if fields else []
    table = _table(_two_columns(a, b, shown, sorted({*codes, *values})), len({*codes, *values}), paint)
    lines += ["", *table] if table else []
    n = a.n_values
    counts = f"{len(bytes_)} of {len(a.raw)} bytes"
    if a.codes and not a.elements:
        counts += f", {len(codes)} of {n} codes"
    if ours:
        counts += f", {len(values)} of {n} values"
    lines += ["", paint(f"{counts} differ", _BAD if bytes_ else _GOOD)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


# -- words ------------------------------------------------------------------------------------------------------


def _painter(colour: bool) -> Paint:
    def paint(text: str, style: str) -> str:
        shown = text.rstrip()
        return f"\x1b[{style}m{shown}\x1b[0m{text[len(shown) :]}" if colour and style and shown else text

    return paint


def _columns_of(text: str) -> int:
    """Columns that a terminal takes for printable text."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _cut(text: str, columns: int) -> str:
    """The text, or as much of it as fits, which an ellipsis says."""
    if _columns_of(text) <= columns:
        return text
    while _columns_of(text) >= columns:
        text = text[:-1]
    return text + "…"


def _labelled(label: str, text: str, paint: Paint, style: str = "") -> str:
    return paint(f"{label:<{_LABEL}}", _DIM) + paint(_cut(printable(text), WIDTH - _LABEL), style)


def _at(offset: int) -> str:
    return f"{offset:#x} = {offset}"


def _number(value: float, exact: bool = False) -> str:
    """Readable, or with `exact` so that it names one float32 only."""
    return f"{value:.9g}" if exact else f"{value:.6g}"


def _block(x: XRay) -> str:
    return "window" if x.elements else "block"


# -- the header -------------------------------------------------------------------------------------------------


def _header(x: XRay, paint: Paint) -> Iterator[str]:
    yield from _tensor(x, paint)
    part = f", part {x.part + 1}" if x.part else ""
    yield paint(f"{'file':<{_LABEL}}", _DIM) + _cut(printable(Path(x.file).name), WIDTH - _LABEL - len(part)) + part
    yield _labelled("row", f"{x.row} of 0…{x.n_rows - 1}{_coordinates(x)}", paint)
    place = f"{x.block} of 0…{x.blocks_per_row - 1} in the row, {x.flat} in the tensor"
    yield _labelled(_block(x), place, paint)
    yield _labelled("values", f"{x.first} to {x.first + x.n_values - 1} of the row", paint)
    held = "" if x.in_file else ", the bytes are not the file's"
    yield _labelled("bytes", f"{_at(x.offset)} to {_at(x.stop - 1)}, {len(x.raw)} bytes{held}", paint)
    yield _labelled("before", _neighbour(x.previous, _block(x), "first"), paint)
    yield _labelled("after", _neighbour(x.next, _block(x), "last"), paint)
    if x.asked:
        yield _labelled("asked", x.asked, paint)


def _tensor(x: XRay, paint: Paint) -> Iterator[str]:
    yield _labelled("tensor", x.tensor, paint, _BOLD)
    yield _labelled("type", f"{x.type}, {' × '.join(map(str, x.shape)) or 'a single value'}", paint)


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
    return f"row {place.row} {block} {place.block}, byte {_at(place.offset)}"


# -- the bytes --------------------------------------------------------------------------------------------------


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


def _per_line(x: XRay) -> int:
    return 24 if len(x.raw) <= 24 else 16


def _dump(x: XRay, paint: Paint) -> Iterator[str]:
    marks = _marks(x)
    digits = len(f"{x.stop:#x}")
    for start in range(0, len(x.raw), _per_line(x)):
        stop = min(start + _per_line(x), len(x.raw))
        yield f"{x.offset + start:#0{digits}x}  {_hex(x.raw, start, stop, marks, paint)}"
        if marks:
            yield " " * (digits + 2) + _brackets(start, stop, marks, paint)


def _hex(
    raw: bytes, start: int, stop: int, marks: Sequence[_Mark], paint: Paint, bad: Collection[int] = ()
) -> str:  # fmt: skip
    style = {i: mark.style for mark in marks for i in range(mark.start, mark.stop)} | dict.fromkeys(bad, _BAD)
    return " ".join(paint(f"{raw[i]:02x}", style.get(i, "")) for i in range(start, stop))


def _brackets(start: int, stop: int, marks: Sequence[_Mark], paint: Paint) -> str:
    """Under the bytes of a line: `└─d─┘ └──qs──┘`, open where a field goes on in another line."""
    out = []
    for mark in marks:
        first, last = max(start, mark.start), min(stop, mark.stop)
        if first >= last:
            continue
        left, right = "└" if first == mark.start else "─", "┘" if last == mark.stop else "─"
        width = 3 * (last - first) - 1
        name = mark.name if len(mark.name) <= width - 2 else ""
        text = f"{left}{name:─^{width - 2}}{right}"
        out.append(paint(text, mark.style))
    return " ".join(out)


# -- the fields -------------------------------------------------------------------------------------------------


def _fields(x: XRay, paint: Paint) -> Iterator[str]:
    for f in x.fields:
        field = f.field
        kind = field.c_type + (f"[{field.count}]" if field.count > 1 else "")
        value = _item(f) if field.count == 1 else ""
        yield from _field(field.name, f"+{f.start}", kind, value, field.doc, paint, _style(x, f))
        if field.count == 1 and field.item_bits > 16:
            yield f"{'':{_VALUE}}{paint(_binary(f.raw), _style(x, f))}  bits {field.item_bits - 1} to 0"
    if x.minimum_is not in ("", "stored") and x.minimum is not None:
        yield from _field("m", "", x.minimum_is, _number(x.minimum), "what the offset of the codes adds", paint, "")


_VALUE = 24  # where the values of fields begin


def _field(name: str, at: str, kind: str, value: str, doc: str, paint: Paint, style: str) -> Iterator[str]:
    left = paint(f"{name:<6}", style) + f"{at:<5}{kind:<{_VALUE - 11}}"
    if not value:
        first, *rest = textwrap.wrap(doc, WIDTH - _VALUE)
        yield left + first
        yield from (f"{'':{_VALUE}}{line}" for line in rest)
        return
    middle = f"{value:<26}  "
    if _VALUE + len(middle) + len(doc) <= WIDTH:
        yield left + middle + doc
        return
    yield left + value
    yield from (f"{'':{_VALUE}}{line}" for line in textwrap.wrap(doc, WIDTH - _VALUE))


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


def _diagram(x: XRay, paint: Paint) -> Iterator[str]:
    styles = {f.field.name: _style(x, f) for f in x.fields}
    yield x.rule
    for name, lines in bit_diagram([f.field for f in x.fields]):
        yield from (paint(line, styles[name]) for line in lines)


# -- the values -------------------------------------------------------------------------------------------------


def _groups(x: XRay, paint: Paint) -> Iterator[str]:
    """Scale and minimum of each group of values, multiplied out, four or more to a line."""
    size = x.n_values // len(x.scales)
    cells = []
    for g, d in enumerate(x.scales):
        m = f" m {_number(x.minima[g]):>11}" if x.minima else ""
        cells.append(f"{g * size:>3}… d {_number(d):>11}{m}")
    per_line = max(1, (WIDTH + 3) // (max(map(len, cells)) + 3))
    yield paint(f"groups of {size} values from", _DIM)
    for start in range(0, len(cells), per_line):
        yield " │ ".join(cells[start : start + per_line])


class _Column(NamedTuple):
    """A column of a table: its heading, its cells, aligned to the right, and a style for each."""

    name: str
    cells: Sequence[str]
    styles: Sequence[str]
    width: int = 0


def _columns(x: XRay) -> list[_Column]:
    n = x.n_values
    columns = [_Column("i", [str(i) for i in range(n)], [_DIM] * n)]
    if x.elements and x.codes:
        digits = 2 * len(x.raw) // n
        sign, exponent = x.parts[0], x.parts[1]
        columns += [
            _Column("bits", [f"{c:0{digits}x}" for c in x.codes], [""] * n),
            _Column("s", [str(v) for v in sign.values], [""] * n),
            _Column("exp", [str(v) for v in exponent.values], [""] * n),
        ]
    elif x.codes:
        styles = {f.field.name: _style(x, f) for f in x.fields}
        if x.items:
            low = x.parts[-1].name
            digits = max(2, max(len(f"{v:x}") for v in x.items))
            columns.append(_Column(low, [f"{v:0{digits}x}" for v in x.items], [styles[low]] * n))
        if len(x.parts) > 1:
            names = ("hi", "lo") if len(x.parts) == 2 else [part.name for part in x.parts]
            for part, name in zip(x.parts, names, strict=True):
                columns.append(_Column(name, [f"{v:x}" for v in part.values], [styles[part.name]] * n))
        columns.append(_Column("q", [str(c) for c in x.codes], [""] * n))
    if x.ours is None and x.theirs is None:
        return []
    if x.ours is None or x.theirs is None:
        only = x.theirs if x.ours is None else x.ours
        assert only is not None
        return [*columns, _Column("llama.cpp" if x.ours is None else "x", [_number(v) for v in only], [""] * n, 11)]
    return columns + _compared("ours", "llama.cpp", x.ours, x.theirs, set(x.differs))


def _compared(a: str, b: str, x: Sequence[float], y: Sequence[float], differs: set[int]) -> list[_Column]:
    """Two columns of values, and between them = or ≠; in full where they differ."""
    marks = ["≠" if i in differs else "=" for i in range(len(x))]
    styles = [_BAD if i in differs else "" for i in range(len(x))]
    return [
        _Column(a, [_number(v, i in differs) for i, v in enumerate(x)], styles, 11),
        _Column("", marks, styles, 1),
        _Column(b, [_number(v, i in differs) for i, v in enumerate(y)], styles, 11),
    ]


def _table(columns: Sequence[_Column], n: int, paint: Paint) -> list[str]:
    """n rows, read downwards, in as many columns of rows (4, 2 or 1) as fit: halves and quarters stand side by side."""
    if not columns or not n:
        return []
    widths = [max(c.width, len(c.name), *map(len, c.cells)) for c in columns]
    width = sum(widths) + len(widths) - 1
    layouts = [(k, gap) for k in (4, 2) for gap in (" │ ", "  ") if n >= 2 * k]
    across, gap = next((lay for lay in layouts if lay[0] * (width + len(lay[1])) - len(lay[1]) <= WIDTH), (1, ""))
    height = -(-n // across)
    heading = " ".join(f"{c.name:>{w}}" for c, w in zip(columns, widths, strict=True))
    lines = [paint(gap.join([heading] * across), _DIM)]
    for j in range(height):
        rows = range(j, n, height)
        lines.append(gap.join(
            " ".join(paint(f"{c.cells[i]:>{w}}", c.styles[i]) for c, w in zip(columns, widths, strict=True))
            for i in rows
        ))  # fmt: skip
    return lines


def _verdict(x: XRay, paint: Paint) -> Iterator[str]:
    for note in x.notes:
        yield from textwrap.wrap(f"note: {note}", WIDTH)
    if x.ours is None or x.theirs is None:
        return
    if not x.differs:
        yield paint(f"all {x.n_values} values have the bits of llama.cpp's", _GOOD)
        return
    yield paint(f"{len(x.differs)} of {x.n_values} values differ from llama.cpp's", _BAD)
    for i in x.differs[:_EXPLAINED] if x.sources else ():
        yield from textwrap.wrap(f"x[{i}] is read from {x.sources[i]}", WIDTH, subsequent_indent="    ")
    if len(x.differs) > _EXPLAINED:
        yield f"… and {len(x.differs) - _EXPLAINED} more"


# -- two x-rays -------------------------------------------------------------------------------------------------


def _two_dumps(a: XRay, b: XRay, names: tuple[str, str], differs: set[int], paint: Paint) -> Iterator[str]:
    marks = _marks(a)
    left = f"{'':<{_LABEL + 6}}"
    for start in range(0, len(a.raw), _per_line(a)):
        stop = min(start + _per_line(a), len(a.raw))
        for name, x in zip(names, (a, b), strict=True):
            yield f"{name:<{_LABEL}}{f'+{start}':<6}{_hex(x.raw, start, stop, marks, paint, differs)}"
        under = " ".join("^^" if i in differs else "  " for i in range(start, stop))
        if under.strip():
            yield left + paint(under, _BAD)
        if marks:
            yield left + _brackets(start, stop, marks, paint)


def _two_fields(a: XRay, b: XRay, names: tuple[str, str], paint: Paint) -> Iterator[str]:
    """The single items that differ: scales, minima, high bits."""
    for f, g in zip(a.fields, b.fields, strict=True):
        if f.field.count > 1 or f.raw == g.raw:
            continue
        for name, item, label in ((names[0], f, f.field.name), (names[1], g, "")):
            mark = " " if label else paint("≠", _BAD)
            yield f"{name:<{_LABEL}}" + paint(f"{label:<4}", _style(a, f)) + f"{mark} {_item(item)}"
        if f.field.item_bits > 16:
            left = f"{'':<{_LABEL + 6}}"
            one, two = _binary(f.raw), _binary(g.raw)
            yield from (left + one, left + two)
            yield left + paint("".join("^" if p != q else " " for p, q in zip(one, two, strict=True)), _BAD)


def _two_columns(a: XRay, b: XRay, names: tuple[str, str], which: Sequence[int]) -> list[_Column]:
    ours, theirs = _decoded(a, b)
    if not ours:
        return []
    x, y = [ours[i] for i in which], [theirs[i] for i in which]
    index = _Column("i", [str(i) for i in which], [_DIM] * len(which))
    compared = _compared(names[0], names[1], x, y, set(differing(x, y)))
    if not a.codes:
        return [index, *compared]
    digits = 2 * len(a.raw) // a.n_values
    p, q = ([f"{v.codes[i]:0{digits}x}" if v.elements else str(v.codes[i]) for i in which] for v in (a, b))
    marks = ["≠" if one != two else "=" for one, two in zip(p, q, strict=True)]
    styles = [_BAD if mark == "≠" else "" for mark in marks]
    return [index, _Column("q", p, styles), _Column("", marks, styles), _Column("q", q, styles), *compared]


def _decoded(a: XRay, b: XRay) -> tuple[Sequence[float], Sequence[float]]:
    """The values to compare: by our decode, or where it does not cover the type by llama.cpp's; empty without both."""
    if a.ours is not None and b.ours is not None:
        return a.ours, b.ours
    if a.theirs is not None and b.theirs is not None:
        return a.theirs, b.theirs
    return (), ()
