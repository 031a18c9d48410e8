"""Pictures of utilisation as SVG for a page: heat map, histogram, lines. Colours are classes of the page's style sheet.

Pure functions. `harness/report/html` allows no style attribute, so that nothing from a file can bring one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

from markupsafe import Markup, escape

from ...results import OutputMap
from ...support.text import printable

#: Steps of the scale: less than 10⁻⁴ of the bound, then two steps a decade up to it.
STEPS = 9
#: Lines and columns of a heat map; more are put together.
MOST_LINES, MOST_COLUMNS = 64, 24
#: Wrong cells of a GEMM that say where they are; all are drawn.
MOST_TITLES = 100


class Gemm(NamedTuple):
    """A tensor, the worst utilisation of its products (None: not checked), and how many outputs were wrong."""

    tensor: str
    utilisation: float | None
    wrong: int = 0


def shade(utilisation: float | None, wrong: bool = False) -> str:
    """Class of a cell: u0 … u8 within the bound, "ux" over it or wrong, "un" not checked."""
    if utilisation is None:
        return "ux" if wrong else "un"
    if wrong or not utilisation <= 1:
        return "ux"
    if utilisation <= 0:
        return "u0"
    return f"u{min(STEPS - 1, max(0, floor(2 * (log10(utilisation) + 4)) + 1))}"


def short(value: float | None) -> str:
    """A utilisation in at most seven characters."""
    if value is None:
        return "–"
    if not isfinite(value):
        return "NaN" if value != value else "inf"
    return f"{value:,.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


_BLOCK = re.compile(r"(?:(.*)\.)?blk\.([0-9]{1,9})\.(.+)")
_NO_LAYER = "model"


def place(tensor: str) -> tuple[str, str]:
    """Layer and matrix of a tensor's name: blk.3.attn_q.weight is ("blk.3", "attn_q"), output.weight ("model", …)."""
    name = re.sub(r" (expert|matrix) [0-9]+$", "", tensor[:1000])
    found = _BLOCK.fullmatch(name)
    matrix = (found[3] if found else name).removesuffix(".weight")
    layer = _NO_LAYER if found is None else ".".join(filter(None, (found[1], "blk", found[2])))
    return printable(layer, 16), printable(matrix, 20)


def _by_number(layer: str) -> tuple[bool, str, int]:
    start, _, number = layer.rpartition(".")
    return layer == _NO_LAYER, start, int(number) if number.isdecimal() else 0


def _merged(names: Sequence[str], most: int) -> dict[str, str]:
    """Name → label of its line; where there are too many, some in a row share one."""
    step = -(-len(names) // most) or 1
    groups = [names[i : i + step] for i in range(0, len(names), step)]
    return {name: group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}" for group in groups for name in group}


def heat_map(gemms: Iterable[Gemm], title: str) -> Markup | None:
    """The worst of each matrix by layer; None where there is nothing to show."""
    found: dict[tuple[str, str], Gemm] = {}
    for gemm in gemms:
        at = place(gemm.tensor)
        found[at] = _worse(found.get(at), gemm)
    if not found:
        return None
    lines = _merged(sorted({line for line, _ in found}, key=_by_number), MOST_LINES)
    columns = _merged(list(dict.fromkeys(column for _, column in found)), MOST_COLUMNS)
    cells: dict[tuple[str, str], Gemm] = {}
    for (line, column), gemm in found.items():
        at = lines[line], columns[column]
        cells[at] = _worse(cells.get(at), gemm)
    return _grid(list(dict.fromkeys(lines.values())), list(dict.fromkeys(columns.values())), cells, title)


def _worse(a: Gemm | None, b: Gemm) -> Gemm:
    if a is None:
        return b
    return max(a, b, key=lambda gemm: rank(gemm.utilisation))._replace(wrong=a.wrong + b.wrong)


_WIDE, _TALL, _CHAR = 62, 26, 7.2


def _grid(lines: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Gemm], title: str) -> Markup:
    left = round(_CHAR * max(map(len, lines))) + 14
    top = round(0.75 * _CHAR * max(map(len, columns))) + 16
    width = left + _WIDE * len(columns) + round(0.75 * _CHAR * len(columns[-1])) + 8
    height = top + _TALL * len(lines) + 4
    out = []
    for j, column in enumerate(columns):
        x, y = left + j * _WIDE + _WIDE // 2 - 6, top - 8
        out.append(f'<text class="lab" transform="translate({x} {y}) rotate(-45)">{escape(column)}</text>')
    for i, line in enumerate(lines):
        y = top + i * _TALL
        out.append(f'<text class="lab" x="{left - 8}" y="{y + 17}" text-anchor="end">{escape(line)}</text>')
        for j, column in enumerate(columns):
            if (cell := cells.get((line, column))) is None:
                continue
            x, look = left + j * _WIDE, shade(cell.utilisation, bool(cell.wrong))
            told = "not checked" if cell.utilisation is None else f"utilisation {short(cell.utilisation)}"
            told += f", {cell.wrong:,} wrong" if cell.wrong else ""
            mark = "✕ " if look == "ux" else ""
            out.append(
                f'<g class="{look}"><title>{escape(f"{line} {column}: {told}")}</title>'
                f'<rect x="{x}" y="{y}" width="{_WIDE - 3}" height="{_TALL - 3}" rx="4"/>'
                f'<text x="{x + (_WIDE - 3) / 2}" y="{y + 16}" text-anchor="middle">{mark}{short(cell.utilisation)}'
                "</text></g>"
            )
    worst = max(cells.values(), key=lambda c: rank(c.utilisation))
    wrong = sum(1 for c in cells.values() if shade(c.utilisation, bool(c.wrong)) == "ux")
    told = (
        f"{len(lines)} layers by {len(columns)} matrices. Worst utilisation {short(worst.utilisation)}, of "
        f"{printable(worst.tensor, 64)}; {wrong} of {len(cells)} over the bound or wrong."
    )
    return _svg("heat", width, height, title, told, out)


