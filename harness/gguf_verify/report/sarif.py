"""SARIF 2.1.0, which code scanning of GitHub, GitLab and editors read: findings of audits, failures of runs.

A result has a rule, a level, a message, and where it is about bytes of a file, that file and a region: `byteOffset`,
`byteLength`. A finding's rule is its id, of which docs/findings.md says cause and cure; a run's rules are the rungs.
`partialFingerprints` tell a result in one file from another one when the file moves, grows or is rewritten: they are
made of rule, tensor or key, and place in the tensor, never of absolute offsets. Of a graph they are made of the node,
its operation and device.
(OASIS, Static Analysis Results Interchange Format 2.1.0, errata 01. Its `helpUri` must be absolute, so `help` names the
page.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..gguf.rules import RULES
from ..support.text import printable, sentence
from ..support.version import project_version
from . import findings
from .findings import Finding
from .writer import Kind, Writer

if TYPE_CHECKING:
    from ..results.report import Report

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FINDINGS_PAGE, _CODES_PAGE = "docs/findings.md", "docs/exit-codes.md"

Json = dict[str, Any]


def _of_run(report: Report) -> str:
    """The findings of a run and, as notifications of the tool, the classes of checks that were skipped."""
    kernel = report.environment.kernel
    notes = [f"the kernel declares {printable(kernel.declared)}"] if report.kernel_ran and kernel.declares else []
    notes += [f"skipped: {check.words}" for check in report.skipped]
    return render(report.command, report.exit_code, findings.of_run(report), notes)


def render(command: str, exit_code: int, found: Iterable[Finding], notes: Iterable[str] = ()) -> str:
    """The log of one run of the tool."""
    listed = [f for f in found if f.rule is not None]
    index = {rule: i for i, rule in enumerate(sorted({f.rule for f in listed if f.rule is not None}))}
    driver = {"name": "gguf-verify", "version": project_version(), "rules": [_rule(id) for id in index]}
    invocation: Json = {"executionSuccessful": exit_code in (0, 1, 4), "exitCode": exit_code}
    if command:
        invocation["commandLine"] = printable(command)
    if notifications := [{"level": "note", "message": {"text": note}} for note in notes]:
        invocation["toolExecutionNotifications"] = notifications
    results = [{**_result(f), "ruleIndex": index[f.rule or ""]} for f in listed]
    log = {
        "$schema": SCHEMA, "version": VERSION,
        "runs": [{"tool": {"driver": driver}, "invocations": [invocation], "results": results}],
    }  # fmt: skip
    return json.dumps(log, indent=1, allow_nan=False) + "\n"


def _result(f: Finding) -> Json:
    physical: Json = {"artifactLocation": {"uri": _uri(f.path)}}
    if f.region is not None:
        start, stop = f.region
        physical["region"] = {"byteOffset": start, "byteLength": max(stop - start, 0)}
    location: Json = {"physicalLocation": physical}
    if f.owner:
        location["logicalLocations"] = [{"name": printable(f.owner, 200), "kind": "member"}]
    told = "\0".join((f.rule or "", f.owner, f.place)).encode("utf-8", "surrogateescape")
    made: Json = {
        "ruleId": f.rule, "level": f.level, "message": {"text": f.message + f.details}, "locations": [location],
        "partialFingerprints": {"ggufVerify/v1": hashlib.sha256(told).hexdigest()},
    }  # fmt: skip
    if f.properties:
        made["properties"] = dict(f.properties)
    if f.waived:
        made["suppressions"] = [{"kind": "external", "justification": "waived"}]
    return made


def _uri(path: str) -> str:
    """A relative path stays relative to where the command ran: to the repository, in continuous integration."""
    encoded = quote(path.encode("utf-8", "surrogateescape"))
    return f"file://{encoded}" if Path(path).is_absolute() else encoded


_BY_ID = {rule.id: rule for rule in RULES.values()}
#: Ends of the names of rules that are not findings of a file → level, what they mean.
_OTHERS = {
    "not-verified": ("warning", "Something should have been checked and could not be."),
    "mismatch": ("error", "What the kernel, the file or llama.cpp computes is not what it should be."),
    "broken-off": ("error", "The check could not be finished."),
    "not-opened": ("error", "The file could not be opened."),
    "file-changed": ("error", "The file was changed while it was checked."),
    "other-bits": (
        "note", "A token's bits depend on how many tokens are computed with it, or on its place among them.",
    ),
}  # fmt: skip


def _rule(id: str) -> Json:
    rule = _BY_ID.get(id)
    if rule is None:
        level, short = next(told for end, told in _OTHERS.items() if id.endswith(end))
        help_text = f"See {_CODES_PAGE}."
    else:
        level, short = "error" if rule.effect == "refuse" else rule.effect, f"{sentence(rule.why)}."
        help_text = f"Cause: {rule.cause} Cure: {rule.cure} See {_FINDINGS_PAGE}#{rule.id.lower()}."
    return {
        "id": id, "name": id, "shortDescription": {"text": short}, "help": {"text": help_text},
        "defaultConfiguration": {"level": level},
    }  # fmt: skip


WRITER = Writer(
    "SARIF", "--sarif", "also write the findings as SARIF 2.1.0, for code scanning",
    {
        Kind.RUN: lambda report, form: _of_run(report),
        Kind.AUDIT: lambda audit, form: render(audit.command, audit.exit_code, findings.of_audit(audit)),
        Kind.AUDITS: lambda audits, form: render(audits.command, audits.exit_code, findings.of_audits(audits)),
        Kind.GRAPH: lambda report, form: render(report.command, report.exit_code, findings.of_graph(report)),
    },
)  # fmt: skip
