"""A run: the verdict, who is at fault, the diagnosis, the rungs, the first failures, what the quantization costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...results.costs import CostGroup, QuantizationCosts, TextCost
from ...results.report import Report
from ...results.rungs import RungResult
from ...support.text import counted, sentence
from .. import run_words, shades
from .page import LIMIT, MARKS, Page, escaped, heading

MOST_FAILURES = 5


def render(report: Report, limit: int = LIMIT) -> str:
    """The run, below `limit` (at least 10,000) bytes."""
    page, environment = Page(limit), report.environment
    page.add(heading(report.verdict, report.words), "")
    name = environment.file.path.rpartition("/")[2]
    kernel = f"kernel {escaped(environment.kernel.name, 100)}, declared {escaped(environment.kernel.declared)}"
    if not report.kernel_ran:
        kernel = "no product of a kernel was made"
    llama = f"llama.cpp {escaped(environment.versions.llama_cpp, 40)}"
    if report.drawn is not None and not report.drawn.compared:
        llama = "exact products alone"
    page.add(f"{escaped(name, 100)}: {kernel}, against {llama}.", "")
    if report.drawn is not None:
        page.add(f"On random data (no model): {escaped(run_words.drawn(report.drawn))}.", "")
    if report.culprits:
        page.add(f"{escaped(sentence(report.at_fault))}.", "")
    if means := environment.kernel.verified_means:
        page.add(f"Verified here means: {escaped(means)}.", "")
    for words_of_limit in report.limits[:2]:
        page.add(f"Limit: {escaped(words_of_limit)}.", "")
    if report.fault:
        page.add(f"Broken off: {escaped(report.fault)}.", "")
    if report.unfinished:
        page.add(f"Incomplete: {escaped(report.unfinished, 600)}.", "")
    for _, diagnosis in report.diagnosed:
        page.add(f"**Diagnosis** of {escaped(diagnosis.tensor, 100)}:", "")
        page.add(*(f"- {escaped(line)}" for line in diagnosis.lines), "")
    rungs = [_rung(rung) for rung in report.rungs]
    rungs += [(name, f"{MARKS['warn']} not run", "nothing", "–") for name in report.not_climbed]
    page.table(("rung", "verdict", "checked", "worst utilisation"), rungs)
    if failures := report.failures:
        told = [(rung.name, escaped(failure.what)) for rung, failure in failures[:MOST_FAILURES]]
        page.table((f"first of {counted(report.n_failures, 'failures')}, in", "what"), told)
    if report.waivers:
        page.add(*(f"- Waiver, {use.state}: {escaped(use.words, 600)}" for use in report.waivers), "")
    if left := [(rung.name, u) for rung in report.rungs for u in rung.unverified]:
        rows = [(name, escaped(u.title, 100), escaped(u.why)) for name, u in left]
        page.fold(f"{len(left):,} could not be verified", ("rung", "what", "why"), rows)
    if skipped := report.skipped:
        rows = [
            (check.title, "in part" if check.done else "no", escaped("; ".join(check.skipped))) for check in skipped
        ]
        page.fold(f"{len(skipped):,} classes of checks were skipped", ("check", "done", "why"), rows)
    if report.costs is not None:
        _add_costs(page, report.costs)
    digests = ", ".join(environment.file.sha256)
    seed = environment.options.seed
    page.add(f"gguf-verify {environment.versions.gguf_verify} · seed {seed} · SHA-256 of the model {digests}")
    return page.text


def _rung(rung: RungResult) -> Sequence[str]:
    mark, worst = MARKS[shades.level(rung.outcome)], rung.worst_utilisation
    checked = run_words.counts(rung.checked) or "nothing"
    return rung.name, f"{mark} {rung.outcome}", checked, "–" if worst is None else f"{worst:.3g}"


# ---- what the quantization costs -------------------------------------------------------------------------------------

FORMULA = "‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖"


def _add_costs(page: Page, costs: QuantizationCosts) -> None:
    """The costs as a section."""
    page.add(f"### What the quantization costs, against {escaped(costs.source.path.rpartition('/')[2], 100)}", "")
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
