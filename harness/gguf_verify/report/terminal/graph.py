"""A graph of llama.cpp whose nodes were judged one by one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...backend_results import GraphReport, WrongNode
from ...support.text import printable
from .. import graph_words as words
from ..digest import seen
from ..writer import Form
from .console import BAD, BOLD, STYLES, WARN, capped, facts, rendered, said, table, verdict_line

#: Wrong nodes that are described, and operations that are listed of those that were not judged.
_MOST, _MOST_LEFT = 5, 20


def render(report: GraphReport, form: Form) -> str:
    """Where it ran, a line for each operation and device, what was not judged, the first wrong nodes, and in the last
    line the verdict."""
    return rendered(_parts(report, form), form)


def _parts(report: GraphReport, form: Form) -> Iterator[RenderableType]:
    yield facts(_facts(report))
    yield ""
    yield _operations(report)
    yield ""
    if back := words.fell_back(report):
        yield said(("FELL BACK ", WARN), back)
    for label, told in map(words.varying, report.varying):
        yield said((f"{label.upper()} ", BOLD), told)
    yield from capped((said(("NOT JUDGED ", WARN), words.left(n)) for n in report.not_judged), _MOST_LEFT)
    if report.fault:
        yield said(("BROKEN OFF ", BAD), seen(report.fault))
    if report.ended_by:
        yield said(("ENDED EARLY ", WARN), words.ended(report))
    described = report.wrong[: None if form.verbose else _MOST]
    for node in described:
        yield ""
        yield from _wrong(node)
    if beyond := report.wrong_nodes - len(described):
        yield Text(f"… and {beyond:,} more wrong nodes")
    if described:
        yield ""
    if command := words.command(report):
        yield Text(f"repeat with: {command}")
    yield _verdict(report)


def _verdict(report: GraphReport) -> Text:
    """The verdict in numbers, and the first wrong node, or the first that was not judged."""
    first = f"{words.name(report.wrong[0])} {words.where(report.wrong[0])}" if report.wrong else ""
    reasons = [seen(report.fault or ""), words.ended(report), *map(words.left, report.not_judged[:1])]
    first = first or next(filter(None, reasons), "")
    explained = report.verdict.replace(" ", "-")
    more = f"gguf-verify explain {explained}" if report.exit_code else ""
    verdict = report.verdict.upper(), STYLES[report.verdict]
    told = ("first", first if report.exit_code else ""), ("more", more)
    return verdict_line(verdict, f": {words.sentence(report)}", *told)


def _facts(report: GraphReport) -> Iterator[tuple[str, str]]:
    device, options = report.device, report.options
    yield "versions", f"gguf-verify {seen(report.gguf_verify)} · {words.build(report)}"
    yield "libraries", seen(report.build.folder)
    digests = ", ".join(map(seen, report.sha256))
    yield "file", f"{printable(report.path, 200)} · {seen(report.architecture)} · sha256 {digests}"
    yield "device", f"{seen(device.name)}: {seen(device.words)}"
    cache = " and ".join(t or "llama.cpp's choice" for t in dict.fromkeys((options.type_k, options.type_v)))
    flash = "llama.cpp's choice" if options.flash == "auto" else options.flash
    yield "context", f"cache {seen(cache)}, flash attention {flash}, {options.threads} threads"
    for i, evaluated in enumerate(report.evaluations):
        yield "" if i else "evaluated", seen(evaluated)


def _operations(report: GraphReport) -> Table:
    made = table(
        "operation", "nodes", "outputs", "ran on", "definition", "worst utilisation", "wrong", right=(1, 2, 5, 6),
        folded=4,
    )  # fmt: skip
    for each in report.operations:
        style, device = BAD if each.wrong else "", seen(each.device)
        made.add_row(
            Text(seen(each.operation), BOLD if each.wrong else ""), f"{each.nodes:,}", f"{each.elements:,}",
            Text(f"{device} (!)" if each.fell_back else device, WARN if each.fell_back else ""),
            Text(words.definitions(each)), Text(words.utilisation(each), style),
            Text(f"{each.wrong:,}" if each.wrong else "", style),
        )  # fmt: skip
    return made


def _wrong(node: WrongNode) -> Iterator[RenderableType]:
    yield said(("WRONG ", BAD), (words.name(node), BOLD), f" {words.where(node)}")
    yield facts(words.facts(node))
