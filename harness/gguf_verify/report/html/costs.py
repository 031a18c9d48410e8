"""What the quantization costs, arranged for the templates, with a bar for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from ...results.costs import CostGroup, QuantizationCosts
from ...results.report import Report
from ...support.text import printable

#: Layers that are drawn; the table has them all.
_MOST_BARS = 200
_WIDE, _TALL, _LEFT, _TOP = 640, 110, 56, 14


class Costs(NamedTuple):
    """Ready to be shown."""

    found: QuantizationCosts
    bars: Markup | None
    predictions: Sequence[tuple[str, str]]


def of(report: Report) -> Costs | None:
    """The costs of a run; None where none were measured."""
    found = report.costs
    return None if found is None else Costs(found, bars(found.by_layer), list(_predictions(found)))


def _predictions(costs: QuantizationCosts) -> list[tuple[str, str]]:
    text = costs.text
    if text is None:
        return []
    return [
        ("text", f"{text.text}: {text.tokens:,} tokens"),
        ("predictions scored", f"{text.scored:,} ({text.chunks:,} × {text.chunk} tokens, the second half of each)"),
        ("perplexity", f"{text.perplexity:.5g}"), ("perplexity of the source", f"{text.source_perplexity:.5g}"),
        ("KL divergence, mean", f"{text.kl_mean:.3g}"),
        *((f"KL divergence, {name} below", f"{value:.3g}") for name, value in text.kl_percentiles.items()),
        ("KL divergence, largest", f"{text.kl_max:.3g}"), ("same most probable token", f"{100 * text.top1:.2f} %"),
    ]  # fmt: skip


def bars(groups: Sequence[CostGroup]) -> Markup | None:
    """The mean relative error of each layer as an SVG; None where all are zero or there is none."""
    drawn = groups[:_MOST_BARS]
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
    return Markup(
        f'<svg class="histogram" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>Mean relative error of each layer</title><desc>{told}</desc>{''.join(out)}</svg>"
    )
