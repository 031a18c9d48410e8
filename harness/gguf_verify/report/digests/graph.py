"""The digest of a graph: the verdict, the operations, the first wrong nodes, and those that were not judged.

Each operation on a device is a test case of JUnit. One with a wrong node is a failure; one of which a node was not
judged is an error, and so is a run that was broken off, was interrupted, or judged nothing on its device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from ...backend_results import GraphReport, OperationResult, WrongNode
from ...support.shown import View
from ...support.text import counted, printable
from .. import graph_words as words
from .. import json, notebook
from ..digest import Case, Digest, Finding, Marked, Section, Table, message, paragraphs, seen
from ..published import file_name
from ..shades import level
from ..terminal import graph as terminal
from ..writer import Form, Kind

#: Wrong nodes that are described; the page of HTML and the JSON have all that are recorded.
_MOST = 5
#: The test case for faults of no operation.
_WHOLE = "the whole graph"


def digest(report: GraphReport) -> Digest:
    """The digest of a graph."""
    build, device, found = report.build, report.device, [*findings(report)]
    properties = {
        "gguf-verify": report.gguf_verify,
        "llama.cpp": build.llama_cpp,
        "ggml": build.ggml,
        "llama-cpp-python": build.llama_cpp_python,
        "libraries": build.folder,
        "device": device.name,
        "device is": device.words,
        "architecture": report.architecture,
        "sha256": ", ".join(report.sha256),
        "verdict": report.verdict,
    }
    return Digest(
        level=level(report.verdict),
        words=report.verdict,
        exit_code=report.exit_code,
        command=report.command,
        repeat=words.command(report),
        findings=found,
        sections=[*_sections(report, found)],
        started=datetime.now(UTC) - timedelta(seconds=report.seconds),  # the record has no time
        suites={words.about(report): properties},
        seconds=report.seconds,
    )


def findings(report: GraphReport) -> Iterator[Finding]:
    """Yield the operations, wrong nodes, nodes that were not judged or fell back, the end of the run, and nodes
    whose bits vary."""
    suite, repeat = words.about(report), words.command(report)
    finding = partial(
        Finding,
        heading=f"{suite}: {report.verdict}",
        path=file_name(report.path),
        lines=[f"repeat with: {repeat}"] if repeat else [],
    )

    def case(device: str, operation: str) -> Case:
        return Case(suite, f"{words.file_name(report)}/{printable(device)}", printable(operation))

    unverified = partial(finding, rule="graph-not-verified", level="warning")
    of_graph = case(report.device.name, _WHOLE)
    for each in report.operations:
        if not each.wrong:
            yield finding(rule=None, level="none", message="", case=case(each.device, each.operation))
    # at least one of each operation
    known = {(node.evaluation, node.number) for node in report.wrong}
    firsts = [each.first for each in report.operations if each.first is not None]
    nodes = [*report.wrong, *(node for node in firsts if (node.evaluation, node.number) not in known)]
    for node in nodes:
        yield finding(
            rule="graph-mismatch",
            level="error",
            kind="mismatch",
            message=words.line(node),
            owner=node.node,
            place=f"{node.operation}/{node.device}",
            case=case(node.device, node.operation),
            lines=[*words.lines(node), f"repeat with: {repeat}"],
        )
    if beyond := report.wrong_nodes - len(nodes):
        yield finding(
            rule="graph-mismatch",
            level="error",
            kind="mismatch",
            message=f"{beyond:,} more wrong nodes",
            place="more",
            case=None if nodes else of_graph,
        )
    for left in report.not_judged:
        yield unverified(
            kind="not judged",
            message=f"not judged: {words.left(left)}",
            owner=left.operation,
            place=f"{left.device}/{left.why}",
            case=case(left.device, left.operation),
        )
    if report.fault:
        fault = seen(report.fault)
        yield finding(rule="graph-broken-off", level="error", kind="broken off", message=fault, case=of_graph)
    if report.ended_by:
        interrupted = report.ended_by.startswith("SIG")
        yield unverified(
            kind="interrupted" if interrupted else "incomplete",
            message=f"ended early {words.ended(report)}",
            place="ended early",
            case=of_graph if interrupted else None,
        )
    if report.verdict == "not everything verified" and not report.not_judged:
        yield unverified(kind=report.verdict, message=words.sentence(report), case=of_graph)
    if back := words.fell_back(report):
        yield finding(rule=None, level="note", message=f"fell back {back}")
    for varying in report.varying:
        told, place = ": ".join(words.varying(varying)), varying.slot or str(varying.micro_batch)
        rule = "graph-other-bits" if varying.node else None
        yield finding(rule=rule, level="note", message=told, owner=varying.node, place=place, quiet=rule is None)


def _sections(report: GraphReport, found: Sequence[Finding]) -> Iterator[Section]:
    yield f"{words.about(report)}: {words.sentence(report)}."
    yield f"{seen(report.device.words)}, {words.build(report)}."
    yield from paragraphs(found, "broken off", "interrupted", "incomplete")
    if report.operations:
        heads = ("operation", "ran on", "nodes", "outputs", "definition", "worst utilisation", "wrong")
        ordered = sorted(report.operations, key=lambda each: not each.wrong)  # wrong ones must fit
        yield Table("", heads, map(_operation, ordered), spare=30_000, width=200)
    if report.wrong:
        columns = ("node", "where", "first wrong element", "wrong", "inputs")
        yield Table("The first wrong nodes", columns, map(_wrong, report.wrong[:_MOST]), spare=6_000, width=120)
        if beyond := report.wrong_nodes - len(report.wrong[:_MOST]):
            yield f"… and {beyond:,} more wrong nodes."
    if back := [*report.fallen_back]:
        fallen = [(each.operation, each.device, f"{each.nodes:,}") for each in back]
        title = f"Not computed on {seen(report.device.name, 60)}"
        yield Table(title, ("operation", "ran on", "nodes"), fallen, spare=6_000, width=100)
    if left := report.not_judged:
        nodes = sum(each.nodes for each in left)
        title = f"{counted(nodes, 'nodes')} {'was' if nodes == 1 else 'were'} not judged"
        rows = [(each.operation, each.device, f"{each.nodes:,}", each.why) for each in left]
        yield Table(title, ("operation", "on", "nodes", "why"), rows, folded=True)
    if report.varying:
        yield Table("", ("in micro-batches", ""), map(words.varying, report.varying))
    digests = seen(", ".join(report.sha256), 200)
    yield f"gguf-verify {seen(report.gguf_verify, 40)} · SHA-256 of the model {digests}"


def _operation(each: OperationResult) -> Sequence[str | Marked]:
    device = Marked("warn", each.device) if each.fell_back else each.device
    return (
        Marked("bad" if each.wrong else "good", each.operation),
        device,
        f"{each.nodes:,}",
        f"{each.elements:,}",
        words.definitions(each),
        words.utilisation(each),
        f"{each.wrong:,}" if each.wrong else "",
    )


def _wrong(node: WrongNode) -> Sequence[str]:
    return (
        words.name(node),
        words.where(node),
        words.first(node),
        words.extent(node),
        "\n".join(seen(each, 120) for each in node.inputs[:6]),
    )


# ---- in Python -------------------------------------------------------------------------------------------------------


def line(report: GraphReport) -> str:
    """Verdict, device, counts, worst utilisation."""
    parts = [f"GraphReport: {report.verdict}", seen(report.device.name, 40), words.sentence(report)]
    worst = words.worst(report)
    return "; ".join([*parts, *([f"worst utilisation {worst}"] if worst else [])])


def _message(report: GraphReport) -> str:
    head = f"{words.about(report)} is not verified: {report.verdict}: {words.sentence(report)}"
    return message(head, digest(report))


VIEW = View(
    GraphReport,
    line,
    lambda report: terminal.render(report, Form()),
    lambda report: notebook.render(digest(report)),
    json.of_graph,
    json.renders(Kind.GRAPH),
    _message,
)
