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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..gguf.records import Finding
from ..gguf.rules import RULES
from ..support.text import printable, sentence
from ..support.version import project_version
from .writer import Kind, Writer

if TYPE_CHECKING:
    from ..audit import Audit
    from ..audit.many import Audits
    from ..backend_results import GraphReport
    from ..results.failures import Failure, Unverified
    from ..results.report import Report
    from ..results.rungs import RungResult

VERSION = "2.1.0"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FINDINGS_PAGE, _CODES_PAGE = "docs/findings.md", "docs/exit-codes.md"
_LEVELS = {"refuse": "error", "error": "error", "warning": "warning", "note": "note"}

Json = dict[str, Any]


def of_audit(audit: Audit) -> Json:
    """One audit."""
    return _log(audit.command, audit.exit_code, list(_of_audit(audit)))


def of_audits(audits: Audits) -> Json:
    """Audits of several files, as one run of the tool."""
    results: list[Json] = []
    for a in audits.audits:
        results += _of_audit(a) if a in audits.opened else [_unopened(str(a.path), getattr(a, "why", ""))]
    return _log(audits.command, audits.exit_code, results)


def of_run(report: Report) -> Json:
    """A run: every failure that was recorded, everything that could not be verified, and, as notifications of the tool,
    the classes of checks that were skipped."""
    results = []
    for rung, failure in report.failures:
        made = _failure(report, rung, failure)
        if failure.tensor in rung.waived:
            made["suppressions"] = [{"kind": "external", "justification": "waived"}]
        results.append(made)
    for rung in report.rungs:
        results += [_left(report, rung, left) for left in rung.unverified]
        if rung.fault:
            results.append(
                _result(f"{rung.name}-broken-off", "error", rung.fault, report.environment.file.path, "", "")
            )
    if report.unfinished:
        results.append(_result("run-not-verified", "warning", report.unfinished, report.environment.file.path, "", ""))
    if report.fault:
        results.append(_result("file-changed", "error", report.fault, report.environment.file.path, "", ""))
    made = _log(report.command, report.exit_code, results)
    kernel = report.environment.kernel
    notes = [f"the kernel declares {printable(kernel.declared)}"] if report.kernel_ran and kernel.declares else []
    notes += [f"skipped: {check.words}" for check in report.skipped]
    if notes:
        made["runs"][0]["invocations"][0]["toolExecutionNotifications"] = [
            {"level": "note", "message": {"text": note}} for note in notes
        ]
    return made


def of_graph(report: GraphReport) -> Json:
    """A graph that was judged node by node: each wrong node that was recorded, and everything that was not judged."""
    from . import graph_words as words  # late: a run's report does not need it

    path = report.path
    results = [
        _result("graph-mismatch", "error", words.line(node), path, node.node, f"{node.operation}/{node.device}")
        for node in report.wrong
    ]
    if beyond := report.wrong_nodes - len(report.wrong):
        results.append(_result("graph-mismatch", "error", f"{beyond:,} more wrong nodes", path, "", "more"))
    for left in report.not_judged:
        told = f"not judged: {words.left(left)}"
        place = f"{left.device}/{left.why}"
        results.append(_result("graph-not-verified", "warning", told, path, left.operation, place))
    if report.verdict == "not everything verified" and not report.not_judged:
        results.append(_result("graph-not-verified", "warning", words.sentence(report), path, "", ""))
    if report.ended_by:
        ended = f"ended early {words.ended(report)}"
        results.append(_result("graph-not-verified", "warning", ended, path, "", "ended early"))
    if report.fault:
        results.append(_result("graph-broken-off", "error", words.seen(report.fault), path, "", ""))
    for each in report.varying:
        if each.node:
            told = ": ".join(words.varying(each))
            place = each.slot or str(each.micro_batch)
            results.append(_result("graph-other-bits", "note", told, path, each.node, place))
    return _log(report.command, report.exit_code, results)


# ---- results ---------------------------------------------------------------------------------------------------------


def _of_audit(audit: Audit) -> Iterator[Json]:
    by_part = {file.part: file.shown for file in audit.files}
    starts = {(t.part, t.name): t.offset for t in (c.tensor for c in audit.contents)}
    for f in audit.findings:
        path = by_part.get(f.part, str(audit.path))
        # of a tensor's block the place in the tensor, which stays when the header grows
        base = starts.get((f.part, f.owner))
        place = str(f.start - base) if base is not None and f.start >= base else ""
        made = _result(f.id, _LEVELS[f.effect], _words(f), path, f.owner, place)
        made["locations"][0]["physicalLocation"]["region"] = _region(f.start, f.stop)
        if f in audit.waived:
            made["suppressions"] = [{"kind": "external", "justification": "waived"}]
        yield made
    for name, why in audit.unverified:
        yield _result("not-verified", "warning", f"{printable(name, 64)}: {printable(why)}", str(audit.path), name, "")
    if audit.fault:
        yield _result("broken-off", "error", printable(audit.fault), str(audit.path), "", "")


def _words(f: Finding) -> str:
    return f"Found {f.found}; expected {f.expected}. Why it matters: {f.why}."


