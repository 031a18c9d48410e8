"""Heat maps of utilisation as SVG and PNG: of the first wrong GEMM, and of all layers.

A picture is laid out once, as boxes and texts (`scene`). SVG, for files and for pages, and PNG draw the same scene.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from ..results import Report
from ..support.errors import EnvironmentFault
from . import shades
from .grid import Cell, Grid, of_run
from .shades import short
from .writer import Form, Kind, Writer

_CROSS, _STROKE = "x", "/"
_UNBOUNDED = 1 << 30


class Box(NamedTuple):
    """A cell, or a piece of the legend; `mark` "x" crosses it out, "/" strikes it through."""

    x: int
    y: int
    width: int
    height: int
    shade: str
    mark: str = ""
    title: str = ""


class Words(NamedTuple):
    """A text from its upper left corner; `shade` is what it is written on, "" the page."""

    x: int
    y: int
    text: str
    shade: str = ""


Scene = list[Box | Words]

#: Width and height of a character, height of a line, and the margin, in pixels.
CHAR, TALL, LINE, MARGIN = 8, 10, 18, 16


# ---- the scene -------------------------------------------------------------------------------------------------------


def mark_of(cell: Cell) -> str:
    """What is wrong is crossed out, what is not checked is struck through: colour never stands alone."""
    if shades.is_wrong(cell.shade):
        return _CROSS
    return _STROKE if cell.unchecked else ""


def title_of(grid: Grid, line: str, column: str, cell: Cell) -> str:
    """A cell in words."""
    where = f"{line} {column}" if grid.every else f"{grid.down} {line}, {grid.across} {column}"
    if cell.value is None:
        return f"{where}: not checked"
    more = f", {cell.wrong:,} wrong" if cell.wrong else ""
    return f"{where}: {short(cell.value)}{more}{', part not checked' if cell.unchecked else ''}"


def summary(grid: Grid) -> str:
    """A map in a sentence."""
    bad = sum(shades.is_wrong(c.shade) for c in grid.drawn)
    size = f"{len(grid.lines):,} {grid.down}s by {len(grid.columns):,} {grid.across}s" if grid.every else "The output"
    size = size.replace("matrixs", "matrices")
    name = f", of {grid.worst.tensor[:64]}" if grid.worst.tensor else ""
    return (
        f"{size}. The largest utilisation is {short(grid.worst.value)}{name}; {bad:,} of {len(grid.drawn):,} cells are "
        "over the bound or wrong."
    )


def _map(grid: Grid, top: int) -> tuple[Scene, int, int]:
    """A map from `top` on, its right and its lower end."""
    scene: Scene = [Words(MARGIN, top, f"utilisation of {grid.title}")]
    count = len(grid.columns)
    corner = grid.down if grid.every else grid.across
    labels = grid.lines if grid.every else tuple(f"{grid.down} {line}" for line in grid.lines)
    left = MARGIN + CHAR * (max(map(len, (corner, *labels))) + 1)
    if grid.every:
        wide, tall = CHAR * (max([9, *map(len, grid.columns)]) + 1), 20
    else:
        wide, tall = max(9, min(24, 720 // count)), 24
    names = top + LINE
    y = names + LINE + 2
    scene.append(Words(MARGIN, names, corner))
    free = left
    for j, column in enumerate(grid.columns):
        x = left + j * wide
        fits = j % 8 == 0 and free <= x and x + CHAR * len(column) <= left + max(count * wide, 48)
        if grid.every or fits:
            scene.append(Words(x, names, column))
            free = x + CHAR * (len(column) + 2)
    for i, (line, cells) in enumerate(zip(grid.lines, grid.cells, strict=True)):
        at = y + i * tall
        scene.append(Words(MARGIN, at + (tall - TALL) // 2, labels[i]))
        for j, (column, cell) in enumerate(zip(grid.columns, cells, strict=True)):
            if cell.empty:
                continue
            x, mark, key = left + j * wide, mark_of(cell), cell.shade
            # a cross beside the number, or over the whole cell
            over = "" if grid.every else mark
            scene.append(Box(x, at, wide - 1, tall - 1, key, over, title_of(grid, line, column, cell)))
            if grid.every and mark:
                scene.append(Box(x + wide - 16, at + 4, 11, 11, key, mark))
            if grid.every and cell.value is not None:
                scene.append(Words(x + 4, at + 5, short(cell.value), key))
    return scene, left + count * wide, y + len(grid.cells) * tall


def _legend(top: int, keys: set[str]) -> tuple[Scene, int, int]:
    """The scale, and what the marks that were used mean."""
    scene: Scene = [Words(MARGIN, top, "utilisation = |error| / bound, without unit:")]
    y, x = top + LINE, MARGIN
    scene.append(Words(x, y + 2, "1e-4"))
    x += 5 * CHAR
    for i in range(shades.STEPS):
        scene.append(Box(x + 20 * i, y, 20, 14, f"u{i}"))
    x += 20 * shades.STEPS + CHAR
    scene.append(Words(x, y + 2, "1, logarithmic"))
    x += 16 * CHAR
    for shown, key, mark, words in (
        (keys & set(shades.WRONG), shades.WRONG, _CROSS, "over the bound, or wrong; darker above 100 and 100,000"),
        (keys & {shades.UNCHECKED}, (shades.UNCHECKED,), _STROKE, "not checked"),
    ):
        if shown:
            scene += [Box(x + 15 * i, y, 14, 14, one, mark) for i, one in enumerate(key)]
            x += 15 * len(key) + 5
            scene.append(Words(x, y + 2, words))
            x += CHAR * (len(words) + 2)
    return scene, x, y + LINE


def scene(grids: Sequence[Grid], legend: bool = True) -> tuple[Scene, int, int]:
    """All maps, one below the other, and the legend: what to draw, width and height in pixels."""
    out: Scene = []
    width, y = 0, MARGIN
    for grid in grids:
        part, right, bottom = _map(grid, y)
        out += part
        width, y = max(width, right), bottom + (2 * MARGIN if legend else 0)
    if legend:
        keys = {c.shade for grid in grids for c in grid.drawn}
        keys |= {shades.UNCHECKED for grid in grids for c in grid.drawn if c.unchecked}
        part, right, y = _legend(y, keys)
        out, width = out + part, max(width, right)
    ends = [v.x + CHAR * len(v.text) for v in out if isinstance(v, Words)]
    return out, max([width, *ends]) + MARGIN, y + (0 if legend else MARGIN)


# ---- SVG -------------------------------------------------------------------------------------------------------------

#: Beside the shades: what a style sheet says of a map.
STYLE = (
    ".heat text{fill:var(--text,#1c1c1c);font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
    ".heat .on{fill:var(--ink);pointer-events:none}.heat rect,.heat .boxes{fill:var(--fill)}"
    ".heat .stroke{stroke:var(--ink);stroke-width:1.2;fill:none;pointer-events:none}"
)
_PAGE = (
    ".page{--fill:#ffffff;--text:#1c1c1c}@media(prefers-color-scheme:dark){.page{--fill:#15171c}.heat{--text:#dcdcdc}}"
)


def style() -> str:
    """What a page must hold, once, for the maps that stand in it."""
    return shades.css() + STYLE


def _safe(text: str) -> str:
    """Text that XML can hold."""
    return "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)


def svg(grids: Sequence[Grid], most_titles: int | None = None) -> str:
    """The maps as an SVG document, or, with `most_titles`, as an element of a page that has `style()`.

    Args:
        most_titles: how many cells of a page's map say what they hold when they are pointed at; wrong ones do first.
    """
    alone = most_titles is None
    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    drawn, width, height = scene(grids, legend=alone)
    title = _safe("Utilisation of " + "; ".join(grid.title for grid in grids))
    out = [
        f'<svg{space} class="heat" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(title)}>',
        f"<title>{escape(title)}</title>", f"<desc>{escape(_safe(' '.join(map(summary, grids))))}</desc>",
    ]  # fmt: skip
    if alone:
        out += [f"<style>{style()}{_PAGE}</style>", f'<rect class="page" width="{width}" height="{height}"/>']
    boxes = [v for v in drawn if isinstance(v, Box)]
    left = _UNBOUNDED if most_titles is None else most_titles
    titled = {b for b in sorted(boxes, key=lambda b: not b.mark)[:left] if b.title}
    out += [
        f'<rect class="{b.shade}" x="{b.x}" y="{b.y}" width="{b.width}" height="{b.height}">'
        f"<title>{escape(_safe(b.title))}</title></rect>"
        for b in boxes if b in titled
    ]  # fmt: skip
    for key in dict.fromkeys(b.shade for b in boxes):
        path = "".join(
            f"M{b.x} {b.y}h{b.width}v{b.height}h-{b.width}z" for b in boxes if b.shade == key and b not in titled
        )
        out += [f'<path class="boxes {key}" d="{path}"/>'] if path else []
        strokes = "".join(_strokes(b) for b in boxes if b.shade == key and b.mark)
        out += [f'<path class="stroke {key}" d="{strokes}"/>'] if strokes else []
    for v in drawn:
        if isinstance(v, Words):
            ink = f' class="on {v.shade}"' if v.shade else ""
            out.append(f'<text{ink} x="{v.x}" y="{v.y + TALL}">{escape(_safe(v.text))}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _strokes(box: Box) -> str:
    left, up, right, down = _inside(box)
    return f"M{left} {down}L{right} {up}" + (f"M{left} {up}L{right} {down}" if box.mark == _CROSS else "")


def _inside(box: Box) -> tuple[int, int, int, int]:
    return box.x + 2, box.y + 2, box.x + box.width - 2, box.y + box.height - 2


# ---- PNG -------------------------------------------------------------------------------------------------------------


def png(grids: Sequence[Grid]) -> bytes:
    """The maps as PNG, on white."""
    from PIL import Image, ImageDraw, ImageFont, PngImagePlugin  # late: few runs draw

    drawn, width, height = scene(grids)
    picture = Image.new("RGB", (width, height), "#ffffff")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(12)  # it has no ×
    colours = shades.PALETTE["light"]
    for v in drawn:
        if isinstance(v, Words):
            pen.text(
                (v.x, v.y - 2), _safe(v.text).replace("×", "x"), colours[v.shade][1] if v.shade else "#1c1c1c", font
            )
            continue
        fill, ink = colours[v.shade]
        pen.rectangle((v.x, v.y, v.x + v.width - 1, v.y + v.height - 1), fill)
        if v.mark:
            left, up, right, down = _inside(v)
            pen.line((left, down - 1, right - 1, up), ink)
            if v.mark == _CROSS:
                pen.line((left, up, right - 1, down - 1), ink)
    about = PngImagePlugin.PngInfo()
    about.add_text(
        "Title", _safe("; ".join(grid.title for grid in grids)).encode("latin-1", "replace").decode("latin-1")
    )
    out = io.BytesIO()
    picture.save(out, "PNG", pnginfo=about, optimize=True)
    return out.getvalue()


# ---- the writer ------------------------------------------------------------------------------------------------------


def _render(report: Report, form: Form) -> str | bytes:
    grids = of_run(report)
    if not grids:
        raise EnvironmentFault("no heat map: the layers rung judged nothing")
    return png(grids) if form.suffix == ".png" else svg(grids)


WRITER = Writer(
    "heat map", "--heat-map",
    "also draw the utilisation of each matrix, and of the first wrong GEMM, as FILE.svg or FILE.png",
    {Kind.RUN: _render}, (".svg", ".png"), "layers",
)  # fmt: skip
