"""The suites and test cases of a night; `../schemas/junit.xsd`.

JUnit XML has no standard schema; this is what the dialects of Ant, Maven Surefire, Jenkins and GitLab have in common. A
cell that is wrong is a failure; one that could not be judged, was not run or vanished is an error. Only a cell all of
whose failures are waived is `skipped`, which continuous integration takes for a pass; the reason is its message.
Characters that XML cannot hold, and those that do not print,
are escaped as at the terminal.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ...nightly.records import Cell, Key, Night, Outcome
from ...nightly.summary import NightReport
from ...support.text import printable


class _Case(NamedTuple):
    """A test case: `tag` is "", "failure", "error" or "skipped"."""

    key: Key
    cell: Cell | None
    tag: str
    kind: str
    reason: str


def render(report: NightReport) -> str:
    """The night that is reported. Raises ValueError where its `started` is no ISO 8601."""
    night = report.night
    cases = [*_cases(report)]
    root = ET.Element("testsuites")
    for i, variant in enumerate(dict.fromkeys(case.key.variant for case in cases)):
        root.append(_suite(night, i, variant, [case for case in cases if case.key.variant == variant]))
    if not cases:  # a file without a test case is green in some readers
        nothing = _Case(Key("matrix", "", "", "", "", ""), None, "error", "not run", "nothing was run")
        root.append(_suite(night, 0, "", [nothing]))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


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
            tag = "failure" if cell is not None and cell.outcome is Outcome.MISMATCH else "error"
            yield _Case(key, cell, tag, standing.outcome, standing.reason or changed.get(key, ""))
    known = {standing.key for standing in cells}
    for change in () if comparison is None else comparison.vanished:
        if change.key not in known:
            yield _Case(change.key, None, "error", "vanished", change.reason)


def _suite(night: Night, number: int, variant: str, cases: Sequence[_Case]) -> ET.Element:
    tags = [case.tag for case in cases]
    suite = ET.Element("testsuite", {
        "id": str(number), "package": "gguf-verify", "name": printable(variant) or "gguf-verify",
        "timestamp": _timestamp(night.started), "hostname": "localhost", "tests": str(len(cases)),
        "failures": str(tags.count("failure")), "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
        "time": f"{sum(case.cell.seconds for case in cases if case.cell is not None):.3f}",
    })  # fmt: skip
    properties = ET.SubElement(suite, "properties")
    known = {"night": str(night.number), "config": night.config, "project": night.project, **night.hardware}
    for case in cases:
        known |= {} if case.cell is None else dict(case.cell.versions)
    for name, value in known.items():
        ET.SubElement(properties, "property", {"name": printable(name), "value": printable(value)})
    for case in cases:
        suite.append(_test_case(case))
    ET.SubElement(suite, "system-out").text = ""
    ET.SubElement(suite, "system-err").text = ""
    return suite


def _test_case(case: _Case) -> ET.Element:
    key, cell = case.key, case.cell
    rest = [part for part in (key.type, key.host, key.prompt, key.variant) if part]
    made = ET.Element("testcase", {
        "classname": f"{printable(key.model)}/{printable(key.kernel)}", "name": printable(" · ".join(rest)) or "-",
        "time": f"{0.0 if cell is None else cell.seconds:.3f}",
    })  # fmt: skip
    if case.tag:
        kind = {} if case.tag == "skipped" else {"type": case.kind}
        told = ET.SubElement(made, case.tag, {**kind, "message": printable(case.reason or case.kind, 1000)})
        told.text = "\n".join(printable(line, 1000) for line in _evidence(case))
    return made


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


def _timestamp(started: str) -> str:
    """UTC without a zone: the strictest of the readers accept nothing else."""
    at = datetime.fromisoformat(started)
    return (at.astimezone(UTC) if at.tzinfo else at).strftime("%Y-%m-%dT%H:%M:%S")
