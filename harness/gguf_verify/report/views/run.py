"""A verification in Python."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from ...results.report import Report
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import counted, printable, sentence
from .. import json, message, run_words
from ..terminal import run
from ..writer import Form, Kind
from .html import block, listed, paragraph, table, verdict


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


def html(report: Report) -> str:
    """Verdict, culprit, diagnosis, first failure and the rungs."""
    return block(*_parts(report))


def _parts(report: Report) -> Iterator[str]:
    e = report.environment
    file = printable(e.file.path.rsplit("/", 1)[-1], 100)
    kernel = printable(e.kernel.name, 100) if report.kernel_ran else "no kernel"
    yield verdict(report.words, report.exit_code, f"{kernel} on {file}")
    if report.kernel_ran:
        yield paragraph(f"The kernel declares {printable(e.kernel.declared, 300)}.")
    if report.culprits:
        yield paragraph(sentence(report.at_fault))
    for _, diagnosis in report.diagnosed[:1]:
        yield paragraph(f"Diagnosis ({printable(diagnosis.where, 80)}, {printable(diagnosis.who, 80)}):")
        yield listed([printable(line, 300) for line in diagnosis.lines[:6]])
    if report.failures:
        rung, first = report.failures[0]
        yield paragraph(f"First failure, {rung.name} rung: {printable(first.what, 300)}")
        if first.got is not None and first.expected is not None:
            numbers = {"got": first.got, "expected": first.expected, "bound": first.bound, "use": first.utilisation}
            yield paragraph(", ".join(f"{name} {value:.9g}" for name, value in numbers.items() if value is not None))
        if first.block_hex is not None:
            at = "" if first.byte_offset is None else f" at byte {first.byte_offset}"
            yield f"<p>block{at}: <code>{escape(first.block_hex[:64])}</code></p>"
    if report.fault:
        yield paragraph(f"Broken off: {printable(report.fault, 300)}")
    if report.unfinished:
        yield paragraph(f"Incomplete: {printable(report.unfinished, 300)}")
    for rung in report.rungs:
        if rung.fault:
            yield paragraph(f"The {rung.name} rung was broken off: {printable(rung.fault, 300)}")
        for left in rung.unverified[:3]:
            yield paragraph(f"Not verified: {printable(left.title, 100)}: {printable(left.why, 200)}")
    if skipped := report.skipped:
        yield paragraph(f"Skipped: {', '.join(check.title for check in skipped)}")
    rows = []
    for rung in report.rungs:
        worst = rung.worst_utilisation
        said = "–" if worst is None else "∞" if math.isinf(worst) else f"{worst:.3g}"
        checked = run_words.counts(rung.checked) or "nothing"
        rows.append((rung.name, rung.outcome, checked, said, f"{rung.n_failures:,}", f"{rung.seconds:.1f}"))
    yield table(("rung", "verdict", "checked", "worst utilisation", "failures", "seconds"), rows)
    if report.exit_code and (command := report.repeat_of()):
        yield f"<p>repeat with: <code>{escape(shown(command))}</code></p>"


VIEW = View(
    Report, line, lambda report: run.render(report, Form()), html, json.of_run, json.renders(Kind.RUN), message.of_run
)
