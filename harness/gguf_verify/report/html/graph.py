"""The page of a graph: the records of `backend_results`, arranged for the templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from ...backend_results import GraphOptions, GraphReport, OperationResult, WrongNode
from .. import graph_words as words
from .. import run_words
from ..digest import seen
from ..shades import level, rank, short

#: Rows of a table; more are counted.
MOST_ROWS = 5000


class Wrong(NamedTuple):
    """A wrong node: its numbers, its place, and its inputs."""

    name: str
    device: str
    numbers: Sequence[tuple[str, str]]
    facts: Sequence[tuple[str, str]]
    inputs: Sequence[str]


class Operation(NamedTuple):
    """A line of the operations' table; `utilisation` is "" where the shade says more than words."""

    result: OperationResult
    outcome: str
    definitions: str
    utilisation: str


@dataclass(frozen=True)
class Page:
    """A page, ready to be shown."""

    report: GraphReport
    title: str
    level: str
    sentence: str
    margin: str
    command: str
    ended: str
    build: str
    back: str
    wrong: Sequence[Wrong]
    operations: Sequence[Operation]
    outcomes: Sequence[str]
    varying: Sequence[tuple[str, str]]
    most: int
    environment: Sequence[tuple[str, Sequence[tuple[str, str]]]]

    @property
    def n_left(self) -> int:
        """Nodes that were not judged."""
        return sum(each.nodes for each in self.report.not_judged)


def of(report: GraphReport) -> Page:
    """A graph."""
    operations = [_operation(each) for each in report.operations[:MOST_ROWS]]
    return Page(
        report=report, title=words.about(report), level=level(report.verdict),
        sentence=f"{words.sentence(report)}, in {report.seconds:.1f} s.", margin=_margin(report),
        command=words.command(report), ended=words.ended(report), build=words.build(report),
        back=words.fell_back(report), wrong=[wrong(node) for node in report.wrong], operations=operations,
        outcomes=sorted({each.outcome for each in operations}), varying=[*map(words.varying, report.varying)],
        most=MOST_ROWS, environment=[*_environment(report)],
    )  # fmt: skip


def _margin(report: GraphReport) -> str:
    """Return the largest error of a correct graph relative to its bound; "": no bound was judged."""
    found = [each for each in report.operations if not each.exact]
    if report.wrong_nodes or not found:
        return ""
    worst = max(found, key=lambda each: rank(each.utilisation))
    return f"Largest error: {seen(worst.operation, words.NAME)}, {run_words.of_bound(worst.utilisation)}."


def wrong(node: WrongNode) -> Wrong:
    """A wrong node, ready to be shown."""
    numbers = [
        ("got", f"{node.got:.9g}"), ("expected", f"{node.expected:.9g}"), ("tolerance", f"{node.tolerance:.3g}"),
        ("worst utilisation", short(node.utilisation)),
    ]  # fmt: skip
    facts = [
        ("first wrong element", words.place(node)), ("wrong elements", words.extent(node)),
        ("definition", node.definition), ("output", node.output),
        ("place in the graph", f"node {node.number:,} of {node.evaluation}"),
    ]  # fmt: skip
    return Wrong(words.name(node), node.device, numbers, facts, node.inputs)


def _operation(each: OperationResult) -> Operation:
    outcome = "wrong" if each.wrong else "fell back" if each.fell_back else "right"
    told = words.utilisation(each) if each.exact else ""
    return Operation(each, outcome, words.definitions(each), told)


def _environment(report: GraphReport) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
    build, device = report.build, report.device
    digests = [("sha256", digest) for digest in report.sha256]
    yield "file", [("path", report.path), ("architecture", report.architecture), *digests]
    yield "device", [("name", device.name), ("is", device.words)]
    yield "build", [
        ("gguf-verify", report.gguf_verify), ("llama.cpp", build.llama_cpp), ("ggml", build.ggml),
        ("llama-cpp-python", build.llama_cpp_python), ("libraries", build.folder), ("features", build.features),
    ]  # fmt: skip
    yield "evaluations", [(f"{i}", name) for i, name in enumerate(report.evaluations, 1)]
    yield "options", [*_options(report.options)]


def _options(options: GraphOptions) -> Iterator[tuple[str, str]]:
    for key, value in asdict(options).items():
        if value not in ("", ()):
            shown = ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
            yield key.replace("_", " "), shown
