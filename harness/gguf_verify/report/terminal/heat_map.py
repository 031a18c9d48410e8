"""The map of a wrong GEMM in characters."""

from __future__ import annotations

from math import isfinite, log10

from .. import shades
from ..grid import Cell, Grid

#: Lines of a map, without title, labels and legend.
LINES = 12

_RANK = " .x0123456789#"
_BLOCKS = {".": "·", **dict.fromkeys("0", "░"), **dict.fromkeys("12", "▒"), **dict.fromkeys("345", "▓"),
           **dict.fromkeys("6789", "█")}  # fmt: skip
_SHADES = {"░": "1 to 10", "▒": "10 to 1,000", "▓": "1,000 to 10⁶", "█": "10⁶ and more"}
_LEGEND = ((".", ". right"), ("x", "x within the bound, but wrong in its bits or its score"), ("#", "# not finite"))


def as_text(grid: Grid, blocks: bool = False) -> list[str]:
    """The map of a GEMM in at most 15 lines of plain characters, or with block characters.

    Neighbouring lines that look the same are drawn once. `.` is right; a digit is the power of ten by which the worst
    of the cell exceeds the bound; `x` is within it and wrong in its bits or its score; `#` is not finite.
    """
    drawn = [list(map(_plain, line)) for line in grid.cells]
    step = -(-len(drawn) // LINES)
    drawn = [[max(column, key=_RANK.index) for column in zip(*drawn[i : i + step], strict=True)]
             for i in range(0, len(drawn), step)]  # fmt: skip
    labels = grid.lines[::step]
    width = max(len(grid.down) + 1 + max(map(len, labels)), len(grid.across))
    out, last = [], ""
    for label, line in zip(labels, drawn, strict=True):
        shown = "".join(_BLOCKS.get(c, c) if blocks else c for c in line)
        if shown != last:
            out.append(f"{grid.down} {label:>{width - len(grid.down) - 1}}  {shown}".rstrip())
        last = shown
    names, end = "", 0
    for i, column in enumerate(grid.columns):
        if i % 8 == 0 and i >= end and i + len(column) <= max(len(grid.columns), 8):
            names, end = f"{names:<{i}}{column}", i + len(column) + 1
    legend = "; ".join(_legend({c for line in drawn for c in line}, blocks))
    return [f"utilisation of {grid.title}", f"{grid.across:<{width}}  {names}", *out, legend]


def _legend(used: set[str], blocks: bool) -> list[str]:
    said = [words for c, words in _LEGEND if c in used]
    digits = sorted(used & set("0123456789"))
    if not digits:
        return said
    if blocks:
        return said + [f"{shade} {_SHADES[shade]} × the bound" for shade in dict.fromkeys(_BLOCKS[d] for d in digits)]
    span = digits[0] if len(digits) == 1 else f"{digits[0]}…{digits[-1]}"
    return [*said, f"{span}: over the bound by that power of 10"]


def _plain(cell: Cell) -> str:
    if cell.value is None:
        return " "
    if not isfinite(cell.value):
        return "#"
    if not shades.is_wrong(cell.shade):
        return "."
    return "x" if cell.value <= 1 else str(min(9, int(log10(cell.value))))
