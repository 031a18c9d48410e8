"""The grid of a heat map: its cells and their names, computed once. Text, SVG, PNG and pages only draw it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ..results.products import OutputMap
from ..results.report import Report
from ..results.rungs import RungResult
from ..support.text import printable
from .shades import is_wrong, shade, short

#: The most lines and columns of a map by layer; where there are more, neighbours share one.
MOST_LINES, MOST_COLUMNS = 128, 32


class Cell(NamedTuple):
    """A cell of a map.

    Args:
        value: the largest utilisation; None where nothing was judged.
        wrong: how many outputs, or failures, are wrong.
        unchecked: something here should have been judged and was not.
        tensor: whose value it is, where the cell is of tensors.
    """

    value: float | None = None
    wrong: int = 0
    unchecked: bool = False
    tensor: str = ""

    @property
    def empty(self) -> bool:
        """There is nothing to draw."""
        return self.value is None and not self.wrong and not self.unchecked

    @property
    def shade(self) -> str:
        """See `shades.shade`."""
        return shade(self.value, bool(self.wrong))

    def worse(self, other: Cell) -> Cell:
        """Both in one cell."""
        one, two = (-1.0 if cell.value is None else cell.value for cell in (self, other))
        value, tensor = (self.value, self.tensor) if one >= two else (other.value, other.tensor)
        return Cell(value, self.wrong + other.wrong, self.unchecked or other.unchecked, tensor)


def cell(value: float | None, wrong: int = 0, unchecked: bool = False, tensor: str = "") -> Cell:
    """A cell of any number: NaN exceeds every bound."""
    return Cell(inf if value is not None and value != value else value, wrong, unchecked, tensor)


class Region(NamedTuple):
    """A rectangle of cells, by the numbers of its first and last line and column, that holds connected wrong cells."""

    top: int
    left: int
    bottom: int
    right: int

    def meets(self, other: Region) -> bool:
        """Whether they share a cell, or touch, also at a corner."""
        return (
            self.top <= other.bottom + 1 and other.top <= self.bottom + 1
            and self.left <= other.right + 1 and other.left <= self.right + 1
        )  # fmt: skip

    def with_(self, other: Region) -> Region:
        """The smallest one around both."""
        return Region(
            min(self.top, other.top), min(self.left, other.left), max(self.bottom, other.bottom),
            max(self.right, other.right),
        )  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A map.

    Args:
        title: what it shows.
        across, down: what its columns and lines are.
        columns, lines: their names.
        cells: line by line.
        every: each column and line is named beside the map, and each value is written into its cell; otherwise only
            some of them are named, by number.
        size: tokens and rows of the output, where the map is of one.
        step: tokens and rows of a cell.
        tile: tokens and rows that one thread block of the kernel computes; 0 where that is not known.
    """

    title: str
    across: str
    down: str
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    every: bool = False
    size: tuple[int, int] = (0, 0)
    step: tuple[int, int] = (1, 1)
    tile: tuple[int, int] = (0, 0)

    @property
    def drawn(self) -> list[Cell]:
        """Every cell that holds something."""
        return [c for line in self.cells for c in line if not c.empty]

    @property
    def worst(self) -> Cell:
        """The cell of the largest utilisation."""
        return max(self.drawn, key=lambda c: -1.0 if c.value is None else c.value, default=Cell())

    @property
    def n_wrong(self) -> int:
        """How many cells are over the bound, or wrong."""
        return sum(is_wrong(c.shade) for c in self.drawn)

    @property
    def all_wrong(self) -> bool:
        """Every cell is wrong, so that no place stands out."""
        return bool(self.drawn) and self.n_wrong == len(self.drawn)

    @property
    def regions(self) -> list[Region]:
        """Where wrong cells are: a rectangle around all that touch each other, the largest first."""
        wrong = {(i, j) for i, line in enumerate(self.cells) for j, c in enumerate(line) if is_wrong(c.shade)}
        found: list[Region] = []
        while wrong:
            i, j = wrong.pop()
            at, around = Region(i, j, i, j), [(i, j)]
            while around:
                i, j = around.pop()
                at = at.with_(Region(i, j, i, j))
                near = {(i + a, j + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & wrong
                wrong -= near
                around += near
            found.append(at)
        return sorted(_apart(found), key=lambda r: (-(r.bottom - r.top + 1) * (r.right - r.left + 1), r))

    @property
    def told(self) -> list[str]:
        """A description of the map: its wrong places, or that it is flat."""
        worst = self.worst
        whose = f", of {printable(worst.tensor, 64)}" if worst.tensor else ""
        if not self.n_wrong:
            return [f"Nothing is wrong. The largest utilisation is {short(worst.value)}{whose}."]
        what = "matrix" if self.every else "cell"
        if self.all_wrong:
            values = [c.value for c in self.drawn if c.value is not None]
            least, most = min(values, default=None), max(values, default=None)
            span = (
                f"utilisation {short(most)}" if least == most else f"utilisations from {short(least)} to {short(most)}"
            )
            if len(self.drawn) == 1:
                return [f"Its only {what} is wrong: {span}{whose}."]
            alike = most is None or least is None or not most > 1000 * least
            flat = (
                "the map is flat, so look for a cause that all outputs share: a scale, an offset, the layout, the "
                "definition" if alike else "the map is not flat, so look for what the worst cells share"
            )  # fmt: skip
            return [f"Every {what} is wrong, with {span}{whose}: {flat}."]
        regions = self.regions
        verb = "is" if self.n_wrong == 1 else "are"
        count = f"{self.n_wrong:,} of {len(self.drawn):,} cells {verb} wrong"
        places = "; ".join(map(self._place, regions[:3])) + (f"; {len(regions) - 3:,} more" if len(regions) > 3 else "")
        return [f"{count}: {places}. The largest utilisation is {short(worst.value)}{whose}."]

    def _place(self, region: Region) -> str:
        """A region in words."""
        if self.every:
            lines, columns = self.lines[region.top : region.bottom + 1], self.columns[region.left : region.right + 1]
            ends = [names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" for names in (lines, columns)]
            return ", ".join(ends)
        of = []
        for name, first, last, step, size in (
            (self.across, region.left, region.right, self.step[1], self.size[1]),
            (self.down, region.top, region.bottom, self.step[0], self.size[0]),
        ):
            low, high = first * step, min((last + 1) * step, size) - 1
            if low == 0 and high == size - 1:
                of.append(f"all {size:,} {name}s" if size > 1 else f"{name} 0")
            else:
                of.append(f"{name} {low:,}" if low == high else f"{name}s {low:,} to {high:,}")
        return " × ".join(of)


def _apart(regions: list[Region]) -> list[Region]:
    """Regions of which none meets another."""
    out: list[Region] = []
    for one in regions:
        while met := [other for other in out if other.meets(one)]:
            for other in met:
                out.remove(other)
                one = one.with_(other)
        out.append(one)
    return out


def of_gemm(made: OutputMap) -> Grid:
    """The map of the outputs of one GEMM, tokens downwards and rows of the weights across."""
    rows, tokens = made.rows_per_cell, made.tokens_per_cell
    cells = tuple(
        tuple(cell(float(v), int(w)) for v, w in zip(values, wrong, strict=True))
        for values, wrong in zip(made.utilisation, made.wrong, strict=True)
    )
    size = f", {_count(tokens, 'token')} × {_count(rows, 'row')} to a cell" if rows * tokens > 1 else ""
    return Grid(
        f"{printable(made.where, 64)}, {printable(made.who, 64)}: {made.m:,} tokens × {made.n:,} rows{size}",
        "row", "token", tuple(str(i * rows) for i in range(len(cells[0]))),
        tuple(str(i * tokens) for i in range(len(cells))), cells, size=(made.m, made.n), step=(tokens, rows),
        tile=(made.tile_tokens, made.tile_rows),
    )  # fmt: skip


def of_layers(rung: RungResult) -> Grid | None:
    """The map of a layers rung by layer and matrix; None where it judged nothing and left nothing out."""
    cells = [cell(gemm.worst, gemm.failures, tensor=gemm.tensor) for gemm in rung.gemms]
    cells += [Cell(unchecked=True, tensor=left.tensor) for left in rung.unverified if left.tensor]
    return by_layer(cells, "the kernel, the worst of each matrix")


def of_run(report: Report) -> list[Grid]:
    """The maps of a run: of the first wrong GEMM, then of all layers."""
    layers = report.rung("layers")
    if layers is None:
        return []
    wrong, whole = layers.heat_map, of_layers(layers)
    return [*([] if wrong is None else [of_gemm(wrong)]), *([] if whole is None else [whole])]


def by_layer(cells: Iterable[Cell], title: str) -> Grid | None:
    """A map of tensors by layer and matrix, each of the worst of its cells; None where there is no cell."""
    found: dict[tuple[str, str], Cell] = {}
    for one in cells:
        at = place(one.tensor)
        found[at] = found[at].worse(one) if at in found else one
    if not found:
        return None
    lines = _merged(sorted({line for line, _ in found}, key=_order), MOST_LINES)
    columns = _merged(list(dict.fromkeys(column for _, column in found)), MOST_COLUMNS)
    merged: dict[tuple[str, str], Cell] = {}
    for (line, column), one in found.items():
        at = lines[line], columns[column]
        merged[at] = merged[at].worse(one) if at in merged else one
    down, across = (tuple(dict.fromkeys(names.values())) for names in (lines, columns))
    grid = tuple(tuple(merged.get((line, column), Cell()) for column in across) for line in down)
    return Grid(title, "matrix", "layer", across, down, grid, every=True)


_NO_LAYER = "model"
_BLOCK = re.compile(r"(?:(.*)\.)?blk\.([0-9]{1,9})\.(.+)")


def place(tensor: str) -> tuple[str, str]:
    """Layer and matrix of a tensor's name: blk.3.attn_q.weight is ("blk.3", "attn_q"), output.weight ("model", …)."""
    name = re.sub(r" (expert|matrix) [0-9]+$", "", tensor[:1000])  # one of the matrices that a tensor may hold
    found = _BLOCK.fullmatch(name)
    matrix = (found[3] if found else name).removesuffix(".weight")
    layer = _NO_LAYER if found is None else ".".join(filter(None, (found[1], "blk", found[2])))
    return printable(layer, 16), printable(matrix, 20)


def _order(layer: str) -> tuple[bool, str, int]:
    """Layers by number, then the rest."""
    start, _, number = layer.rpartition(".")
    return layer == _NO_LAYER, start, int(number) if number.isdecimal() else 0


def _merged(names: Sequence[str], most: int) -> dict[str, str]:
    """Name → the name of its line: its own or, where there are too many, that of several neighbours."""
    step = -(-len(names) // most) or 1
    groups = [names[i : i + step] for i in range(0, len(names), step)]
    return {name: group[0] if len(group) == 1 else f"{group[0]} - {group[-1]}" for group in groups for name in group}


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")
