"""A graph that was judged node by node, in Python."""

from __future__ import annotations

from collections.abc import Iterator

from ...backend_results import GraphReport
from ...support.shown import View
from .. import graph_words as words
from .. import json
from ..terminal import graph as terminal
from ..writer import Form, Kind
from .html import block, listed, paragraph, table, verdict

#: Operations of a table; wrong nodes, and others that were not judged, that a message names.
_MOST, _MOST_NAMED = 40, 3
#: Lines of a message, of the first wrong node in it, and characters of one.
_LINES, _MOST_LINES, _WIDTH = 15, 5, 300


def line(report: GraphReport) -> str:
    """Verdict, device, counts, worst utilisation."""
    parts = [f"GraphReport: {report.verdict}", words.seen(report.device.name, 40), words.sentence(report)]
    worst = words.worst(report)
    return "; ".join([*parts, *([f"worst utilisation {worst}"] if worst else [])])


def html(report: GraphReport) -> str:
    """Verdict, the first wrong node, what was left out, and the operations."""
    return block(*_parts(report))


def _parts(report: GraphReport) -> Iterator[str]:
    yield verdict(report.verdict, report.exit_code, words.about(report))
    yield paragraph(words.sentence(report))
    for node in report.wrong[:1]:
        yield paragraph(f"First wrong: {words.name(node)} {words.where(node)}")
        yield listed(f"{label}: {told}" if label else told for label, told in words.facts(node))
    yield from map(paragraph, _left(report))
    for label, told in map(words.varying, report.varying):
        yield paragraph(f"{label[0].upper()}{label[1:]}: {told}")
    rows = [
        (
            words.seen(each.operation, words.NAME), words.seen(each.device, words.NAME), f"{each.nodes:,}",
            words.definitions(each), words.utilisation(each), f"{each.wrong:,}",
        )
        for each in report.operations[:_MOST]
    ]  # fmt: skip
    yield table(("operation", "ran on", "nodes", "definition", "worst utilisation", "wrong"), rows)
    if beyond := len(report.operations[_MOST:]):
        yield paragraph(f"… and {beyond:,} more operations")
    if command := words.command(report):
        yield paragraph(f"repeat with: {command}")


def _left(report: GraphReport) -> Iterator[str]:
    """The fault, and the nodes that fell back or were not judged."""
    if report.fault:
        yield f"Broken off: {words.seen(report.fault, _WIDTH)}"
    if report.ended_by:
        yield f"Ended early {words.ended(report)}"
    if back := words.fell_back(report):
        yield f"Fell back {back}"[:_WIDTH]
    yield from (f"Not judged: {words.left(each)}" for each in report.not_judged[:_MOST_NAMED])
    if beyond := len(report.not_judged[_MOST_NAMED:]):
        yield f"… and {beyond:,} more that were not judged"


def message(report: GraphReport) -> str:
    """The first wrong nodes, what was left out, and the command."""
    lines = [f"{words.about(report)} is not verified: {report.verdict}: {words.sentence(report)}"]
    for node in report.wrong[:1]:
        lines += ["First wrong:", *[*words.lines(node)][:_MOST_LINES]]
    lines += [f"Wrong: {words.line(node)}" for node in report.wrong[1 : 1 + _MOST_NAMED]]
    lines = [told[:_WIDTH] for told in [*lines, *_left(report)]]
    command = words.command(report)
    return "\n".join([*lines[: _LINES - bool(command)], *([f"repeat with: {command}"] if command else [])])


VIEW = View(
    GraphReport, line, lambda report: terminal.render(report, Form()), html, json.of_graph, json.renders(Kind.GRAPH),
    message,
)  # fmt: skip
