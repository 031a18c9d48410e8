"""A graph of llama.cpp whose nodes were judged one by one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...backend_results import GraphReport, OperationResult, Varying, WrongNode
from ...support.command_line import shown
from ...support.text import printable
from ..writer import Form
from .console import BAD, BOLD, STYLES, WARN, capped, facts, rendered, said, table

#: Wrong nodes that are described, and operations that are listed of those that were not judged.
_MOST, _MOST_LEFT = 5, 20


def render(report: GraphReport, form: Form) -> str:
    """Where it ran, a line for each operation and device, the first wrong nodes, and the verdict."""
    return rendered(_parts(report, form), form)


def _parts(report: GraphReport, form: Form) -> Iterator[RenderableType]:
    yield facts(_facts(report))
    yield ""
    yield _operations(report)
    for node in report.wrong[: None if form.verbose else _MOST]:
        yield ""
        yield from _wrong(node)
    beyond = report.wrong_nodes - min(len(report.wrong), _MOST if not form.verbose else len(report.wrong))
    if beyond:
        yield Text(f"… and {beyond:,} more wrong nodes")
    yield ""
    back = sorted({f"{each.operation} ({each.nodes:,})" for each in report.fallen_back})
    if back:
        where = ", ".join(sorted({each.device for each in report.fallen_back}))
        yield said(("FELL BACK ", WARN), f"to {where}, not computed on {report.device.name}: {', '.join(back)}")
    yield from map(_varying, report.varying)
    left = [
        said(("NOT JUDGED ", WARN), f"{n.operation} on {n.device}: {n.why} ({n.nodes:,} node{'s' * (n.nodes > 1)})")
        for n in report.not_judged
    ]
    yield from capped(left, _MOST_LEFT)
    if report.fault:
        yield said(("BROKEN OFF ", BAD), printable(report.fault, 600))
    if report.ended_by:
        yield said(("ENDED EARLY ", WARN), f"by {'the ' * (' ' in report.ended_by)}{report.ended_by}")
    yield said((report.verdict.upper(), STYLES[report.verdict]), _sentence(report))
    if report.exit_code and report.command:
        yield Text(f"repeat with: {shown(report.command)}")


def _facts(report: GraphReport) -> Iterator[tuple[str, str]]:
    build, device, options = report.build, report.device, report.options
    python = "" if build.llama_cpp_python == "none" else f" · llama-cpp-python {build.llama_cpp_python}"
    yield "versions", f"gguf-verify {report.gguf_verify} · llama.cpp {build.llama_cpp}{python} · ggml {build.ggml}"
    yield "libraries", build.folder
    yield "file", f"{printable(report.path, 200)} · {report.architecture} · sha256 {', '.join(report.sha256)}"
    yield "device", f"{device.name}: {device.words}"
    cache = " and ".join(t or "llama.cpp's choice" for t in dict.fromkeys((options.type_k, options.type_v)))
    flash = "llama.cpp's choice" if options.flash == "auto" else options.flash
    yield "context", f"cache {cache}, flash attention {flash}, {options.threads} threads"
    for i, words in enumerate(report.evaluations):
        yield "" if i else "evaluated", words


def _operations(report: GraphReport) -> Table:
    made = table(
        "operation", "nodes", "outputs", "ran on", "definition", "worst utilisation", "wrong", right=(1, 2, 5, 6),
        folded=4,
    )  # fmt: skip
    for each in report.operations:
        style = BAD if each.wrong else ""
        made.add_row(
            Text(each.operation, BOLD if each.wrong else ""), f"{each.nodes:,}", f"{each.elements:,}",
            Text(f"{each.device} (!)" if each.fell_back else each.device, WARN if each.fell_back else ""),
            Text(", ".join(each.definitions)), Text(_utilisation(each), style),
            Text(f"{each.wrong:,}" if each.wrong else "", style),
        )  # fmt: skip
    return made


def _utilisation(each: OperationResult) -> str:
    """The worst one, or, where bits are compared, that they are equal."""
    if each.exact:
        words = "differs" if each.wrong else "equal"
        return f"{words}, {each.ambiguous:,} ambiguous" if each.ambiguous else words
    return f"{each.utilisation:.3g}"


def _wrong(node: WrongNode) -> Iterator[RenderableType]:
    name = f"{node.operation} {node.node}"
    yield said(("WRONG ", BAD), (name, BOLD), f" on {node.device}, node {node.number:,} of {node.evaluation}")
    values = f"got {node.got:.9g}, expected {node.expected:.9g}, which may be off by {node.tolerance:.3g}"
    yield facts([
        ("first", f"{node.place or 'the only element'}: {values}"),
        ("worst", f"{node.utilisation:.3g} times what is allowed, by the definition {node.definition}"),
        ("wrong", f"{node.wrong:,} of {node.elements:,}" + (f": {node.extent}" if node.extent else "")),
        ("output", node.output), *(("" if i else "inputs", words) for i, words in enumerate(node.inputs)),
    ])  # fmt: skip


def _varying(each: Varying) -> Text:
    sizes = f"micro-batches of {each.micro_batch} against {each.against}"
    if not each.node:
        return said(("SAME BITS ", BOLD), f"{sizes}: in all {each.compared:,} outputs of a node and a token")
    return said(
        ("OTHER BITS ", BOLD),
        f"{sizes}: first at {each.operation} {each.node} on {each.device}, token {each.token} "
        f"(after {each.compared - 1:,} outputs of a node and a token with the same)",
    )


def _sentence(report: GraphReport) -> str:
    if report.verdict == "mismatch":
        return f": {report.wrong_nodes:,} of {report.judged:,} nodes are not what their definitions say"
    if report.verdict == "verified":
        outputs = sum(each.elements for each in report.operations)
        return f": {report.judged:,} nodes, {outputs:,} outputs"
    if report.not_judged:
        left = sum(each.nodes for each in report.not_judged)
        return f": {report.judged:,} nodes are right, {left:,} were not judged"
    return f": {report.judged:,} nodes are right"
