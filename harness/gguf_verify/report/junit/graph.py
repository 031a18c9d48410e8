"""The test cases of a graph: one for each operation and device.

An operation with a wrong node is a failure; one of which a node could not be judged is an error, and so is a run that
was broken off, was interrupted, or judged nothing on its device. Nothing is `skipped`, which continuous integration
takes for a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ...backend_results import GraphReport, NotJudged, OperationResult
from ...support.text import counted, printable
from .. import graph_words as words
from .parts import Case, document, suite

#: The name of the case for faults of no operation.
_WHOLE = "the whole graph"


@dataclass
class _Found:
    """The records of an operation on a device."""

    judged: list[OperationResult] = field(default_factory=list)
    left: list[NotJudged] = field(default_factory=list)


def render(report: GraphReport) -> str:
    """The graph as one suite."""
    began = datetime.now(UTC) - timedelta(seconds=report.seconds)  # the record has no time; it is written when it ends
    build, device = report.build, report.device
    properties = {
        "gguf-verify": report.gguf_verify, "llama.cpp": build.llama_cpp, "ggml": build.ggml,
        "llama-cpp-python": build.llama_cpp_python, "libraries": build.folder, "device": device.name,
        "device is": device.words, "architecture": report.architecture, "sha256": ", ".join(report.sha256),
        "verdict": report.verdict,
    }  # fmt: skip
    told = [": ".join(words.varying(each)) for each in report.varying]
    if back := words.fell_back(report):
        told.insert(0, f"fell back {back}")
    cases = [*_cases(report)]
    return document([suite(0, words.about(report), began, report.seconds, properties, cases, "\n".join(told))])


def _cases(report: GraphReport) -> Iterator[Case]:
    found: dict[tuple[str, str], _Found] = {}
    for judged in report.operations:
        found.setdefault((judged.device, judged.operation), _Found()).judged.append(judged)
    for left in report.not_judged:
        found.setdefault((left.device, left.operation), _Found()).left.append(left)
    passes = True
    for (device, operation), each in found.items():
        case = _case(report, device, operation, each)
        passes = passes and not case.tag
        yield case
    whole = _class(report, report.device.name)
    if report.fault:
        yield Case(whole, _WHOLE, 0.0, "error", "broken off", report.fault, [*_of_run(report)])
    elif report.ended_by.startswith("SIG"):
        yield Case(whole, _WHOLE, 0.0, "error", "interrupted", words.ended(report), [*_of_run(report)])
    elif report.exit_code and passes:  # no file is green whose verdict is no pass
        yield Case(whole, _WHOLE, 0.0, "error", report.verdict, words.sentence(report), [*_of_run(report)])


def _class(report: GraphReport, device: str) -> str:
    return f"{words.file_name(report)}/{printable(device)}"


def _case(report: GraphReport, device: str, operation: str, found: _Found) -> Case:
    classname, name = _class(report, device), printable(operation)
    nodes, wrong = sum(each.nodes for each in found.judged), sum(each.wrong for each in found.judged)
    left = sum(each.nodes for each in found.left)
    evidence = [*_wrong(found.judged), *(f"not judged: {words.left(each)}" for each in found.left)]
    evidence += _repeat(report)
    if wrong:
        reason = f"{wrong:,} of {counted(nodes, 'nodes')} {'is' if wrong == 1 else 'are'} wrong"
        node = next((each.first for each in found.judged if each.first is not None), None)
        reason += "" if node is None else f", the first is {words.name(node)}: {words.first(node)}"
        return Case(classname, name, 0.0, "failure", "mismatch", reason, evidence)
    if found.left:
        unjudged = f"{left:,} of {counted(nodes + left, 'nodes')} {'was' if left == 1 else 'were'} not judged"
        reason = f"{unjudged}: {words.seen(found.left[0].why)}"
        return Case(classname, name, 0.0, "error", "not judged", reason, evidence)
    return Case(classname, name)


def _wrong(judged: Sequence[OperationResult]) -> Iterator[str]:
    for each in judged:
        if each.first is not None:
            yield from words.lines(each.first)


def _of_run(report: GraphReport) -> Iterator[str]:
    yield f"{report.verdict}: {words.sentence(report)}"
    if report.ended_by:
        yield f"ended early {words.ended(report)}"
    yield from _repeat(report)


def _repeat(report: GraphReport) -> Iterator[str]:
    if command := words.command(report):
        yield f"repeat with: {command}"
