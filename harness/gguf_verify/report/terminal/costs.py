"""What the quantization costs, at the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from ...results.costs import CostGroup, QuantizationCosts
from ...support.text import printable
from .console import BOLD, WARN, capped, facts, said, table

MOST_LEFT = 5
#: Said wherever these figures are shown.
FORMULA = (
    "error = ‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖ in float32, with the activations X of the",
    "prompt, the weights W_q, and the source's W_f",
)


def parts(costs: QuantizationCosts) -> Iterator[RenderableType]:
    """The costs, below a heading."""
    yield said(("COSTS", BOLD), f" of the quantization against {printable(costs.source.path, 200)} (no verdict)")
    if costs.gemms:
        yield from FORMULA
        yield _groups("tensors", costs.by_kind)
        yield ""
        yield _groups("layer", costs.by_layer)
    if costs.text is not None:
        yield ""
        yield facts(_predictions(costs))
    left = [said(("NOT MEASURED ", WARN), f"{printable(name, 64)}: {printable(why, 300)}") for name, why in costs.left]
    yield from capped(left, MOST_LEFT, "more")


def _groups(heading: str, groups: Sequence[CostGroup]) -> RenderableType:
    made = table(heading, "types", "GEMMs", "mean error", "largest", "in", right=(2, 3, 4), folded=5)
    for group in groups:
        made.add_row(
            Text(printable(group.name, 40)), Text(printable(group.types, 40)), f"{group.gemms:,}", f"{group.mean:.3g}",
            f"{group.worst:.3g}", Text(printable(group.worst_tensor, 64)),
        )  # fmt: skip
    return made


def _predictions(costs: QuantizationCosts) -> Iterator[tuple[str, str]]:
    found = costs.text
    assert found is not None
    chunks = f"{found.chunks:,} chunk{'' if found.chunks == 1 else 's'} of {found.chunk}"
    yield (
        "text",
        f"{printable(found.text, 100)}: {found.tokens:,} tokens, {found.scored:,} predictions scored ({chunks})",
    )
    yield "perplexity", f"{found.perplexity:.5g}, of the source {found.source_perplexity:.5g}"
    percentiles = " · ".join(f"{name} {value:.3g}" for name, value in found.kl_percentiles.items())
    yield "KL", f"mean {found.kl_mean:.3g} · {percentiles} · max {found.kl_max:.3g}"
    yield "top-1", f"{100 * found.top1:.2f} % of the most probable tokens are the source's"
