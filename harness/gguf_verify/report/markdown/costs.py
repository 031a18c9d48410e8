"""What a quantization costs, for a model card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...results.costs import CostGroup, QuantizationCosts, TextCost
from .page import Page, escaped

FORMULA = "‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖"


def add(page: Page, costs: QuantizationCosts) -> None:
    """The costs as a section."""
    page.add(f"### What the quantization costs, against {escaped(_name(costs.source.path), 100)}", "")
    if (text := costs.text) is not None:
        page.table(("on a text", "this model", "its source"), _predictions(text))
        page.add(
            f"{escaped(text.text, 100)}: {text.tokens:,} tokens, {text.scored:,} predictions scored "
            f"({text.chunks:,} × {text.chunk} tokens, the second half of each), as llama-perplexity defines them, "
            f"computed by llama.cpp; SHA-256 of the text {text.sha256}.",
            "",
        )
    if costs.gemms:
        page.add(
            f"Relative error of each GEMM on real activations: `{FORMULA}`, X the activations of a prompt, W_q these "
            "weights, W_f the source's, in float32.",
            "",
        )
        page.table(("tensors", "type", "GEMMs", "mean error", "largest error", "in"), _groups(costs.by_kind))
        page.fold("By layer", ("layer", "type", "GEMMs", "mean error", "largest error", "in"), _groups(costs.by_layer))
    if costs.left:
        page.fold("Not measured", ("what", "why"), [(escaped(name, 100), escaped(why)) for name, why in costs.left])


def _predictions(text: TextCost) -> Iterator[Sequence[str]]:
    yield "perplexity", f"{text.perplexity:.4f}", f"{text.source_perplexity:.4f}"
    yield "KL divergence, mean", f"{text.kl_mean:.6f}", ""
    for name, value in text.kl_percentiles.items():
        yield f"KL divergence, {name} of predictions below", f"{value:.6f}", ""
    yield "KL divergence, largest", f"{text.kl_max:.6f}", ""
    yield "same most probable token", f"{100 * text.top1:.2f} %", ""


def _groups(groups: Sequence[CostGroup]) -> Iterator[Sequence[str]]:
    for g in groups:
        yield (
            escaped(g.name, 60), escaped(g.types, 60), f"{g.gemms:,}", f"{g.mean:.5f}", f"{g.worst:.5f}",
            escaped(g.worst_tensor, 100),
        )  # fmt: skip


def _name(path: str) -> str:
    return path.rpartition("/")[2]
