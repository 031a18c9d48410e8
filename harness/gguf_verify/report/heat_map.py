"""Heat maps of utilisation: of the first wrong GEMM, and of a pass by layer and matrix; as text, SVG and PNG.

Pure functions of report data. A picture is laid out once, as rectangles and texts, and written by either writer: SVG
for a page (it follows a dark page, and tells a screen reader what each cell holds), PNG for everything else (W3C, PNG
specification, third edition: signature, IHDR, IDAT, IEND).

Colours up to the bound are sequential in lightness, blue to yellow, which eyes that lack a colour tell apart; what is
wrong is crossed out, and red.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import numpy.typing as npt

from ..gguf import printable
from ..results import GemmRecord, OutputMap, RungResult

#: Where the scale of colours begins: less of the bound looks the same.
LEAST = 1e-4
#: The most lines and columns of a map by layer; more are put together.
MOST_LINES, MOST_COLUMNS = 128, 32
#: Lines of a map in text, without title, labels and legend.
TEXT_LINES = 12

_RIGHT = ("#10275a", "#42507a", "#757a7d", "#b0a46b", "#f2dc4f")
_WRONG = ("#e0457b", "#7a0637")
_WORST = 1e6
_BLANK, _UNCHECKED = "#ffffff", "#d0d0d0"


class Cell(NamedTuple):
    """The largest utilisation of a cell; None where there is nothing, or, if `unchecked`, what should be there."""

    value: float | None = None
    wrong: int = 0
    unchecked: bool = False

    def worse(self, other: Cell) -> Cell:
        """Both in one cell."""
        values = [v for v in (self.value, other.value) if v is not None]
        return Cell(
            max(values, default=None), self.wrong + other.wrong, self.unchecked or other.unchecked
        )  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A map.

    Args:
        title: what it is of.
        across, down: what its columns and lines are.
        columns, lines: their names.
        cells: line by line.
        every: whether each column and line is named beside the map, and each value written into its cell; else numbers,
            now and then.
    """

    title: str
    across: str
    down: str
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    every: bool = False


# ---- from report data ------------------------------------------------------------------------------------------------


def of_gemm(made: OutputMap) -> Grid:
    """The map of a wrong GEMM: `RungResult.heat_map`."""
    rows, tokens, columns = made.rows_per_cell, made.tokens_per_cell, range(len(made.utilisation[0]))
    cells = tuple(
        tuple(Cell(float(v), int(w)) for v, w in zip(values, wrong, strict=True))
        for values, wrong in zip(made.utilisation, made.wrong, strict=True)
    )
    size = f", a cell {_count(tokens, 'token')} × {_count(rows, 'row')}" if rows * tokens > 1 else ""
    return Grid(
        f"{printable(made.where, 64)}, {made.who}: {made.m:,} tokens × {made.n:,} rows{size}",
        "row", "token", tuple(str(i * rows) for i in columns), tuple(str(i * tokens) for i in range(len(cells))), cells,
    )  # fmt: skip


def of_layers(rung: RungResult) -> Grid | None:
    """The map of a pass by layer and matrix; None where the rung has nothing to show."""
    found: dict[tuple[str, str], Cell] = {}
    for record in rung.details:
        if isinstance(record, GemmRecord):
            place = _place(record.tensor)
            found[place] = found.get(place, Cell()).worse(Cell(record.worst, record.failures))
    for left in rung.unverified:
        if not left.name.startswith("all "):
            place = _place(left.name)
            found[place] = found.get(place, Cell()).worse(Cell(unchecked=True))
    if not found:
        return None
    lines = _merged(sorted({line for line, _ in found}, key=_order), MOST_LINES)
    columns = _merged(list(dict.fromkeys(column for _, column in found)), MOST_COLUMNS)
    cells = [[Cell() for _ in dict.fromkeys(columns.values())] for _ in dict.fromkeys(lines.values())]
    at_line, at_column = (
        {name: i for i, name in enumerate(dict.fromkeys(of.values()))} for of in (lines, columns)
    )  # fmt: skip
    for (line, column), cell in found.items():
        i, j = at_line[lines[line]], at_column[columns[column]]
        cells[i][j] = cells[i][j].worse(cell)
    return Grid(
        "the kernel, worst of each matrix", "matrix", "layer", tuple(at_column), tuple(at_line),
        tuple(map(tuple, cells)), True,
    )  # fmt: skip


