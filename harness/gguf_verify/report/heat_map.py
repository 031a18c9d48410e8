"""Heat maps of utilisation as SVG and PNG: of the first wrong GEMM, and of all layers.

A map of outputs has an axis of rows and one of tokens, the borders of the kernel's tiles, and a frame around what is
wrong; a map of matrices has its values written into its cells. A text that does not fit is omitted, never clipped.
SVG, for files and for pages, and PNG draw the same scene (see `scene`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from ..results.report import Report
from ..support.errors import EnvironmentFault
from . import scene, shades
from .grid import Cell, Grid, Region, of_run
from .scene import CROSS, STROKE, Box, Frame, Item, Line, Scene, Words
from .shades import short
from .writer import Form, Kind, Writer

#: Width of a character of 13 pixels, height of a line, and the margin, in pixels.
CHAR, LINE, MARGIN = 8, 18, 16
#: Characters of a line of text above a map, and in its legend, which a phone shows whole.
_WRAPPED, _NARROW = 88, 36
#: The most frames of a map; where there are more regions, one frame is around all.
MOST_FRAMES = 8
#: The mark of a value of which a part was not checked.
PART = "*"
#: Pixels that two borders of tiles are apart at least; closer ones are skipped.
_TILE_PIXELS = 6


# ---- the words -------------------------------------------------------------------------------------------------------


def mark_of(cell: Cell) -> str:
    """Wrong cells are crossed out, unchecked ones struck through: colour is never the only mark. A cell with a value of
    which a part was not checked has `PART` behind the value instead."""
    if shades.is_wrong(cell.shade):
        return CROSS
    return STROKE if cell.unchecked and cell.value is None else ""


def title_of(grid: Grid, line: str, column: str, cell: Cell) -> str:
    """A cell in words."""
    where = f"{line} {column}" if grid.every else f"{grid.down} {line}, {grid.across} {column}"
    if cell.value is None:
        return f"{where}: not checked"
    more = f", {cell.wrong:,} wrong" if cell.wrong else ""
    return f"{where}: {short(cell.value)}{more}{', part not checked' if cell.unchecked else ''}"


def summary(grid: Grid) -> str:
    """A map in a sentence."""
    size = f"{len(grid.lines):,} {grid.down}s by {len(grid.columns):,} {grid.across}s" if grid.every else "The output"
    size = size.replace("matrixs", "matrices")
    return " ".join([f"{size}.", *grid.told])


# ---- the scene -------------------------------------------------------------------------------------------------------


def drawn(grids: Sequence[Grid], alone: bool = True) -> Scene:
    """All maps, one below the other, and the legend; `alone` with the words that a page shows beside them."""
    made, y = Scene(), float(MARGIN if alone else 6)
    left = MARGIN if alone else 4
    for grid in grids:
        if alone:
            for i, text in enumerate([f"utilisation of {grid.title}", *grid.told]):
                for line in textwrap.wrap(text, _WRAPPED, break_on_hyphens=False):
                    made.items.append(Words(left, y + 12, line, tone="muted" if i else "text", bold=not i))
                    y += LINE
            y += 6
        items, right, y = (_matrices if grid.every else _outputs)(grid, left, y)
        made.add(items)
        made.width = max(made.width, right)
        y += 22
    items, y = _legend(grids, left, y)
    made.add(items)
    ends = [v.left + v.width for v in made.items if isinstance(v, Words)]
    ends += [v.x + v.width for v in made.items if isinstance(v, Box)]
    made.width = round(max([made.width, *ends]) + (MARGIN if alone else 4))
    made.height = round(y + (MARGIN if alone else 4))
    return made


def _matrices(grid: Grid, start: float, top: float) -> tuple[list[Item], float, float]:
    """A map of matrices by layer, each with its value; its right and its lower end."""
    tall = 22
    wide = [CHAR * max(8, len(column)) + 20 for column in grid.columns]
    left = start + CHAR * (max(map(len, (grid.down, *grid.lines))) + 1)
    lefts = [left + sum(wide[:j]) for j in range(len(wide))]
    items: list[Item] = [Words(start, top + 12, grid.down, tone="muted")]
    items += [Words(x + 4, top + 12, column, tone="muted") for x, column in zip(lefts, grid.columns, strict=True)]
    y = top + LINE
    for i, (line, cells) in enumerate(zip(grid.lines, grid.cells, strict=True)):
        at = y + i * tall
        items.append(Words(start, at + 15, line))
        for x, width, column, cell in zip(lefts, wide, grid.columns, cells, strict=True):
            if cell.empty:
                continue
            items.append(Box(x, at, width - 2, tall - 2, cell.shade, "", title_of(grid, line, column, cell)))
            if mark := mark_of(cell):  # beside the number
                items.append(Box(x + width - 17, at + 4, 12, 12, cell.shade, mark))
            if cell.value is not None:
                items.append(Words(x + 4, at + 15, short(cell.value) + PART * cell.unchecked, cell.shade))
    return items, lefts[-1] + wide[-1] - 2, y + len(grid.cells) * tall


def _outputs(grid: Grid, start: float, top: float) -> tuple[list[Item], float, float]:
    """A map of outputs: rows of the weights across, tokens downwards; its right and its lower end."""
    wide = max(9, min(24, 704 // len(grid.columns)))
    tall = 20 if len(grid.lines) <= 16 else 12
    (tokens, rows), (m, n) = grid.step, grid.size
    left = start + CHAR * max(len(f"{m:,}"), len(f"{grid.down}s")) + 12
    y0 = top + 2 * LINE + 4
    right, bottom = left + wide * n / rows, y0 + tall * m / tokens
    items: list[Item] = [
        Words(left, top + 12, f"{grid.across}s (N = {n:,})", tone="muted"),
        Words(start, top + LINE + 12, f"{grid.down}s", tone="muted"),
    ]
    crossed = not grid.all_wrong  # on every cell a cross would tell nothing
    for i, (line, cells) in enumerate(zip(grid.lines, grid.cells, strict=True)):
        for j, (column, cell) in enumerate(zip(grid.columns, cells, strict=True)):
            if cell.empty:
                continue
            x, y = left + j * wide, y0 + i * tall
            mark = mark_of(cell) if crossed else ""
            items.append(
                Box(x, y, min(x + wide, right) - x - 1, min(y + tall, bottom) - y - 1, cell.shade, mark,
                    title_of(grid, line, column, cell))
            )  # fmt: skip
    for at, text in _ticks(n, rows, wide, CHAR * (len(f"{n:,}") + 1)):
        x = left + wide * at / rows
        items += [Line(x, y0 - 6, x, y0 - 1, "muted"), Words(x, y0 - 9, text, tone="muted", anchor="middle")]
    for at, text in _ticks(m, tokens, tall, LINE):
        y = y0 + tall * at / tokens
        items += [Line(left - 6, y, left - 1, y, "muted"), Words(left - 9, y + 4, text, tone="muted", anchor="end")]
    items += _borders(grid, left, y0, right, bottom, wide, tall)
    for region in _framed(grid):
        x1, y1 = left + wide * region.left, y0 + tall * region.top
        x2, y2 = min(left + wide * (region.right + 1), right), min(y0 + tall * (region.bottom + 1), bottom)
        items.append(Frame(x1 - 1.5, y1 - 1.5, x2 - x1 + 2, y2 - y1 + 2))
    return items, right, bottom


def _ticks(size: int, step: int, pixels: int, apart: int) -> Iterator[tuple[int, str]]:
    """Where an axis of `size` is numbered, and how: every power of two of cells that leaves room, and its end."""
    every = step
    while every * pixels / step < apart:
        every *= 2
    for at in range(0, size, every):
        if not at or (size - at) * pixels / step >= apart:
            yield at, f"{at:,}"
    if size * pixels / step >= apart:
        yield size, f"{size:,}"


def _borders(grid: Grid, left: float, top: float, right: float, bottom: float, wide: int, tall: int) -> Iterator[Line]:
    """Borders of the kernel's tiles inside the map, unless they are too close to distinguish."""
    across, down = _tile_pixels(grid, wide, tall)
    columns = range(1, int((right - left - 1) // across) + 1) if across else ()
    lines = range(1, int((bottom - top - 1) // down) + 1) if down else ()
    for tone, width in (("card", 3), ("text", 1)):  # a light edge, so that they are seen on dark cells
        for i in columns:
            yield Line(left + i * across - 0.5, top, left + i * across - 0.5, bottom - 1, tone, width)
        for i in lines:
            yield Line(left, top + i * down - 0.5, right - 1, top + i * down - 0.5, tone, width)


def _tile_pixels(grid: Grid, wide: int = 0, tall: int = 0) -> tuple[float, float]:
    """Width and height of a tile; 0 where it is not known, or too small to draw."""
    wide, tall = wide or max(9, min(24, 704 // len(grid.columns))), tall or 20
    across, down = wide * grid.tile[1] / grid.step[1], tall * grid.tile[0] / grid.step[0]
    return (across if across >= _TILE_PIXELS else 0), (down if down >= _TILE_PIXELS else 0)


def _framed(grid: Grid) -> list[Region]:
    """The regions with a frame: each wrong region, or one around all if there are many; none if everything is
    wrong."""
    if grid.all_wrong:
        return []
    regions = grid.regions
    if len(regions) <= MOST_FRAMES:
        return regions
    around = regions[0]
    for region in regions[1:]:
        around = around.with_(region)
    return [around]


def _legend(grids: Sequence[Grid], left: float, top: float) -> tuple[list[Item], float]:
    """The scale, and the meaning of the marks that were used; its lower end."""
    half, decade = 14, 28
    items: list[Item] = [
        Words(left, top + 12, "utilisation = |error| / bound,", tone="muted"),
        Words(left, top + LINE + 12, "logarithmic; above 1 is wrong", tone="muted"),
    ]
    y, x = top + 2 * LINE + 4, left
    for i in range(shades.STEPS):
        items.append(Box(x + half * i, y, half, 14, f"u{i}"))
    bound = x + half * shades.STEPS
    items += [Box(bound + decade * i, y, decade, 14, key) for i, key in enumerate(shades.WRONG)]
    items.append(Line(bound, y - 4, bound, y + 18))
    numbers = [(x + half, "1e-4"), (x + 5 * half, "0.01"), (bound, "1"), (bound + 2 * decade, "100"),
               (bound + 4 * decade, "1e4")]  # fmt: skip
    items += [Words(at, y + 30, text, tone="muted", anchor="middle") for at, text in numbers if at >= left + half]
    y += 38
    for shown, words in _marks(grids):
        items += [item._replace(x=left + item.x, y=y + item.y) if not isinstance(item, Line) else
                  item._replace(x1=left + item.x1, x2=left + item.x2, y1=y + item.y1, y2=y + item.y2)
                  for item in shown]  # fmt: skip
        for line in textwrap.wrap(words, _NARROW):
            items.append(Words(left + 24, y + 12, line, tone="muted"))
            y += LINE
        y += 2
    return items, y


def _marks(grids: Sequence[Grid]) -> Iterator[tuple[list[Item], str]]:
    """A sample, at (0, 0), and its meaning."""
    cells = [c for grid in grids for c in grid.drawn]
    if any(grid.n_wrong for grid in grids):
        finite = (c.shade for c in cells if shades.is_wrong(c.shade) and c.shade != shades.WRONG[-1])
        worst = next(finite, shades.WRONG[0])
        yield [Box(1, 1, 14, 14, worst, CROSS)], "over the bound, or wrong"
        if any(c.shade == shades.WRONG[-1] for c in cells):
            yield [Box(1, 1, 14, 14, shades.WRONG[-1], CROSS)], "not finite, or above 1e5"
    if any(c.unchecked and c.value is None for c in cells):
        yield [Box(1, 1, 14, 14, shades.UNCHECKED, STROKE)], "not checked"
    if any(c.unchecked and c.value is not None for c in cells):
        yield [Words(4, 13, PART, tone="text")], "part of it was not checked"
    maps = [grid for grid in grids if not grid.every]
    if any(_framed(grid) for grid in maps):
        yield [Frame(1, 2, 14, 12)], "frame: wrong cells that touch each other"
    for grid in maps:
        (tokens, rows), (m, n) = grid.tile, grid.size
        if any(_tile_pixels(grid)) and (tokens < m or rows < n):
            yield [Line(8, 0, 8, 16, "text")], f"border of the kernel's tiles: {tokens:,} tokens × {rows:,} rows"


# ---- the pictures ----------------------------------------------------------------------------------------------------


def svg(grids: Sequence[Grid], most_titles: int | None = None) -> str:
    """The maps as an SVG document, or, with `most_titles`, as an element of a page that has `scene.style()`.

    Args:
        most_titles: how many cells of a page's map say what they hold when they are pointed at; wrong ones do first.
    """
    alone = most_titles is None
    title = "Utilisation of " + "; ".join(grid.title for grid in grids)
    return scene.svg(drawn(grids, alone), title, " ".join(map(summary, grids)), alone, most_titles=most_titles)


def png(grids: Sequence[Grid]) -> bytes:
    """The maps as PNG, on white."""
    return scene.png(drawn(grids), "; ".join(grid.title for grid in grids))


def boxes(items: Iterable[Item]) -> list[Box]:
    """The cells of maps, without the legend's."""
    return [v for v in items if isinstance(v, Box) and v.title]


# ---- the writer ------------------------------------------------------------------------------------------------------


def _render(report: Report, form: Form) -> str | bytes:
    grids = of_run(report)
    if not grids:
        raise EnvironmentFault("no heat map: the layers rung judged nothing")
    return png(grids) if form.suffix == ".png" else svg(grids)


WRITER = Writer(
    "heat map", "--heat-map",
    {Kind.RUN: _render}, ("heat-map.svg", "heat-map.png"), (".svg", ".png"), "layers",
)  # fmt: skip