def _unopened(path: str, why: str) -> Json:
    return _result("not-opened", "error", why, path, "", "")


def _failure(report: Report, rung: RungResult, failure: Failure) -> Json:
    words = printable(failure.what)
    if failure.got is not None and failure.expected is not None:
        words += f": got {failure.got:g}, expected {failure.expected:g}"
        words += f", bound {failure.bound:g}" if failure.bound is not None else ""
    kind = report.tensor_types.get(failure.tensor, "")
    told = next((d for d in rung.diagnoses if d.type in ("", kind)), rung.diagnosis)
    if told is not None and told.lines:
        words += f". Diagnosis: {printable(told.lines[0])}"
    place = f"{failure.row}/{failure.block}/{failure.token}"
    made = _result(f"{rung.name}-mismatch", "error", words, report.environment.file.path, failure.tensor, place)
    if failure.byte_offset is not None:
        size = len(failure.block_hex or "") // 2
        made["locations"][0]["physicalLocation"]["region"] = _region(failure.byte_offset, failure.byte_offset + size)
    made["properties"] = {"culprit": failure.culprit, "kernel": report.environment.kernel.name, "part": failure.part}
    return made


def _left(report: Report, rung: RungResult, left: Unverified) -> Json:
    words = f"{printable(left.title, 100)} was not verified: {printable(left.why)}"
    made = _result(f"{rung.name}-not-verified", "warning", words, report.environment.file.path, left.tensor, left.name)
    made["properties"] = {"culprit": left.culprit}
    return made


def _region(start: int, stop: int) -> Json:
    return {"byteOffset": start, "byteLength": max(stop - start, 0)}


def _result(rule: str, level: str, words: str, path: str, owner: str, place: str) -> Json:
    told = "\0".join((rule, owner, place)).encode("utf-8", "surrogateescape")
    location: Json = {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}}}
    if owner:
        location["logicalLocations"] = [{"name": printable(owner, 200), "kind": "member"}]
    return {
        "ruleId": rule, "level": level, "message": {"text": words}, "locations": [location],
        "partialFingerprints": {"ggufVerify/v1": hashlib.sha256(told).hexdigest()},
    }  # fmt: skip


def _uri(path: str) -> str:
    """A relative path stays relative to where the command ran: to the repository, in continuous integration."""
    encoded = quote(path.encode("utf-8", "surrogateescape"))
    return f"file://{encoded}" if Path(path).is_absolute() else encoded


# ---- rules and the file ----------------------------------------------------------------------------------------------

_BY_ID = {rule.id: rule for rule in RULES.values()}
#: Ends of the names of rules that are not findings of a file → what they mean.
_OTHERS = {
    "not-verified": "Something should have been checked and could not be.",
    "mismatch": "What the kernel, the file or llama.cpp computes is not what it should be.",
    "broken-off": "The check could not be finished.",
    "not-opened": "The file could not be opened.",
    "file-changed": "The file was changed while it was checked.",
    "other-bits": "A token's bits depend on how many tokens are computed with it, or on its place among them.",
}


def _rule(id: str) -> Json:
    rule = _BY_ID.get(id)
    if rule is None:
        short = next(words for end, words in _OTHERS.items() if id.endswith(end))
        help_text = f"See {_CODES_PAGE}."
        levels = {"not-verified": "warning", "other-bits": "note"}
        level = next((level for end, level in levels.items() if id.endswith(end)), "error")
    else:
        short = f"{sentence(rule.why)}."
        help_text = f"Cause: {rule.cause} Cure: {rule.cure} See {_FINDINGS_PAGE}#{rule.id.lower()}."
        level = _LEVELS[rule.effect]
    return {
        "id": id, "name": id, "shortDescription": {"text": short}, "help": {"text": help_text},
        "defaultConfiguration": {"level": level},
    }  # fmt: skip


def _log(command: str, exit_code: int, results: list[Json]) -> Json:
    ids: Iterable[str] = sorted({result["ruleId"] for result in results})
    index = {id: i for i, id in enumerate(ids)}
    for result in results:
        result["ruleIndex"] = index[result["ruleId"]]
    driver = {"name": "gguf-verify", "version": project_version(), "rules": [_rule(id) for id in index]}
    invocation: Json = {"executionSuccessful": exit_code in (0, 1, 4), "exitCode": exit_code}
    if command:
        invocation["commandLine"] = printable(command)
    return {
        "$schema": SCHEMA, "version": VERSION,
        "runs": [{"tool": {"driver": driver}, "invocations": [invocation], "results": results}],
    }  # fmt: skip


def _text(made: Json) -> str:
    return json.dumps(made, indent=1, allow_nan=False) + "\n"


WRITER = Writer(
    "SARIF", "--sarif", "also write the findings as SARIF 2.1.0, for code scanning",
    {
        Kind.RUN: lambda report, form: _text(of_run(report)),
        Kind.AUDIT: lambda audit, form: _text(of_audit(audit)),
        Kind.AUDITS: lambda audits, form: _text(of_audits(audits)),
        Kind.GRAPH: lambda report, form: _text(of_graph(report)),
    },
)  # fmt: skip
