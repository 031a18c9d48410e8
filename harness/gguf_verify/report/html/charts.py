"""Histograms and lines over the nights as SVG for a page. Colours are classes of the page's style sheet, since a page
allows no style attribute, so that nothing from a file can bring one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, isfinite, log10
from typing import NamedTuple

from markupsafe import Markup, escape

from ...results.costs import CostGroup
from ...support.text import printable
from ..shades import rank, short


def _svg(kind: str, width: int, height: int, title: str, told: str, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg class="{kind}" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
        + "".join(parts) + "</svg>"
    )  # fmt: skip


# ---- histogram -------------------------------------------------------------------------------------------------------

#: Bars of a histogram at most; values further apart share bars of more than a decade.
_MOST_BARS = 18


class Bar(NamedTuple):
    """A bar of a histogram: what it counts, its number under the axis, how many, and whether these are right; `apart`
    it stands beside the axis."""

    title: str
    label: str
    n: int
    right: bool
    apart: bool = False


def bars(values: Sequence[float]) -> list[Bar]:
    """Count the values in each step of a logarithmic axis, with a border at 1, the bound: exactly 1 is within it.

    A step is half a decade, or more where the values span many decades. What has no place on such an axis, 0, inf and
    NaN, has a bar of its own; a value below 0 is none of a utilisation, and counts as NaN.
    """
    nan = sum(not v >= 0 for v in values)
    zero, infinite = sum(v == 0 for v in values), sum(v == inf for v in values)
    places = [log10(v) for v in values if isfinite(v) and v > 0]
    out = [Bar("exactly 0", "0", zero, True, True)] if zero else []
    if places:
        low, high = min(-3, floor(min(places))), max(1, ceil(max(places)))  # one decade beyond the bound at least
        step = ceil(2 * (high - low) / _MOST_BARS)  # in half decades
        step += step > 1 and step % 2
        first, last = floor(2 * low / step), ceil(2 * high / step)
        counts = [0] * (last - first)
        for p in places:
            counts[min(last, max(first + 1, ceil(round(2 * p / step, 9)))) - first - 1] += 1
        for i, n in enumerate(counts):
            start = (first + i) * step
            title = f"above {_power(start)} to {_power(start + step)}"
            out.append(Bar(title, _power(start) if (first + i) % 2 == 0 else "", n, first + i < 0))
    for name, n in (("inf", infinite), ("NaN", nan)):
        out += [Bar(name, name, n, False, True)] if n else []
    return out


def _power(halves: int) -> str:
    """Return 10 to the power of this number of halves, as people write it."""
    decades, half = divmod(halves, 2)
    if -4 < decades < 4:
        return f"{10 ** (halves / 2):,.0f}" if halves >= 4 else f"{10 ** (halves / 2):.2g}"
    return f"{'3.2' if half else '1'}e{decades}"


def histogram(values: Sequence[float], title: str) -> Markup | None:
    """`bars` as a picture: right ones left of the bound, wrong ones right of it; None without values."""
    if not values:
        return None
    found = bars(values)
    wide, base, high, gap = 30, 148, max(bar.n for bar in found), 10
    out: list[str] = []
    x, bound = 26.0, None
    for i, bar in enumerate(found):
        if i and bar.apart != found[i - 1].apart:
            x += gap
        if not bar.apart and not bar.right and bound is None:
            bound = x
        place = x + wide / 2 if bar.apart else x
        if bar.label:
            out.append(f'<text class="lab" x="{place:g}" y="{base + 16}" text-anchor="middle">{bar.label}</text>')
        if bar.n:
            tall = max(2, round(100 * bar.n / high))
            kind = "u6" if bar.right else "x2"
            out.append(
                f'<g class="bar {kind}"><title>{bar.title}: {bar.n:,}</title>'
                f'<rect x="{x + 1.5:g}" y="{base - tall}" width="{wide - 3}" height="{tall}" rx="2"/>'
                f'<text class="lab" x="{x + wide / 2:g}" y="{base - tall - 5}" text-anchor="middle">{bar.n:,}'
                "</text></g>"
            )
        x += wide
    out.insert(0, f'<line class="axis" x1="22" x2="{x:g}" y1="{base}" y2="{base}"/>')
    if bound is not None:
        out.append(f'<line class="bound" x1="{bound:g}" x2="{bound:g}" y1="2" y2="{base}"/>')
        out.append(f'<text class="lab" x="{bound - 5:g}" y="12" text-anchor="end">within the bound</text>')
        out.append(f'<text class="lab" x="{bound + 5:g}" y="12">wrong</text>')
    over = sum(not v <= 1 for v in values)
    told = f"{len(values):,} values, the largest {short(max(values, key=rank))}; {over:,} over the bound."
    return _svg("histogram", round(x) + 20, base + 24, title, told, out)


# ---- lines -----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A night: its number, the value (None: there is none), and whether it was a pass."""

    night: int
    value: float | None
    good: bool = True


def lines(points: Sequence[Point], title: str, unit: str = "", log: bool = False) -> Markup | None:
    """One value over the nights, with its axes; None where there is no finite one. With `log` from the least value."""
    wide, tall = 300, 96
    drawn = _curve(points, wide, tall, log)
    if drawn is None:
        return None
    path, marks, least, most, low, high = drawn
    x0, y0 = 56, 14
    out = [f'<line class="axis" x1="{x0}" x2="{x0}" y1="{y0}" y2="{y0 + tall}"/>']
    for place, name in _numbers(low, high, log):
        y = y0 + tall * (1 - (place - low) / (high - low))
        out.append(f'<line class="axis" x1="{x0 - 4}" x2="{x0 + wide}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="lab" x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    step = ceil(len(points) / 6)
    shown = [i for i in range(0, len(points), step) if i == 0 or len(points) - 1 - i >= step / 2]
    for i in dict.fromkeys([*shown, len(points) - 1]):
        x = x0 + (wide * i / (len(points) - 1) if len(points) > 1 else wide / 2)
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y0 + tall}" y2="{y0 + tall + 4}"/>')
        out.append(f'<text class="lab" x="{x:.1f}" y="{y0 + tall + 18}" text-anchor="middle">{points[i].night}</text>')
    out.append(f'<text class="lab" x="{x0 - 8}" y="{y0 + tall + 18}" text-anchor="end">night</text>')
    out.append(f'<g transform="translate({x0} {y0})"><path class="line" d="{path}"/>{marks}</g>')
    return _svg("lines", x0 + wide + 16, y0 + tall + 26, title, _told(points, least, most, unit), out)


