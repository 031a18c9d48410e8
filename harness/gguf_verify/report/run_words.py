"""Facts of a run in the words that several reports use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..checks import BYTES
from ..results.costs import QuantizationCosts, TextCost
from ..results.failures import CULPRITS, Failure, Unverified
from ..results.margins import Headroom, Worst
from ..results.products import DrawnData
from ..results.report import Report
from ..results.rungs import RungResult
from ..support.errors import Culprit
from ..support.text import counted, printable, visible
from .shades import rank, short


def headline(report: Report) -> str:
    """The verdict as a report begins with it: "VERIFIED (quick)"."""
    words, scope = report.words, "" if report.exit_code else report.scope
    return words.removesuffix(scope).upper() + scope


def of_costs(report: Report) -> bool:
    """Whether the report is about the costs of a quantization, and only the file's bytes were verified beside."""
    return report.costs is not None and [rung.name for rung in report.rungs] == [BYTES] and not report.not_climbed


def measured(costs: QuantizationCosts) -> tuple[str, str]:
    """The costs with a heading, as the last line of a report has them: only what was measured, and what was not."""
    found = []
    if costs.gemms:
        mean = math.fsum(g.error for g in costs.gemms) / len(costs.gemms)
        found.append(f"mean error {100 * mean:.3g} % of {counted(len(costs.gemms), 'products')}")
    if (text := costs.text) is not None and text.kl_mean is not None:
        kl = with_error(text.kl_mean, text.errors.get("kl_mean"))
        found.append(f"KL {kl} over {counted(text.scored, 'predictions')}")
    left = [f"{printable(name, 64)}: {printable(why, 200)}" for name, why in costs.left[:1]]
    if not costs.gemms and not left:
        left = ["matrix products"]
    words = "; not measured: ".join([", ".join(found), *left] if found else left)
    return "COST" if costs.gemms else "NOT EVERYTHING MEASURED" if found else "NOTHING MEASURED", words


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


class Cause(NamedTuple):
    """The cause of a mismatch.

    Args:
        words: the cause; the ids of faults where some are known.
        fix: what to do about it; "" if that is not known.
        first: the first failure, in words.
        id: what `gguf-verify explain` takes.
    """

    words: str
    fix: str
    first: str
    id: str


#: Fixes that a line has room for.
_MOST_FIXES = 2
#: Characters of an exception's message in a line.
_MOST_MESSAGE = 120


def cause(report: Report) -> Cause:
    """The cause of the most important mismatch of a run that has failures."""
    failure = next((failure for _, failure in report.failures), None)
    first = "" if failure is None else printable(failure.what, 300)
    found = next((diagnosis for _, diagnosis in report.diagnosed), None)
    if found is None:
        culprit: Culprit = failure.culprit if failure is not None else next(iter(report.culprits), "kernel")
        words = None if failure is None else _raised(failure)
        return Cause(words or f"{CULPRITS[culprit]} is at fault", "", "" if words else first, culprit)
    if found.definitions:  # the first line holds the advice
        return Cause(printable(found.lines[0] if found.lines else found.verdict, 600), "", "", found.culprit)
    if found.faults:
        names = [*dict.fromkeys(fault.id for fault in found.faults)]
        fixes = [*dict.fromkeys(printable(fault.fix, 300) for fault in found.faults)]
        return Cause(" or ".join(names), "; or: ".join(fixes[:_MOST_FIXES]), first, names[0])
    words, _, fix = printable(found.lines[0] if found.lines else "", 300).partition(". Fix: ")
    if found.verdict == "unknown":
        words = "cause unknown"
    return Cause(words or found.verdict, fix, first, found.culprit)


def _raised(failure: Failure) -> str | None:
    """The exception that caused a failure, with its message, which differs between calls and is no part of the cause;
    None: it was no exception."""
    name, _, place = failure.cause.partition(" ")
    if f" raised {name}" not in failure.what:
        return None
    _, found, message = failure.what.partition(f" raised {name}: ")
    own = [frame for frame in failure.trace if frame.own]
    if found and own:
        message = message.removesuffix(f"; at {own[-1].place}: {own[-1].code}")
    elif not found or not place.startswith("of "):
        return visible(failure.cause, 300)
    said = f"{name}: {visible(message, _MOST_MESSAGE)}" if found else name
    return visible(f"{said}, {place}" if found and own else f"{place.removeprefix('of ')} raised {said}", 300)


def causes(report: Report) -> dict[str, str]:
    """Tensor with failures → the ids of the faults, or whatever else causes them; "" if that is unknown, or if it has
    several causes."""
    found: dict[str, set[str]] = {tensor: set() for tensor in failing(report)}
    for rung in report.rungs:
        names = {rung.causes.get(d.tensor, ""): d.cause for d in rung.diagnoses if d.cause}
        for tensor, cause in rung.causes.items():
            if cause and tensor in found:
                found[tensor].add(names.get(cause, visible(cause, 300)))
    return {tensor: next(iter(known)) if len(known) == 1 else "" for tensor, known in found.items()}


