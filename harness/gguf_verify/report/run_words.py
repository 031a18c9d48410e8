"""Facts of a run in the words that several reports use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ..results.costs import TextCost
from ..results.failures import CULPRITS, Failure, Unverified
from ..results.margins import Headroom, Worst
from ..results.products import DrawnData
from ..results.report import Report
from ..results.rungs import RungResult
from ..support.text import counted, printable
from .shades import rank


def headline(report: Report) -> str:
    """The verdict as a report begins with it: "VERIFIED (quick)"."""
    words, scope = report.words, "" if report.exit_code else report.scope
    return words.removesuffix(scope).upper() + scope


def drawn(data: DrawnData) -> str:
    """The random data that a kernel was verified on, in a line."""
    sizes = dict[str, list[str]]()
    for p in data.products:
        sizes.setdefault(f"{p.m}×{p.n}×{p.k}", []).append(p.type)
    listed = "; ".join(f"{', '.join(types)}: M×N×K = {size}" for size, types in sizes.items())
    return f"{listed or 'nothing'}; weights: {data.weights}; activations: {data.activations}; seed {data.seed}"


def headroom(of: Headroom) -> str:
    """The half that came nearest to overflowing, in a line."""
    shared = "; llama.cpp's CUDA backend keeps it in a half too" if of.of_llama else ""
    return (
        f"{printable(of.tensor, 64)}: the largest half among its activations is {of.what} = {of.value:.4g}, "
        f"{of.ratio:.2g} times {of.limit:g}, at token {of.token}, block {of.block}{shared}"
    )


def counts(of: Mapping[str, int]) -> str:
    """Counts by kind, without those that are zero."""
    return ", ".join(counted(n, kind) for kind, n in of.items() if n)


def passed(report: Report) -> str:
    """How many of the requested rungs passed."""
    n = sum(rung.verdict == "passed" for rung in report.rungs)
    return f"{n} of {counted(len(report.rungs) + len(report.not_climbed), 'rungs')} passed"


def checked(rung: RungResult) -> str:
    """The things that a rung checked, its own subject first; "" for nothing."""
    kinds = sorted(rung.checked, key=lambda kind: kind not in rung.substance)
    return counts({kind: rung.checked[kind] for kind in kinds})


def blame(left: Unverified) -> str:
    """The culprit of an unverified item, after its reason; "" if it was only not reached."""
    return "" if left.culprit == "coverage" else f" (at fault: {CULPRITS[left.culprit]})"


def numbers(failure: Failure) -> str:
    """The numbers of a failure; "" where it is about none."""
    if failure.got is None or failure.expected is None:
        return ""
    words = f"got {failure.got:.9g}, expected {failure.expected:.9g}"
    words += "" if failure.bound is None else f", bound {failure.bound:.3g}"
    return words + ("" if failure.utilisation is None else f", utilisation {failure.utilisation:.3g}")


def failing(report: Report) -> list[str]:
    """The tensors with failures, those with the most first."""
    totals = Counter[str]()
    for rung in report.rungs:
        totals.update(rung.failing)
    return [tensor for tensor, _ in totals.most_common() if tensor]


def worst(report: Report, of_kernel: bool = True) -> tuple[Worst, RungResult] | None:
    """The largest utilisation of the kernel, or of llama.cpp, in any rung; None where no bound was judged."""
    found = [(w, rung) for rung in report.rungs for w in rung.worst.values() if w.of_kernel is of_kernel]
    return max(found, key=lambda one: rank(one[0].utilisation), default=None)


def scored(text: TextCost) -> str:
    """The number of predictions that were scored."""
    return f"{text.scored:,} ({text.chunks:,} × {text.chunk} tokens, the second half of each)"


def predictions(text: TextCost) -> Iterator[tuple[str, str, str]]:
    """The comparison of predictions: a name, the model's figure, and its source's."""
    yield "perplexity", f"{text.perplexity:.4f}", f"{text.source_perplexity:.4f}"
    yield "KL divergence, mean", f"{text.kl_mean:.6f}", ""
    for name, value in text.kl_percentiles.items():
        yield f"KL divergence, {name} of predictions below", f"{value:.6f}", ""
    yield "KL divergence, largest", f"{text.kl_max:.6f}", ""
    yield "same most probable token", f"{100 * text.top1:.2f} %", ""


def ends(numbers: str, most: int = 3) -> str:
    """Ranges, such as those of an envelope; of more than `most` the first ones and the last."""
    ranges = numbers.split(", ")
    if len(ranges) <= most:
        return numbers or "none"
    return f"{', '.join(ranges[: most - 1])}, … {ranges[-1]} ({len(ranges)} ranges)"
