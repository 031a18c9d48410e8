"""The parts of every file of JUnit XML; `../schemas/junit.xsd`.

JUnit XML has no standard schema; this is what the dialects of Ant, Maven Surefire, Jenkins and GitLab have in common.
Characters that XML cannot hold, and those that do not print, are escaped as at the terminal.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from ...support.text import printable

_LONGEST = 1000


class Case(NamedTuple):
    """A test case.

    Args:
        classname, name: they are escaped, and no two cases of a file have both in common.
        tag: what it is if it is no pass.
        kind: of that, in a word or two.
        reason: in a line; "" for the kind.
        evidence: lines, which are escaped.
    """

    classname: str
    name: str
    seconds: float = 0.0
    tag: Literal["", "failure", "error", "skipped"] = ""
    kind: str = ""
    reason: str = ""
    evidence: Sequence[str] = ()


def document(suites: Iterable[ET.Element]) -> str:
    """The file."""
    root = ET.Element("testsuites")
    root.extend(suites)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def suite(
    number: int, name: str, started: datetime, seconds: float, properties: Mapping[str, str], cases: Sequence[Case],
    told: str = "",
) -> ET.Element:  # fmt: skip
    """The suite of that number; `told`: lines about no case."""
    tags = [case.tag for case in cases]
    made = ET.Element("testsuite", {
        "id": str(number), "package": "gguf-verify", "name": printable(name) or "gguf-verify",
        "timestamp": _timestamp(started), "hostname": "localhost", "tests": str(len(cases)),
        "failures": str(tags.count("failure")), "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")), "time": f"{seconds:.3f}",
    })  # fmt: skip
    listed = ET.SubElement(made, "properties")
    for key, value in properties.items():
        ET.SubElement(listed, "property", {"name": printable(key), "value": printable(value)})
    made.extend(_test_case(case) for case in cases)
    ET.SubElement(made, "system-out").text = told
    ET.SubElement(made, "system-err").text = ""
    return made


def _test_case(case: Case) -> ET.Element:
    made = ET.Element(
        "testcase", {"classname": case.classname, "name": case.name or "-", "time": f"{case.seconds:.3f}"}
    )
    if case.tag:
        kind = {} if case.tag == "skipped" else {"type": case.kind}
        told = ET.SubElement(made, case.tag, {**kind, "message": printable(case.reason or case.kind, _LONGEST)})
        told.text = "\n".join(case.evidence)
    return made


def _timestamp(started: datetime) -> str:
    """UTC without a zone: the strictest of the readers accept nothing else."""
    return (started.astimezone(UTC) if started.tzinfo else started).strftime("%Y-%m-%dT%H:%M:%S")