def _numbers(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Places on an axis and their labels: whole decades, or steps of 1, 2 or 5."""
    if log:
        step = max(1, ceil((high - low) / 4))
        return [(place, _power(2 * place)) for place in range(ceil(low), floor(high) + 1, step)]
    step = 10 ** floor(log10(high - low))
    step = next(step * f for f in (0.2, 0.5, 1, 2) if (high - low) / (step * f) <= 5)
    return [(i * step, _figure(i * step)) for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _curve(
    points: Sequence[Point], wide: int, tall: int, log: bool
) -> tuple[str, str, float, float, float, float] | None:
    """Path and marks in a box, the least and largest value, and the ends of the axis, which with `log` are whole
    decades. What is not finite stands at the top, as a cross."""
    finite = [p.value for p in points if p.value is not None and isfinite(p.value)]
    if not finite:
        return None
    least, most = min(finite), max(finite)
    if not log:
        least = min(0.0, least)
    scaled = (lambda v: log10(max(v, 1e-12))) if log else (lambda v: v)
    low, high = scaled(least), scaled(most)
    if log:
        low, high = floor(low), ceil(high)
    high = high if high > low else low + 1
    path, marks, crosses, pen = [], [], [], "M"
    for i, p in enumerate(points):
        if p.value is None:
            pen = "M"
            continue
        x = wide * i / (len(points) - 1) if len(points) > 1 else wide / 2
        over = not isfinite(p.value)
        share = 1.0 if over else (scaled(p.value) - low) / (high - low)
        y = tall * (1 - share)
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
        if not p.good or over:
            crosses.append(f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6")
        elif wide > 200 or i == len(points) - 1:
            marks.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    if crosses:
        marks.append(f'<path class="cross" d="{"".join(crosses)}"/>')
    return "".join(path), "".join(marks), least, most, low, high


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _told(points: Sequence[Point], least: float, most: float, unit: str) -> str:
    bad = [str(p.night) for p in points if not p.good]
    final = points[-1].value
    told = f"{len(points)} nights, from {_figure(least)} to {_figure(most)}{unit}"
    told += f", last {short(final) if final is None or not isfinite(final) else _figure(final)}{unit}."
    return told + (f" Not all verified in night {', '.join(bad)}." if bad else "")


# ---- shares ----------------------------------------------------------------------------------------------------------


def shares(parts: Sequence[tuple[str, int]], told: str) -> Markup:
    """Amounts, each with the class of its colour, as one bar that is as wide as the page; None of them is hidden: the
    smallest is one pixel wide."""
    total, x, out = max(1, sum(n for _, n in parts)), 0.0, []
    for kind, n in parts:
        wide = 1000 * n / total
        out.append(f'<rect class="{kind}" x="{x:.2f}" width="{max(wide, 1):.2f}" height="24"/>')
        x += wide
    return Markup(
        '<svg class="shares" role="img" width="100%" height="24" viewBox="0 0 1000 24" preserveAspectRatio="none">'
        f"<title>{escape(told)}</title>{''.join(out)}</svg>"
    )


# ---- the cost of the quantization ------------------------------------------------------------------------------------

#: Layers that are drawn; the table has them all.
_MOST_LAYERS = 200
_WIDE, _TALL, _LEFT, _TOP = 640, 110, 56, 14


def layer_costs(groups: Sequence[CostGroup]) -> Markup | None:
    """The mean relative error of each layer as an SVG; None where all are zero or there is none."""
    drawn = groups[:_MOST_LAYERS]
    most = max((g.mean for g in drawn), default=0.0)
    if not most:
        return None
    wide = min(40.0, _WIDE / len(drawn))
    base, every = _TOP + _TALL, -(-len(drawn) * 44 // _WIDE) if wide < 44 else 1
    out = [f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + wide * len(drawn):.1f}" y1="{base}" y2="{base}"/>']
    for y, value in ((_TOP, most), (base, 0.0)):
        out.append(f'<text class="lab" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.2g}</text>')
    for i, g in enumerate(drawn):
        tall, x = _TALL * g.mean / most, _LEFT + wide * i
        told = f"{printable(g.name, 40)}: mean {g.mean:.3g}, largest {g.worst:.3g} in {printable(g.worst_tensor, 64)}"
        out.append(
            f'<g class="bar u6"><title>{escape(told)}</title><rect x="{x + wide * 0.1:.1f}" y="{base - tall:.1f}" '
            f'width="{wide * 0.8:.1f}" height="{tall:.1f}"/></g>'
        )
        if i % every == 0:
            name = escape(printable(g.name.removeprefix("blk."), 8))
            out.append(f'<text class="lab" x="{x + wide / 2:.1f}" y="{base + 16}" text-anchor="middle">{name}</text>')
    told = f"{len(drawn)} groups of GEMMs, the largest mean relative error {most:.3g}."
    width, height = round(_LEFT + wide * len(drawn) + 12), base + 24
    return _svg("histogram", width, height, "Mean relative error of each layer", told, out)