def rank(value: float | None) -> float:
    """For the worst of several: what is not a number is worse than anything, nothing better."""
    return -1.0 if value is None else float("inf") if value != value else value


def _svg(kind: str, width: int, height: int, title: str, told: str, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg class="{kind}" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
        + "".join(parts) + "</svg>"
    )  # fmt: skip


def outputs_map(made: OutputMap) -> Markup:
    """The first wrong GEMM, tokens down and rows across: `heat_map` of the layers rung."""
    size, left, top = 11, 64, 26
    out = [f'<text class="lab" x="{left}" y="14">row 0 to {made.n - 1:,}</text>']
    out += [f'<text class="lab" x="{left - 8}" y="{top + 9}" text-anchor="end">token 0</text>']
    boxes: dict[str, list[str]] = {}
    crosses, told, shown = [], [], 0
    for i, (values, bad) in enumerate(zip(made.utilisation, made.wrong, strict=True)):
        for j, (value, n) in enumerate(zip(values, bad, strict=True)):
            x, y, used = left + j * size, top + i * size, value
            shown += 1
            box = f"M{x} {y}h{size - 1}v{size - 1}h-{size - 1}z"
            boxes.setdefault(shade(used, bool(n)), []).append(box)
            if n:
                row, token = j * made.rows_per_cell, i * made.tokens_per_cell
                crosses.append(f"M{x + 2} {y + 2}l6 6m0 -6l-6 6")
                told.append(
                    f'<path class="seen" d="{box}"><title>token {token}, row {row}: {short(used)}</title></path>'
                )
    out += [f'<path class="{look}" d="{"".join(parts)}"/>' for look, parts in boxes.items()]
    out += [f'<path class="mark" d="{"".join(crosses)}"/>', *told[:MOST_TITLES]]
    width = left + size * max(map(len, made.utilisation)) + 8
    each = f"{made.tokens_per_cell} × {made.rows_per_cell} outputs (tokens × rows)"
    said = f"{made.m:,} tokens by {made.n:,} rows, a cell {each}; {len(crosses):,} of {shown:,} cells are wrong."
    title = f"Utilisation of {printable(made.where, 64)}, {printable(made.who, 64)}"
    return _svg("heat", max(width, 200), top + size * len(made.utilisation) + 8, title, said, out)


# ---- histogram -------------------------------------------------------------------------------------------------------

_LEAST, _BINS = -5, 12  # from 10⁻⁵ to 10, two bins a decade


