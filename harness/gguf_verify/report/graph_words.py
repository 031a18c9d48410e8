"""Facts of a graph in the words that all reports use, without markup.

Names from a file are escaped in the record. Other unprintable characters, as in a record that was read from a
file, are escaped here; backslashes are kept, so that nothing is escaped twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..backend_results import GraphReport, NotJudged, OperationResult, Varying, WrongNode
from ..bisection_results import Seen
from ..support.command_line import shown
from ..support.text import counted, printable
from . import run_words
from .digest import seen
from .shades import rank, short

#: Characters of a name that a report shows.
NAME = 120


def file_name(report: GraphReport) -> str:
    """Return the name of the model's file."""
    return printable(report.path.rpartition("/")[2], NAME)


def about(report: GraphReport) -> str:
    """Return the file and the device."""
    return f"{file_name(report)} on {seen(report.device.name, NAME)}"


def build(report: GraphReport) -> str:
    """The versions of llama.cpp."""
    of = report.build
    python = "" if of.llama_cpp_python == "none" else f" · llama-cpp-python {seen(of.llama_cpp_python, NAME)}"
    return f"llama.cpp {seen(of.llama_cpp, NAME)}{python} · ggml {seen(of.ggml, NAME)}"


def sentence(report: GraphReport) -> str:
    """Return the verdict in numbers."""
    if report.verdict == "mismatch":
        verb = "is" if report.wrong_nodes == 1 else "are"
        return f"{report.wrong_nodes:,} of {counted(report.judged, 'nodes')} {verb} incorrect"
    if report.verdict == "verified":
        outputs = sum(each.elements for each in report.operations)
        judged = f"{counted(report.judged, 'nodes')}, {counted(outputs, 'outputs')}"
        return f"{judged}; the graph itself is not checked"
    right = f"{counted(report.judged, 'nodes')} {'is' if report.judged == 1 else 'are'} correct"
    if report.not_judged:
        return f"{right}, {sum(each.nodes for each in report.not_judged):,} were not judged"
    if report.verdict == "not everything verified":
        return f"{right}, none of them on {seen(report.device.name, NAME)}"
    return right


def ended(report: GraphReport) -> str:
    """Return the reason for an early end; "": none."""
    return f"by {'the ' * (' ' in report.ended_by)}{report.ended_by}" if report.ended_by else ""


def command(report: GraphReport) -> str:
    """Return the command that repeats a run which did not verify everything; "" for one that did."""
    return shown(report.command) if report.exit_code else ""


def utilisation(each: OperationResult) -> str:
    """Return the worst utilisation; where bits are compared, whether they are equal."""
    if each.exact:
        words = "differs" if each.wrong else "equal"
        return f"{words}, {each.ambiguous:,} ambiguous" if each.ambiguous else words
    return f"{each.utilisation:.3g}"


def of_seen(seen: Seen) -> str:
    """The worst utilisation of an operation that a bisection remembers, or whether its bits are equal."""
    if seen.exact:
        return "differs" if seen.wrong else "equal"
    return short(seen.utilisation)


def worst(report: GraphReport) -> str:
    """The worst utilisation of all operations that have one; "" without such."""
    found = [each.utilisation for each in report.operations if not each.exact]
    return short(max(found, key=rank)) if found else ""


def definitions(each: OperationResult) -> str:
    """Return the definitions by which an operation was judged."""
    return seen(", ".join(each.definitions))


def name(node: WrongNode) -> str:
    """The operation and the node."""
    return f"{seen(node.operation, NAME)} {seen(node.node, NAME)}"


def where(node: WrongNode) -> str:
    """The device, and the place in the graph."""
    return f"on {seen(node.device, NAME)}, node {node.number:,} of {seen(node.evaluation, NAME)}"


def first(node: WrongNode) -> str:
    """The first wrong element."""
    return f"{place(node)}: got {node.got:.9g}, expected {node.expected:.9g} ± {node.tolerance:.3g}"


def place(node: WrongNode) -> str:
    """Of the first wrong element."""
    return seen(node.place) or "the only element"


def extent(node: WrongNode) -> str:
    """Return the number of wrong elements, and their place."""
    return f"{node.wrong:,} of {node.elements:,}" + (f": {seen(node.extent)}" if node.extent else "")


def facts(node: WrongNode) -> Iterator[tuple[str, str]]:
    """A wrong node line by line; a label that is "" continues the one above."""
    yield "first", first(node)
    yield "worst", run_words.of_bound(node.utilisation, f"the bound of the definition {seen(node.definition)}")
    yield "wrong", extent(node)
    yield "output", seen(node.output)
    yield from (("" if i else "inputs", seen(words)) for i, words in enumerate(node.inputs))


def lines(node: WrongNode) -> Iterator[str]:
    """A wrong node as lines of plain text."""
    yield f"{name(node)} {where(node)}"
    yield from (f"  {label:<8}{words}" for label, words in facts(node))


def line(node: WrongNode) -> str:
    """A wrong node in a line."""
    return f"{name(node)} {where(node)}: {first(node)}; wrong: {extent(node)}"


def fell_back(report: GraphReport) -> str:
    """Return the operations that another device computed than the requested one; "": none."""
    back: Sequence[OperationResult] = [*report.fallen_back]
    listed = sorted({f"{seen(each.operation, NAME)} ({each.nodes:,})" for each in back})
    devices = ", ".join(sorted({seen(each.device, NAME) for each in back}))
    return f"to {devices}, not computed on {seen(report.device.name, NAME)}: {', '.join(listed)}" if back else ""


def left(each: NotJudged) -> str:
    """Return an operation that was not judged, and the reason."""
    what = f"{seen(each.operation, NAME)} on {seen(each.device, NAME)}"
    return f"{what}: {seen(each.why)} ({counted(each.nodes, 'nodes')})"


def varying(each: Varying) -> tuple[str, str]:
    """Whether bits depend on the size of micro-batches, on the slot, or on whether nodes are fused, as a label and its
    words."""
    if each.fused is not None:
        return _fusing(each, each.fused)
    sizes = seen(each.slot, NAME) or f"micro-batches of {each.micro_batch} against {each.against}"
    if not each.node and not each.compared:
        return "not compared", f"{sizes}: no output of a node could be split by tokens"
    if not each.node:
        return "same bits", f"{sizes}: in all {each.compared:,} outputs of a node and a token"
    return (
        "other bits",
        f"{sizes}: first at {seen(each.operation, NAME)} {seen(each.node, NAME)} on {seen(each.device, NAME)}, token "
        f"{each.token} (after {each.compared - 1:,} outputs of a node and a token with the same)",
    )


def _fusing(each: Varying, pairs: Sequence[str]) -> tuple[str, str]:
    told = f"; fused: {seen(', '.join(pairs))}" if pairs else ""
    if not each.node:
        return "same bits", f"{each.slot}: in all {each.compared:,} outputs{told}"
    where = f"{seen(each.operation, NAME)} {seen(each.node, NAME)} on {seen(each.device, NAME)}"
    return "other bits", f"{each.slot}: first at {where} (of {each.compared:,} outputs that were compared){told}"
