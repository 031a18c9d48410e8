"""The grid of a heat map: its cells and their names, computed once. Text, SVG, PNG and pages only draw it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ..results import OutputMap, Report, RungResult
from ..support.text import printable
from .shades import shade

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
    """A cell of any number: what is not a number exceeds every bound."""
    return Cell(inf if value is not None and value != value else value, wrong, unchecked, tensor)


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
    """

    title: str
    across: str
    down: str
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    every: bool = False

    @property
    def drawn(self) -> list[Cell]:
        """Every cell that holds something."""
        return [c for line in self.cells for c in line if not c.empty]

    @property
    def worst(self) -> Cell:
        """The cell of the largest utilisation."""
        return max(self.drawn, key=lambda c: -1.0 if c.value is None else c.value, default=Cell())


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
        tuple(str(i * tokens) for i in range(len(cells))), cells,
    )  # fmt: skip


def of_layers(rung: RungResult) -> Grid | None:
    """The map of a layers rung by layer and matrix; None where it judged nothing and left nothing out."""
    cells = [cell(gemm.worst, gemm.failures, tensor=gemm.tensor) for gemm in rung.gemms]
    cells += [Cell(unchecked=True, tensor=left.tensor) for left in rung.unverified if left.tensor]
    return by_layer(cells, "the kernel, the worst of each matrix")


def of_run(report: Report) -> list[Grid]:
    """What a run gives to draw: the first wrong GEMM, then all layers."""
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
    """Layers by number, then what is in none."""
    start, _, number = layer.rpartition(".")
    return layer == _NO_LAYER, start, int(number) if number.isdecimal() else 0


def _merged(names: Sequence[str], most: int) -> dict[str, str]:
    """Name → the name of its line: its own or, where there are too many, that of several neighbours."""
    step = -(-len(names) // most) or 1
    groups = [names[i : i + step] for i in range(0, len(names), step)]
    return {name: group[0] if len(group) == 1 else f"{group[0]} - {group[-1]}" for group in groups for name in group}


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")
