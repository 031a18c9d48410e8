"""Histograms and lines over the nights as SVG for a page. Colours are classes of the page's style sheet, since a page
allows no style attribute, so that nothing from a file can bring one."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

from markupsafe import Markup, escape

from ..shades import rank, short


def _svg(kind: str, width: int, height: int, title: str, told: str, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg class="{kind}" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
        + "".join(parts) + "</svg>"
    )  # fmt: skip


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
            f'<g class="bar {"x0" if x >= bound else "u6"}"><title>{low:.2g} to {low * 10**0.5:.2g}: {n:,}</title>'
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