def grids(rungs: Iterable[RungResult]) -> list[Grid]:
    """What there is to draw of a report's rungs: the first wrong GEMM, then all layers."""
    layers = next((r for r in rungs if r.name == "layers"), None)
    if layers is None:
        return []
    wrong = [of_gemm(layers.heat_map)] if layers.heat_map is not None else []
    whole = of_layers(layers)
    return wrong + ([whole] if whole is not None else [])


_NO_LAYER = "model"
_BLOCK = re.compile(r"(?:(.*)\.)?blk\.([0-9]{1,9})\.(.+)")


def _place(name: str) -> tuple[str, str]:
    """Layer and matrix of a tensor's name: blk.3.attn_q.weight, enc.blk.0.ffn_up.weight, output.weight."""
    name = re.sub(r" (expert|matrix) [0-9]+$", "", name)  # as `rungs.run.label` says it
    found = _BLOCK.fullmatch(name)
    matrix = (found[3] if found else name).removesuffix(".weight")
    layer = _NO_LAYER if found is None else ".".join(filter(None, (found[1], "blk", found[2])))
    return printable(layer, 16), printable(matrix, 20)


def _order(layer: str) -> tuple[bool, str, int]:
    """Layers by number, then what is in none."""
    start, _, number = layer.rpartition(".")
    return layer == _NO_LAYER, start, int(number) if number.isdecimal() else 0