def histogram(values: Sequence[float], title: str) -> Markup | None:
    """How many values are in each half decade; those outside stand at the ends, what is not a number over the bound."""
    if not values:
        return None
    counts = [0] * _BINS
    for v in values:
        at = _BINS - 1 if not isfinite(v) else 0 if v <= 0 else floor(2 * (log10(v) - _LEAST))
        counts[min(_BINS - 1, max(0, at))] += 1
    bar, base, left, high = 28, 132, 12, max(counts)
    bound = left + bar * 2 * -_LEAST
    out = [f'<line class="axis" x1="{left}" x2="{left + bar * _BINS}" y1="{base}" y2="{base}"/>']
    for i, n in enumerate(counts):
        low, x = 10 ** (_LEAST + i / 2), left + i * bar
        if i % 2 == 0:
            name = f"{low:g}" if low >= 1e-3 else f"1e{_LEAST + i // 2}"
            out.append(f'<text class="lab" x="{x}" y="{base + 16}" text-anchor="middle">{name}</text>')
        if not n:
            continue
        tall = max(2, round(100 * n / high))
        out.append(
            f'<g class="{"over" if x >= bound else "bar"}"><title>{low:.2g} to {low * 10**0.5:.2g}: {n:,}</title>'
            f'<rect x="{x + 1.5}" y="{base - tall}" width="{bar - 3}" height="{tall}" rx="2"/>'
            f'<text class="lab" x="{x + bar / 2}" y="{base - tall - 5}" text-anchor="middle">{n:,}</text></g>'
        )
    out.append(f'<line class="bound" x1="{bound}" x2="{bound}" y1="8" y2="{base}"/>')
    out.append(f'<text class="lab" x="{bound - 5}" y="16" text-anchor="end">bound</text>')
    over = sum(not v <= 1 for v in values)
    told = f"{len(values):,} values, the largest {short(max(values, key=rank))}; {over:,} over the bound."
    return _svg("histogram", left + bar * _BINS + 24, base + 24, title, told, out)


# ---- lines -----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A night: its number, the value (None: there is none), and whether it was a pass."""

    night: int
    value: float | None
    good: bool = True


def lines(points: Sequence[Point], title: str, unit: str = "", log: bool = False) -> Markup | None:
    """One value over the nights, with its axis; None where there is no finite one. With `log` from the least value."""
    drawn = _curve(points, 300, 84, log)
    if drawn is None:
        return None
    path, marks, least, most = drawn
    x0, y0 = 56, 12
    out = [f'<line class="axis" x1="{x0}" x2="{x0 + 300}" y1="{y0 + y}" y2="{y0 + y}"/>' for y in (0, 84)]
    for y, value in ((4, most), (88, least)):
        out.append(f'<text class="lab" x="{x0 - 6}" y="{y0 + y}" text-anchor="end">{_figure(value)}</text>')
    first, final = points[0].night, points[-1].night
    out.append(f'<text class="lab" x="{x0}" y="{y0 + 104}">night {first}</text>')
    if final != first:
        out.append(f'<text class="lab" x="{x0 + 300}" y="{y0 + 104}" text-anchor="end">{final}</text>')
    out.append(f'<g transform="translate({x0} {y0})"><path class="line" d="{path}"/>{marks}</g>')
    return _svg("lines", x0 + 312, y0 + 112, title, _told(points, least, most, unit), out)


def sparkline(points: Sequence[Point], title: str, log: bool = False) -> Markup | None:
    """The same without an axis, for a cell of a table."""
    drawn = _curve(points, 112, 20, log)
    if drawn is None:
        return None
    path, marks, least, most = drawn
    out = [f'<g transform="translate(4 4)"><path class="line" d="{path}"/>{marks}</g>']
    return _svg("spark", 120, 28, title, _told(points, least, most, ""), out)


def _curve(points: Sequence[Point], wide: int, tall: int, log: bool) -> tuple[str, str, float, float] | None:
    """Path and marks in a box, and the least and largest value. What is not finite stands at the top, as a cross."""
    finite = [p.value for p in points if p.value is not None and isfinite(p.value)]
    if not finite:
        return None
    least, most = min(finite), max(finite)
    if not log:
        least = min(0.0, least)
    scaled = (lambda v: log10(max(v, 1e-12))) if log else (lambda v: v)
    low, high = scaled(least), scaled(most)
    path, marks, crosses, pen = [], [], [], "M"
    for i, p in enumerate(points):
        if p.value is None:
            pen = "M"
            continue
        x = wide * i / (len(points) - 1) if len(points) > 1 else wide / 2
        over = not isfinite(p.value)
        share = 1.0 if over else (scaled(p.value) - low) / (high - low) if high > low else 0.5
        y = tall * (1 - share)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
        if not p.good or over:
            crosses.append(f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6")
        elif wide > 200 or i == len(points) - 1:
            marks.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    if crosses:
        marks.append(f'<path class="cross" d="{"".join(crosses)}"/>')
    return "".join(path), "".join(marks), least, most


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _told(points: Sequence[Point], least: float, most: float, unit: str) -> str:
    bad = [str(p.night) for p in points if not p.good]
    final = points[-1].value
    told = f"{len(points)} nights, from {_figure(least)} to {_figure(most)}{unit}"
    told += f", last {short(final) if final is None or not isfinite(final) else _figure(final)}{unit}."
    return told + (f" Not all verified in night {', '.join(bad)}." if bad else "")
