"""Digests as JUnit XML; `schemas/junit.xsd`.

JUnit XML has no standard schema; this is what the dialects of Ant, Maven Surefire, Jenkins and GitLab have in common.
Characters that XML cannot hold, and those that do not print, are escaped as at the terminal. Only a case all of whose
findings are waived is `skipped`, which continuous integration takes for a pass; the reason is its message.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC

from .digest import Case, Digest, Finding, seen

_LONGEST = 1000


def render(digest: Digest) -> str:
    """The file. Findings of no case are lines beside the cases if they are notes."""
    found: dict[str, dict[Case, list[Finding]]] = {name: {} for name in digest.suites}
    for f in digest.findings:
        if f.case is not None:
            found[f.case.suite].setdefault(f.case, []).append(f)
    root = ET.Element("testsuites")
    for i, (name, cases) in enumerate(found.items()):
        root.append(_suite(i, name, cases, digest))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(number: int, name: str, cases: Mapping[Case, Sequence[Finding]], digest: Digest) -> ET.Element:
    made = [_test_case(case, found) for case, found in cases.items()]
    tags = [child.tag for case in made for child in case]
    seconds = sum(case.seconds for case in cases) if digest.seconds is None else digest.seconds
    assert digest.started is not None
    # UTC without a zone: the strictest of the readers accept nothing else
    started = digest.started.astimezone(UTC) if digest.started.tzinfo else digest.started
    suite = ET.Element("testsuite", {
        "id": str(number), "package": "gguf-verify", "name": seen(name) or "gguf-verify",
        "timestamp": started.strftime("%Y-%m-%dT%H:%M:%S"), "hostname": "localhost", "tests": str(len(made)),
        "failures": str(tags.count("failure")), "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")), "time": f"{seconds:.3f}",
    })  # fmt: skip
    listed = ET.SubElement(suite, "properties")
    for key, value in digest.suites[name].items():
        ET.SubElement(listed, "property", {"name": seen(key), "value": seen(value)})
    suite.extend(made)
    notes = [f.message for f in digest.findings if f.case is None and f.level == "note"]
    ET.SubElement(suite, "system-out").text = "\n".join(notes)
    ET.SubElement(suite, "system-err").text = ""
    return suite


def _test_case(case: Case, found: Sequence[Finding]) -> ET.Element:
    made = ET.Element(
        "testcase", {"classname": seen(case.classname), "name": seen(case.name) or "-", "time": f"{case.seconds:.3f}"}
    )
    if bad := [f for f in found if f.level != "none"]:
        # a mismatch decides
        worst = min(bad, key=lambda f: (f.waived, f.kind != "mismatch"))
        tag = "skipped" if worst.waived else "failure" if worst.kind == "mismatch" else "error"
        kind = {} if worst.waived else {"type": worst.kind}
        element = ET.SubElement(made, tag, {**kind, "message": seen(worst.message or worst.kind, _LONGEST)})
        element.text = "\n".join(dict.fromkeys(seen(line, _LONGEST) for f in bad for line in (f.message, *f.lines)))
    return made