def _merged(names: Sequence[str], most: int) -> dict[str, str]:
    """Name → the name of its line: its own, or, where there are too many, that of some in a row."""
    step = -(-len(names) // most)
    out = {}
    for i, name in enumerate(names):
        first, last = names[i // step * step], names[min(len(names), (i // step + 1) * step) - 1]
        out[name] = name if step == 1 else f"{first} - {last}"
    return out


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


# ---- text ------------------------------------------------------------------------------------------------------------


def as_text(grid: Grid, blocks: bool = False) -> list[str]:
    """The map of a GEMM in at most 15 lines of plain characters, or with block characters.

    Lines that look the same are one. `.` is right; a digit is the power of ten by which the worst of the cell exceeds
    the bound; `x` is within it and wrong in its bits or its score; `#` is not finite.
    """
    drawn = [list(map(_plain, line)) for line in grid.cells]
    labels, step = list(grid.lines), -(-len(drawn) // TEXT_LINES)
    drawn = [[max(column, key=_RANK.index) for column in zip(*drawn[i : i + step], strict=True)]
             for i in range(0, len(drawn), step)]  # fmt: skip
    labels = labels[::step]
    width = max(len(grid.down) + 1 + max(map(len, labels)), len(grid.across))
    out, last = [], ""
    for label, line in zip(labels, drawn, strict=True):
        shown = "".join(_BLOCKS.get(c, c) if blocks else c for c in line)
        if shown != last:
            pad = width - len(grid.down) - 1
            out.append(f"{grid.down} {label:>{pad}}  {shown}".rstrip())
        last = shown
    names, end = "", 0
    for i, column in enumerate(grid.columns):
        if i % 8 == 0 and i >= end and i + len(column) <= max(len(grid.columns), 8):
            names, end = f"{names:<{i}}{column}", i + len(column) + 1
    used = {c for line in drawn for c in line}
    legend = [words for c, words in _LEGEND if c in used]
    if digits := sorted(used & set("0123456789")):
        if blocks:
            shades = {_BLOCKS[d]: d for d in reversed("0123456789") if d in digits}
            legend += [f"{shade} {_LEAST[shade]} × the bound" for shade in reversed(shades)]
        else:
            legend.append(
                f"{digits[0] if len(digits) == 1 else f'{digits[0]}…{digits[-1]}'} over it by that power of 10"
            )
    return [f"utilisation of {grid.title}", f"{grid.across:<{width}}  {names}", *out, "; ".join(legend)]


_RANK = " .x0123456789#"
_BLOCKS = {".": "·", **dict.fromkeys("0", "░"), **dict.fromkeys("12", "▒"), **dict.fromkeys("345", "▓"),
           **dict.fromkeys("6789", "█")}  # fmt: skip
_LEAST = {"░": "1 to 10", "▒": "10 to 1,000", "▓": "1,000 to 10⁶", "█": "10⁶ and more"}
_LEGEND = ((".", ". right"), ("x", "x within the bound, wrong in its bits or score"), ("#", "# not finite"))


def _plain(cell: Cell) -> str:
    if cell.value is None:
        return " "
    if not isfinite(cell.value):
        return "#"
    if not cell.wrong:
        return "."
    return "x" if cell.value <= 1 else str(min(9, int(log10(cell.value))))


# ---- pictures --------------------------------------------------------------------------------------------------------


class _Rect(NamedTuple):
    x: int
    y: int
    width: int
    height: int
    colour: str
    mark: str = ""  # "x": crossed out, "/": struck through
    title: str = ""


class _Words(NamedTuple):
    x: int
    y: int  # of its top
    text: str
    colour: str = ""  # that of the page's text


_Scene = list[_Rect | _Words]

#: Width and height of a character, of a line of text, and the margin.
_CHAR, _TALL, _LINE, _MARGIN = 8, 10, 18, 16


def _colour(value: float) -> str:
    anchors: tuple[str, ...] = _WRONG if value > 1 else _RIGHT
    if value > 1:
        share = min(1.0, log10(value) / log10(_WORST)) if isfinite(value) else 1.0
    else:
        share = 1 - log10(max(value, LEAST)) / log10(LEAST)
    at = share * (len(anchors) - 1)
    i = min(int(at), len(anchors) - 2)
    (low, high), part = (_rgb(anchors[i]), _rgb(anchors[i + 1])), at - i
    return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in zip(low, high, strict=True))


def _rgb(colour: str) -> tuple[int, int, int]:
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return r, g, b


def _ink(colour: str) -> str:
    """Black or white, whichever can be read on it."""
    r, g, b = _rgb(colour)
    return "#000000" if 0.299 * r + 0.587 * g + 0.114 * b > 140 else "#ffffff"


def short(value: float) -> str:
    """A utilisation in at most seven characters."""
    return f"{value:.2g}" if isfinite(value) else "inf"


def _words(grid: Grid, line: str, column: str, cell: Cell) -> str:
    where = f"{grid.down} {line}, {grid.across} {column}"
    if grid.every:
        where = f"{line} {column}"
    if cell.value is None:
        return f"{where}: not checked" if cell.unchecked else where
    wrong = f", {_count(cell.wrong, 'failure')}" if cell.wrong else ""
    return f"{where}: {short(cell.value)}{wrong}{', part not checked' if cell.unchecked else ''}"


def _draw(grid: Grid, top: int) -> tuple[_Scene, int, int]:
    """The map from `top` on; its right and lower ends."""
    scene: _Scene = [_Words(_MARGIN, top, f"utilisation of {grid.title}")]
    count = len(grid.columns)
    corner = grid.down if grid.every else grid.across
    labels = grid.lines if grid.every else tuple(f"{grid.down} {line}" for line in grid.lines)
    left = _MARGIN + _CHAR * (max(map(len, (corner, *labels))) + 1)
    if grid.every:
        wide, tall = _CHAR * (max([9, *map(len, grid.columns)]) + 1), 20
    else:
        wide, tall = (max(9, min(24, 720 // n)) for n in (count, 30))
    names = top + _LINE
    y = names + _LINE + 2
    scene.append(_Words(_MARGIN, names, corner))
    free = left
    for j, column in enumerate(grid.columns):
        x = left + j * wide
        fits = j % 8 == 0 and free <= x and x + _CHAR * len(column) <= left + max(count * wide, 48)
        if grid.every or fits:
            scene.append(_Words(x, names, column))
            free = x + _CHAR * (len(column) + 2)
    for i, (line, cells) in enumerate(zip(grid.lines, grid.cells, strict=True)):
        at = y + i * tall
        if tall >= _TALL + 2 or i % 2 == 0:
            scene.append(_Words(_MARGIN, at + (tall - _TALL) // 2, labels[i]))
        for j, (column, cell) in enumerate(zip(grid.columns, cells, strict=True)):
            if cell.value is None and not cell.unchecked:
                continue
            colour = _UNCHECKED if cell.value is None else _colour(cell.value)
            mark = "x" if cell.wrong else "/" if cell.unchecked else ""
            x = left + j * wide
            # a cross beside the number, or all over the cell
            box = _Rect(x, at, wide - 1, tall - 1, colour, "" if grid.every else mark, _words(grid, line, column, cell))
            scene.append(box)
            if grid.every:
                if mark:
                    scene.append(_Rect(x + wide - 16, at + 4, 11, 11, colour, mark))
                if cell.value is not None:
                    scene.append(_Words(x + 4, at + 5, short(cell.value), _ink(colour)))
    return scene, left + count * wide, y + len(grid.cells) * tall


def _legend(top: int, wrong: bool, unchecked: bool) -> tuple[_Scene, int, int]:
    """What the colours mean, with units; its right and lower ends."""
    scene: _Scene = [_Words(_MARGIN, top, "utilisation = error / bound, a ratio without unit, logarithmic:")]
    y, steps = top + _LINE, 64
    for i in range(steps):
        scene.append(_Rect(_MARGIN + 6 * i, y, 6, 14, _colour(10 ** (log10(LEAST) * (1 - (i + 0.5) / steps)))))
    decades = round(-log10(LEAST))
    for i in range(decades + 1):
        value = f"{LEAST * 10**i:g}"
        name = f"<{value}" if i == 0 else value
        x = _MARGIN + 6 * steps * i // decades
        scene.append(_Words(x - (len(name) * _CHAR // 2 if i else 0), y + 18, name))
    x = _MARGIN + 6 * steps + 24
    for shown, colour, mark, words in (
        (wrong, _WRONG[0], "x", "over the bound, or wrong: darker up to 1e+06 and more"),
        (unchecked, _UNCHECKED, "/", "not checked"),
    ):
        if shown:
            scene += [_Rect(x, y, 14, 14, colour, mark), _Words(x + 20, y + 2, words)]
            x += 20 + _CHAR * (len(words) + 2)
    return scene, x, y + 18 + _LINE


def _scene(maps: Sequence[Grid]) -> tuple[_Scene, int, int]:
    """All maps, one below the other, and the legend: what to draw, width, height."""
    scene: _Scene = []
    width, y = 0, _MARGIN
    for grid in maps:
        part, right, bottom = _draw(grid, y)
        scene += part
        width, y = max(width, right), bottom + 2 * _MARGIN
    cells = [cell for grid in maps for line in grid.cells for cell in line]
    part, right, bottom = _legend(y, any(c.wrong for c in cells), any(c.unchecked for c in cells))
    scene += part
    ends = [v.x + _CHAR * len(v.text) for v in scene if isinstance(v, _Words)]
    return scene, max([width, right, *ends]) + _MARGIN, bottom


_STYLE = (
    ".hm-page{fill:#fff}.hm-text{fill:#1c1c1c;font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
    "@media(prefers-color-scheme:dark){.hm-page{fill:#15171c}.hm-text{fill:#dcdcdc}}"
)


def _safe(text: str) -> str:
    """Text that XML can hold."""
    return "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)


def svg(maps: Sequence[Grid]) -> str:
    """The maps as an SVG document, which may also stand inside a page: it has no ids."""
    scene, width, height = _scene(maps)
    title = _safe("Utilisation: " + "; ".join(grid.title for grid in maps))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label={quoteattr(title)}>',
        f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>",
        f'<rect class="hm-page" width="{width}" height="{height}"/>',
    ]  # fmt: skip
    for v in scene:
        if isinstance(v, _Words):
            ink = f' style="fill:{v.colour}"' if v.colour else ""
            out.append(f'<text class="hm-text" x="{v.x}" y="{v.y + _TALL}"{ink}>{escape(_safe(v.text))}</text>')
            continue
        place = f'x="{v.x}" y="{v.y}" width="{v.width}" height="{v.height}" fill="{v.colour}"'
        said = f"<title>{escape(_safe(v.title))}</title>" if v.title else ""
        out.append(f"<rect {place}>{said}</rect>" if said else f"<rect {place}/>")
        if v.mark:
            left, up, right, down = v.x + 2, v.y + 2, v.x + v.width - 2, v.y + v.height - 2
            cross = f"M{left} {down}L{right} {up}" + (f"M{left} {up}L{right} {down}" if v.mark == "x" else "")
            out.append(f'<path d="{cross}" stroke="{_ink(v.colour)}" stroke-width="1.2" pointer-events="none"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


#: A font of 3 × 5 pixels: five octal digits a character, one a line, the highest bit to the left.
_FONT = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25573", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55552",
    "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", ".": "00002", ",": "00024", "-": "00700", "_": "00007",
    "/": "11244", ":": "02020", "|": "22222", "(": "12221", ")": "42224", "<": "12421", ">": "42124", "=": "07070",
    "+": "02720", "×": "05250", "…": "00005", "%": "51245", "#": "57575", "'": "22000", ";": "02024",
}  # fmt: skip
_UNKNOWN = "71202"


def png(maps: Sequence[Grid]) -> bytes:
    """The maps as a PNG of 8-bit colours, on white."""
    scene, width, height = _scene(maps)
    pixels = np.full((height, width, 3), 255, np.uint8)
    for v in scene:
        if isinstance(v, _Words):
            _write(pixels, v)
            continue
        box = pixels[v.y : v.y + v.height, v.x : v.x + v.width]
        box[:] = _rgb(v.colour)
        if v.mark:
            inside = box[2:-2, 2:-2]
            along = np.arange(max(inside.shape[:2]))
            down, across = (along * n // len(along) for n in inside.shape[:2])
            inside[::-1][down, across] = _rgb(_ink(v.colour))
            if v.mark == "x":
                inside[down, across] = _rgb(_ink(v.colour))
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # filter type 0
    said = "Title\0" + "; ".join(grid.title for grid in maps)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
            _chunk(b"tEXt", said.encode("latin-1", "replace")), _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )  # fmt: skip


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _write(pixels: npt.NDArray[np.uint8], words: _Words) -> None:
    """Text in capitals, each dot of the font 2 × 2 pixels."""
    for i, char in enumerate(words.text):
        if char == " ":
            continue
        glyph = _FONT.get(char.upper(), _UNKNOWN)
        dots = np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in glyph], bool).repeat(2, 0).repeat(2, 1)
        x = words.x + i * _CHAR
        pixels[words.y : words.y + 10, x : x + 6][dots] = _rgb(words.colour or "#1c1c1c")


def lines_of(rung: RungResult, blocks: bool) -> Iterator[str]:
    """The map of the first wrong GEMM in text, where there is one."""
    if rung.heat_map is not None:
        yield from as_text(of_gemm(rung.heat_map), blocks)