def extent(report: Report) -> str:
    """How many of the matrices of the rungs that failed have failures of the most important cause, and how many have
    others, in parentheses; "" if they have no names."""
    rungs = [rung for rung in report.rungs if rung.n_failures]
    wrong = {*failing(report)}
    known = wrong | {record.tensor for rung in rungs for record in rung.details if hasattr(record, "tensor")}
    noun = "tensors" if {rung.name for rung in rungs} == {BYTES} else "matrices"
    explained = [diagnosis.tensor for _, diagnosis in report.diagnosed]
    first = next(iter((*explained, *(failure.tensor for _, failure in report.failures))), "")
    of_tensor = causes(report)
    alike = {tensor for tensor in wrong if of_tensor[tensor] == of_tensor[first]} if of_tensor.get(first) else wrong
    others = f"; {len(wrong - alike):,} of another or unknown cause" if wrong - alike else ""
    return f" ({len(alike):,} of {counted(len(known), noun)}{others})" if wrong else ""


def first_left(report: Report) -> str:
    """The first reason why not everything was verified; "" if none is known."""
    faults = [f"{rung.name}: {rung.fault}" for rung in report.rungs if rung.fault]
    left = [f"{rung.name}: {left.title}: {left.why}" for rung in report.rungs for left in rung.unverified]
    missing = [place.words for place in report.not_run]
    return next((printable(words, 300) for words in (report.why_ended, *faults, *left, *missing) if words), "")


def worst(report: Report, of_kernel: bool = True) -> tuple[Worst, RungResult] | None:
    """The largest utilisation of the kernel, or of llama.cpp, in any rung; None where no bound was judged."""
    found = [(w, rung) for rung in report.rungs for w in rung.worst.values() if w.of_kernel is of_kernel]
    return max(found, key=lambda one: rank(one[0].utilisation), default=None)


def scored(text: TextCost) -> str:
    """The number of predictions that were scored."""
    return f"{text.scored:,} ({text.chunks:,} × {text.chunk} tokens, the second half of each)"


def with_error(value: float, error: float | None, unit: str = "") -> str:
    """A figure and its standard error, with two significant digits of the error: "7.250 ± 0.031"."""
    if error is None or not math.isfinite(error):
        return f"{value:.4g}{unit}"
    digits = 1 - math.floor(math.log10(error)) if error > 0 else 4
    digits = min(9, max(0, digits))
    return f"{value:.{digits}f} ± {error:.{digits}f}{unit}"


#: Names of figures: the ratio of perplexities, what those of divergences begin with, and equal predictions.
RATIO, KL, SAME = "perplexity, difference", "KL divergence, ", "same most probable token"


def predictions(text: TextCost) -> Iterator[tuple[str, str, str]]:
    """The comparison of predictions: a name, the model's figure, and its source's, with their standard errors. Figures
    for which there are too few predictions are omitted."""
    of = text.errors.get
    if text.perplexity is not None:
        source = text.source_perplexity
        shown = "" if source is None else with_error(source, of("source_perplexity"))
        yield "perplexity", with_error(text.perplexity, of("perplexity")), shown
    if text.ratio is not None:
        percent = 100 * (text.ratio - 1), 100 * text.errors.get("ratio", 0.0)
        yield RATIO, f"{'+' if percent[0] >= 0 else ''}{with_error(*percent, ' % against the source')}", ""
    if text.kl_mean is not None:
        yield f"{KL}mean", with_error(text.kl_mean, of("kl_mean")), ""
    for name, value in text.kl_percentiles.items():
        yield f"{KL}{name} below", f"{value:.3g}", ""
    if text.kl_max is not None:
        yield f"{KL}largest", f"{text.kl_max:.3g}", ""
    if text.top1 is not None:
        error = None if of("top1") is None else 100 * text.errors["top1"]
        yield SAME, with_error(100 * text.top1, error, " %"), ""


def of_bound(utilisation: float, bound: str = "its bound") -> str:
    """An error in terms of its bound, as a sentence has it: "0.25 of its bound", "exactly its bound (one rounding;
    expected)", "1.0004 times its bound", "3,120 times its bound"."""
    if utilisation == 1:
        return f"exactly {bound} (one rounding; expected)"
    if not 0.995 <= utilisation < 1.05:
        return f"{short(utilisation)} {'times' if not utilisation < 1 else 'of'} {bound}"
    digits = next(n for n in range(3, 18) if float(f"{utilisation:.{n}g}") != 1)
    return f"{utilisation:.{digits}g} {'times' if utilisation > 1 else 'of'} {bound}"


def ends(numbers: str, most: int = 3) -> str:
    """Ranges, such as those of an envelope; of more than `most` the first ones and the last."""
    ranges = numbers.split(", ")
    if len(ranges) <= most:
        return numbers or "none"
    return f"{', '.join(ranges[: most - 1])}, … {ranges[-1]} ({len(ranges)} ranges)"
