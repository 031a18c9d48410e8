"""A graph that was judged node by node: the verdict, the operations, the first wrong nodes, and what was left out."""

from __future__ import annotations

from ...backend_results import GraphReport, OperationResult, WrongNode
from ...support.text import counted
from .. import graph_words as words
from .page import LIMIT, MARKS, Page, escaped, heading

#: Wrong nodes that are described; the page of HTML and the JSON have all that are recorded.
_MOST = 5
#: Bytes that are kept for what comes after these.
_SPARE = 6_000


def render(report: GraphReport, limit: int = LIMIT) -> str:
    """The graph, below `limit` (at least 20,000) bytes."""
    page, verdict = Page(limit), report.verdict
    page.add(heading(verdict, verdict), "")
    page.add(f"{escaped(words.about(report), 200)}: {escaped(words.sentence(report))}.", "")
    page.add(f"{escaped(report.device.words, 200)}, {escaped(words.build(report), 200)}.", "")
    if report.fault:
        page.add(f"Broken off: {escaped(report.fault)}.", "")
    if report.ended_by:
        page.add(f"Ended early {words.ended(report)}.", "")
    if report.operations:
        heads = ("operation", "ran on", "nodes", "outputs", "definition", "worst utilisation", "wrong")
        ordered = sorted(report.operations, key=lambda each: not each.wrong)  # what is wrong must fit
        page.table(heads, map(_operation, ordered), limit // 2)
    if report.wrong:
        page.add("### The first wrong nodes", "")
        page.table(
            ("node", "where", "first wrong element", "wrong", "inputs"), map(_wrong, report.wrong[:_MOST]), _SPARE
        )
        if beyond := report.wrong_nodes - len(report.wrong[:_MOST]):
            page.add(f"… and {beyond:,} more wrong nodes.", "")
    if back := [*report.fallen_back]:
        page.add(f"### Not computed on {escaped(report.device.name, 60)}", "")
        rows = [(escaped(each.operation, 100), escaped(each.device, 60), f"{each.nodes:,}") for each in back]
        page.table(("operation", "ran on", "nodes"), rows, _SPARE)
    if report.not_judged:
        nodes = sum(each.nodes for each in report.not_judged)
        left = [
            (escaped(each.operation, 100), escaped(each.device, 60), f"{each.nodes:,}", escaped(each.why))
            for each in report.not_judged
        ]
        page.fold(
            f"{counted(nodes, 'nodes')} {'was' if nodes == 1 else 'were'} not judged",
            ("operation", "on", "nodes", "why"),
            left,
        )
    if report.varying:
        told = [(label, escaped(said)) for label, said in map(words.varying, report.varying)]
        page.table(("in micro-batches", ""), told)
    digests = escaped(", ".join(report.sha256), 200)
    page.add(f"gguf-verify {escaped(report.gguf_verify, 40)} · SHA-256 of the model {digests}")
    return page.text


def _operation(each: OperationResult) -> tuple[str, ...]:
    fell = f" {MARKS['warn']}" if each.fell_back else ""
    return (
        f"{MARKS['bad' if each.wrong else 'good']} {escaped(each.operation, 100)}", escaped(each.device, 60) + fell,
        f"{each.nodes:,}", f"{each.elements:,}", escaped(", ".join(each.definitions), 200), words.utilisation(each),
        f"{each.wrong:,}" if each.wrong else "",
    )  # fmt: skip


def _wrong(node: WrongNode) -> tuple[str, ...]:
    return (
        escaped(words.name(node), 200), escaped(words.where(node), 200), escaped(words.first(node)),
        escaped(words.extent(node)), "<br>".join(escaped(each, 120) for each in node.inputs[:6]),
    )  # fmt: skip
