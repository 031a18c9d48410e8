"""The suites and test cases of a night.

A cell that is wrong is a failure; one that could not be judged, was not run or vanished is an error. Only a cell all of
whose failures are waived is `skipped`, which continuous integration takes for a pass; the reason is its message.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from gguf_verify.report import graph_words
from gguf_verify.report.junit.parts import Case, document, suite
from gguf_verify.support.text import printable

from ..records import Cell, Key, Night, Outcome
from ..summary import NightReport


class _Case(NamedTuple):
    """A test case of a night: `tag`, `kind` and `reason` as `parts.Case` has them."""

    key: Key
    cell: Cell | None
    tag: Literal["", "failure", "error", "skipped"]
    kind: str
    reason: str


def render(report: NightReport) -> str:
    """The night that is reported. Raises ValueError where its `started` is no ISO 8601."""
    cases = [*_cases(report)]
    if not cases:  # a file without a test case is green in some readers
        cases = [_Case(Key("matrix", "", "", "", "", ""), None, "error", "not run", "nothing was run")]
    variants = dict.fromkeys(case.key.variant for case in cases)
    return document(
        _suite(report.night, i, variant, [case for case in cases if case.key.variant == variant])
        for i, variant in enumerate(variants)
    )


def _cases(report: NightReport) -> Iterator[_Case]:
    comparison = report.comparison
    changed = {} if comparison is None else {c.key: c.reason for c in comparison.new_failures}
    cells = report.standings
    for standing in cells:
        key, cell = standing
        if standing.verified:
            yield _Case(key, cell, "", "", "")
        elif cell is not None and cell.accepted:
            yield _Case(key, cell, "skipped", standing.outcome, standing.reason)
        else:
            wrong = cell is not None and cell.outcome is Outcome.MISMATCH
            reason = standing.reason or changed.get(key, "")
            yield _Case(key, cell, "failure" if wrong else "error", standing.outcome, reason)
    known = {standing.key for standing in cells}
    for change in () if comparison is None else comparison.vanished:
        if change.key not in known:
            yield _Case(change.key, None, "error", "vanished", change.reason)


def _suite(night: Night, number: int, variant: str, cases: Sequence[_Case]) -> ET.Element:
    known = {"night": str(night.number), "config": night.config, "project": night.project, **night.hardware}
    for case in cases:
        known |= {} if case.cell is None else dict(case.cell.versions)
    seconds = sum(case.cell.seconds for case in cases if case.cell is not None)
    return suite(number, variant, datetime.fromisoformat(night.started), seconds, known, [*map(_made, cases)])


def _made(case: _Case) -> Case:
    key, cell = case.key, case.cell
    rest = [part for part in (key.type, key.host, key.prompt, key.variant) if part]
    return Case(
        f"{printable(key.model)}/{printable(key.kernel)}", printable(" · ".join(rest)),
        0.0 if cell is None else cell.seconds, case.tag, case.kind, case.reason,
        [printable(line, 1000) for line in _evidence(case)],
    )  # fmt: skip


def _evidence(case: _Case) -> Iterator[str]:
    yield f"{case.key}: {case.kind}"
    if case.reason:
        yield case.reason
    if case.cell is None:
        return
    yield f"exit code {case.cell.exit_code}" if case.cell.exit_code is not None else "killed"
    for m in case.cell.measures:
        yield f"{m.rung}, {m.who}: utilisation {m.utilisation:.3g} at {m.where}"
    if case.cell.report is not None:
        yield from (f"{rung.name}: {failure.what}" for rung, failure in case.cell.report.failures)
        if case.cell.report.command:
            yield f"repeat with: {case.cell.report.repeat_of()}"
    if (graph := case.cell.graph) is not None:
        yield from (f"graph: {node.node} ({node.operation} on {node.device}) is wrong" for node in graph.wrong)
        if graph.command:
            yield f"repeat with: {graph_words.command(graph)}"
