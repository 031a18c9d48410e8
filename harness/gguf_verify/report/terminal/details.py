"""Details of a run: everything that `-v` adds, and the costs of the quantization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...results.composition import Composition
from ...results.costs import CostGroup, QuantizationCosts
from ...results.products import TypeEnvelope
from ...results.report import Report
from ...support.text import counted, printable
from .. import run_words
from ..writer import Form
from . import failures
from .console import BOLD, WARN, capped, facts, said, table


def rest(report: Report, form: Form) -> Iterator[RenderableType]:
    """Everything else that was found."""
    yield facts(_environment(report))
    if report.skipped and not run_words.of_costs(report):
        yield ""
        yield facts(("" if i else "skipped", printable(c.words, 600)) for i, c in enumerate(report.skipped))
    if any(rung.worst for rung in report.rungs):
        yield ""
        yield _worst(report)
    if envelopes := list(_envelopes(report)):
        yield ""
        yield facts(envelopes)
    if ranges := list(_ranges(report)):
        yield facts(ranges)
    if notes := list(_notes(report)):
        yield ""
        yield facts(notes)
    if report.n_failures:
        yield ""
        yield from failures.further(report, form)
    if form.whole:
        yield ""
        yield from _details(report)


def _environment(report: Report) -> Iterator[tuple[str, str]]:
    e, drawn = report.environment, report.drawn is not None
    v, file, kernel = e.versions, e.file, e.kernel
    yield "versions", f"gguf-verify {v.gguf_verify} · llama.cpp {v.llama_cpp} (llama-cpp-python {v.llama_cpp_python})"
    yield "", f"ggml {v.ggml} · python {v.python} · numpy {v.numpy} · gguf {v.gguf} · {v.platform}"
    architecture = printable(file.architecture or "no architecture", 40)
    bits = f" · {Composition(file.types).bits_per_weight:.2f} bits per weight" if file.types else ""
    yield "file", f"{printable(file.path, 200)} · {file.size:,} bytes · {architecture} · {file.of_types}{bits}"
    for i, digest in enumerate(file.sha256):
        yield "sha256" if not i else "", digest
    yield "host", printable(e.host.words, 300) + (f" · chosen {printable(e.host.chosen, 200)}" if e.host.chosen else "")
    ran = "" if report.kernel_ran else " · was not run"
    order = f"declares {kernel.declared} · order of summation: {kernel.order}"
    yield "kernel", f"{printable(kernel.name, 200)}{ran} · {order}"
    if kernel.judged_by:
        yield "", f"judged by {printable(kernel.judged_by, 200)}"
    for code in kernel.code:
        yield "compiled", printable(code, 600)
    if kernel.coverage is not None:
        yield "code run", kernel.coverage.words
        yield from (("", place.words) for place in kernel.coverage.never)
    if kernel.element_kernels:
        names = ", ".join(f"{kind} by {name}" for kind, name in kernel.element_kernels.items())
        where = "" if kernel.element_host == e.host else f" on {printable(kernel.element_host.words, 200)}"
        yield "", f"matrices that are not quantized: {names}{where}, in ascending k"
    yield "exact on", printable(e.exact_on, 300)
    definitions = ", ".join(f"{kind}: {name}" for kind, name in e.reference.definitions.items())
    yield "reference", f"llama.cpp on {e.reference.where} · {definitions}"
    yield "sandbox", printable(e.sandbox.words, 400)
    o = e.options
    tokens = "" if drawn else f' · {o.n_predict} tokens after "{printable(o.prompt, 60)}"'
    yield "run", f"seed {o.seed} · {o.threads} threads{tokens}"


def _worst(report: Report) -> Table:
    made = table("rung", "output of", "worst", "score", "worst at", right=(2, 3), folded=4)
    for rung in report.rungs:
        for i, (who, worst) in enumerate(rung.worst.items()):
            made.add_row(
                "" if i else rung.name, Text(printable(who, 80)), f"{worst.utilisation:.3g}", f"{worst.score:.3g}",
                Text(printable(worst.where, 300)),
            )  # fmt: skip
    return made


def _envelopes(report: Report) -> Iterator[tuple[str, str]]:
    """Every envelope, in full."""
    found = [e for rung in report.rungs for e in rung.envelopes]
    for i, e in enumerate(found):
        yield "" if i else "holds also", _whole(e)
        if e.values:
            yield "", f"{e.type}: values: {', '.join(e.values)}"
        if e.addresses:
            yield "", f"{e.type}, operands {e.addresses}"
        if e.indices:
            yield "", f"{e.type}, large products in part: {'; '.join(e.indices)}"
        if e.grids:
            yield "", f"{e.type}: grids that CUDA can launch: {' and '.join(e.grids)}"
    for what, why in dict.fromkeys(pair for e in found for pair in e.not_covered):
        yield "", f"not covered: {what} ({printable(why, 200)})"


def _whole(e: TypeEnvelope) -> str:
    plan = f"{counted(e.calls, 'calls')} of plan {e.plan}{', quick' if e.probes == 'brief' else ''}"
    domain = f"; declared domain: {e.domain}" if e.domain else ""
    beside = "" if e.under_test else "; of a kernel beside the one under test"
    sizes = "; ".join(f"{n} {numbers or 'none'}" for n, numbers in (("M", e.tokens), ("N", e.rows), ("K", e.columns)))
    return f"{e.type}: {sizes} ({plan}{domain}{beside})"


def _ranges(report: Report) -> Iterator[tuple[str, str]]:
    """The largest halves among the activations, relative to the largest half."""
    for rung in report.rungs:
        if rung.headroom is not None:
            yield "range", run_words.headroom(rung.headroom)


def _notes(report: Report) -> Iterator[tuple[str, str]]:
    for rung in report.rungs:
        lines = [f"not checked by this rung: {left}"] if (left := run_words.counts(rung.not_checked)) else []
        lines += [f"{name}: {_figure(value)}" for name, value in rung.figures.items()]
        lines += [printable(note, 400) for note in rung.notes]
        yield from ((rung.name if not i else "", line) for i, line in enumerate(lines))


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _details(report: Report) -> Iterator[Text]:
    for rung in report.rungs:
        for record in rung.details:
            fields = msgspec.structs.asdict(record).items()
            yield Text(f"{rung.name}: " + "  ".join(f"{name} {_value(value)}" for name, value in fields))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return printable(value) if isinstance(value, str) else "–" if value is None else str(value)


# ---- the cost of the quantization ------------------------------------------------------------------------------------

MOST_LEFT = 5

#: Printed wherever these figures are shown.
FORMULA = (
    "error = ‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖ in float32, with the activations X of the",
    "prompt, the weights W_q, and the source's W_f",
)


def costs(costs: QuantizationCosts) -> Iterator[RenderableType]:
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


#: Names of figures that are too long for a label.
_LABELS = {run_words.RATIO: "", run_words.SAME: "same top-1"}


def _predictions(costs: QuantizationCosts) -> Iterator[tuple[str, str]]:
    found = costs.text
    assert found is not None
    chunks = f"{counted(found.chunks, 'chunks')} of {found.chunk}"
    yield (
        "text",
        f"{printable(found.text, 100)}: {found.tokens:,} tokens, {found.scored:,} predictions scored ({chunks})",
    )
    of_kl: list[str] = []
    for name, value, source in run_words.predictions(found):
        if name.startswith(run_words.KL):
            of_kl.append(f"{name.removeprefix(run_words.KL)} {value}")
        else:
            yield _LABELS.get(name, name), value + (f", of the source {source}" if source else "")
    if of_kl:
        yield "KL", " · ".join(of_kl)
