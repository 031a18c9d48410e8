"""The digest of a run: the verdict, the culprit, the diagnosis, the rungs, failures, the cost of the quantization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ...results.costs import CostGroup, QuantizationCosts
from ...results.failures import Failure, WaiverState, WaiverUse
from ...results.report import Report
from ...results.rungs import RungResult
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import byte_range, counted, printable, sentence
from .. import json, message, notebook, run_words, shades
from ..digest import Bullets, Digest, Finding, Level, Marked, Section, Table, paragraphs, unverified, waivers
from ..published import file_name
from ..terminal import run as terminal
from ..writer import Form, Kind

MOST_FAILURES = 5
_OF_WAIVER: dict[WaiverState, Level] = {"applied": "note", "unused": "warning", "expired": "error"}


def digest(report: Report) -> Digest:
    """The digest of a run."""
    kernel, found = report.environment.kernel, [*findings(report)]
    notes = [f"the kernel declares {printable(kernel.declared)}"] if report.kernel_ran and kernel.declares else []
    notes += [f"skipped: {check.words}" for check in report.skipped]
    return Digest(
        level=shades.level(report.verdict),
        words=report.words,
        exit_code=report.exit_code,
        command=report.command,
        repeat=shown(report.repeat_of()) if report.exit_code else "",
        findings=found,
        notes=notes,
        sections=[*_sections(report, found)],
    )


def findings(report: Report) -> Iterator[Finding]:
    """Yield faults, diagnoses, recorded failures, waivers, unverified items and skipped checks."""
    path = file_name(report.environment.file.path)
    finding = partial(Finding, heading=f"{printable(path.rpartition('/')[2])}: {report.words}", path=path)
    if report.fault:
        yield finding(rule="file-changed", level="error", kind="broken off", message=printable(report.fault))
    if report.unfinished:
        message = printable(report.unfinished)
        yield finding(rule="run-not-verified", level="warning", kind="incomplete", message=message)
    for rung in report.rungs:
        if rung.fault:
            rule = f"{rung.name}-broken-off"
            yield finding(rule=rule, level="error", scope=rung.name, message=printable(rung.fault))
        for diagnosis in rung.diagnoses if rung.verdict == "failed" else ():
            lines = printable("; ".join(diagnosis.lines))
            yield finding(rule=None, level="error", scope=printable(diagnosis.tensor), message=lines)
    for rung, failure in report.failures:
        start, size = failure.byte_offset, len(failure.block_hex or "") // 2
        yield finding(
            rule=f"{rung.name}-mismatch",
            level="error",
            kind="mismatch",
            scope=rung.name,
            message=printable(failure.what),
            numbers=_numbers(failure),
            details=_details(report, rung, failure),
            owner=failure.tensor,
            place=f"{failure.row}/{failure.block}/{failure.token}",
            region=None if start is None else (start, start + size),
            waived=failure.tensor in rung.waived,
            properties={
                "culprit": failure.culprit,
                "kernel": report.environment.kernel.name,
                "part": failure.part,
            },
        )
    yield from of_waivers(report.waivers, path)
    for rung in report.rungs:
        for left in rung.unverified:
            yield finding(
                rule=f"{rung.name}-not-verified",
                level="warning",
                kind="not verified",
                scope=rung.name,
                message=f"{printable(left.title, 100)} could not be verified: {printable(left.why)}",
                owner=left.tensor,
                place=left.name,
                properties={"culprit": left.culprit},
            )
    for place in report.not_run:
        yield finding(rule="code-not-run", level="warning", kind="not run", scope="code", message=place.words)
    if skipped := report.skipped:
        titles = ", ".join(check.title for check in skipped)
        yield finding(rule=None, level="note", message=f"skipped: {titles}")


def _numbers(failure: Failure) -> str:
    if failure.got is None or failure.expected is None:
        return ""
    words = f": got {failure.got:g}, expected {failure.expected:g}"
    return words + (f", bound {failure.bound:g}" if failure.bound is not None else "")


def _details(report: Report, rung: RungResult, failure: Failure) -> str:
    """The diagnosis of the type of weights."""
    kind = report.tensor_types.get(failure.tensor, "")
    diagnosis = next((d for d in rung.diagnoses if d.type in ("", kind)), rung.diagnosis)
    return f". Diagnosis: {printable(diagnosis.lines[0])}" if diagnosis is not None and diagnosis.lines else ""


def of_waivers(uses: Sequence[WaiverUse], path: str) -> Iterator[Finding]:
    """Yield the waivers of a run or an audit."""
    for use in uses:
        yield Finding(
            rule=None,
            level=_OF_WAIVER[use.state],
            kind="waiver",
            heading=f"waiver {use.state}",
            message=printable(use.words),
            path=path,
        )


# ---- sections --------------------------------------------------------------------------------------------------------


def _sections(report: Report, found: Sequence[Finding]) -> Iterator[Section]:
    environment = report.environment
    yield _about(report)
    if report.drawn is not None:
        yield f"On random data (no model): {run_words.drawn(report.drawn)}."
    if report.culprits:
        yield f"{sentence(report.at_fault)}."
    if means := environment.kernel.verified_means:
        yield f"Verified here means: {means}."
    yield from (f"Limit: {words}." for words in report.limits[:2])
    yield from paragraphs(found, "broken off", "incomplete")
    for _, diagnosis in report.diagnosed:
        yield Bullets(f"Diagnosis of {diagnosis.tensor}", diagnosis.lines)
    rungs = [*map(_rung, report.rungs)]
    rungs += [(name, Marked("warn", "not run"), "nothing", "–", "") for name in report.not_climbed]
    yield Table("", ("rung", "verdict", "checked", "worst utilisation", "failures"), rungs)
    if failures := [f for f in found if f.kind == "mismatch"]:
        heads = (f"first of {counted(report.n_failures, 'failures')}, in", "what")
        yield Table("", heads, [(f.scope, f.message + f.numbers + _at(f)) for f in failures[:MOST_FAILURES]])
    yield from waivers(found)
    yield from unverified(found)
    if skipped := report.skipped:
        rows = [(check.title, "in part" if check.done else "no", "; ".join(check.skipped)) for check in skipped]
        yield Table(f"{len(skipped):,} classes of checks were skipped", ("check", "done", "why"), rows, folded=True)
    if report.costs is not None:
        yield from _costs(report.costs)
    digests = ", ".join(environment.file.sha256)
    yield (
        f"gguf-verify {environment.versions.gguf_verify} · seed {environment.options.seed} · SHA-256 of the model "
        f"{digests}"
    )


def _about(report: Report) -> str:
    environment = report.environment
    kernel = f"kernel {printable(environment.kernel.name, 100)}, declared {environment.kernel.declared}"
    if not report.kernel_ran:
        kernel = "no product of a kernel was made"
    compared = report.drawn is None or report.drawn.compared
    llama = f"llama.cpp {environment.versions.llama_cpp}" if compared else "exact products alone"
    return f"{printable(environment.file.path.rpartition('/')[2], 100)}: {kernel}, against {llama}."


def _at(f: Finding) -> str:
    return "" if f.region is None else f", in {byte_range(*f.region)}"


def _rung(rung: RungResult) -> Sequence[str | Marked]:
    worst, outcome = rung.worst_utilisation, Marked(shades.level(rung.outcome), rung.outcome)
    checked = run_words.counts(rung.checked) or "nothing"
    return rung.name, outcome, checked, "–" if worst is None else f"{worst:.3g}", f"{rung.n_failures:,}"


FORMULA = "‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖"


def _costs(costs: QuantizationCosts) -> Iterator[Section]:
    name = printable(costs.source.path.rpartition("/")[2], 100)
    title = f"The cost of the quantization, against {name}"
    if (text := costs.text) is not None:
        yield Table(title, ("on a text", "this model", "its source"), run_words.predictions(text))
        yield (
            f"{printable(text.text, 100)}: {text.tokens:,} tokens; predictions scored: {run_words.scored(text)}, as "
            f"llama-perplexity defines them, computed by llama.cpp; SHA-256 of the text {text.sha256}."
        )
        title = ""
    if costs.gemms:
        heads = ("type", "GEMMs", "mean error", "largest error", "in")
        yield (
            f"Relative error of each GEMM on real activations: {FORMULA}, X the activations of a prompt, W_q these "
            "weights, W_f the source's, in float32."
        )
        yield Table(title, ("tensors", *heads), _groups(costs.by_kind))
        yield Table("By layer", ("layer", *heads), _groups(costs.by_layer), folded=True)
    if costs.left:
        yield Table("Not measured", ("what", "why"), costs.left, folded=True)


def _groups(groups: Sequence[CostGroup]) -> Iterator[Sequence[str]]:
    for g in groups:
        yield g.name, g.types, f"{g.gemms:,}", f"{g.mean:.5f}", f"{g.worst:.5f}", g.worst_tensor


# ---- in Python -------------------------------------------------------------------------------------------------------


def line(report: Report) -> str:
    """Verdict, culprit, worst utilisation, counts."""
    worst = [r.worst_utilisation for r in report.rungs if r.worst_utilisation is not None]
    parts = [
        f"Report: {report.words}",
        *([report.at_fault] if report.culprits else []),
        *([f"worst utilisation {max(worst):.3g}"] if worst else []),
        run_words.passed(report),
        *([counted(report.n_failures, "failures")] if report.n_failures else []),
    ]
    return "; ".join(parts)


VIEW = View(
    Report,
    line,
    lambda report: terminal.render(report, Form()),
    lambda report: notebook.render(digest(report)),
    json.of_run,
    json.renders(Kind.RUN),
    message.of_run,
)
