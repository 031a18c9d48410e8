"""The findings of a result: one list, computed once, for SARIF and for the annotations of GitHub Actions.

A finding is something wrong, something that could not be checked, or something worth knowing. All its texts but the
path are printable, and each fits on a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..results.failures import Failure, WaiverState, WaiverUse
from ..results.report import Report
from ..results.rungs import RungResult
from ..support.text import printable
from . import graph_words as words

if TYPE_CHECKING:
    from ..audit.many import Audits
    from ..audit.record import Audit
    from ..backend_results import GraphReport

Level = Literal["error", "warning", "note"]
_OF_WAIVER: dict[WaiverState, Level] = {"applied": "note", "unused": "warning", "expired": "error"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding.

    Args:
        rule: the id of its rule, such as "GGUF-048-trailing" or "layers-mismatch"; None: it explains or sums up other
            findings.
        level: how bad it is.
        heading: the file and the verdict of its result.
        scope: the part of the result, such as the rung; "": the whole.
        message: what was found.
        details: text after the message, where there is room.
        path: the file.
        owner: the tensor, key or node; "": none.
        place: in the owner. It does not change when the file moves or grows, so it holds no offset in the file.
        region: the bytes, half-open; None: not about bytes.
        waived: a waiver covers it.
        fails: it fails the result, whatever its level.
        properties: further facts, by name.
    """

    rule: str | None
    level: Level
    heading: str
    message: str
    path: str
    scope: str = ""
    details: str = ""
    owner: str = ""
    place: str = ""
    region: tuple[int, int] | None = None
    waived: bool = False
    fails: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)


# ---- of a run --------------------------------------------------------------------------------------------------------


def of_run(report: Report) -> Iterator[Finding]:
    """Yield faults, diagnoses, recorded failures, waivers, unverified items and skipped checks."""
    path = report.environment.file.path
    finding = partial(Finding, heading=f"{printable(path.rpartition('/')[2])}: {report.words}", path=path)
    if report.fault:
        yield finding(rule="file-changed", level="error", message=printable(report.fault))
    if report.unfinished:
        yield finding(rule="run-not-verified", level="warning", message=printable(report.unfinished))
    for rung in report.rungs:
        if rung.fault:
            rule = f"{rung.name}-broken-off"
            yield finding(rule=rule, level="error", scope=rung.name, message=printable(rung.fault))
        for diagnosis in rung.diagnoses if rung.verdict == "failed" else ():
            lines = printable("; ".join(diagnosis.lines))
            yield finding(rule=None, level="error", scope=printable(diagnosis.tensor), message=lines)
    for rung, failure in report.failures:
        yield finding(
            rule=f"{rung.name}-mismatch",
            level="error",
            scope=rung.name,
            message=printable(failure.what),
            details=_details(report, rung, failure),
            owner=failure.tensor,
            place=f"{failure.row}/{failure.block}/{failure.token}",
            region=_region(failure),
            waived=failure.tensor in rung.waived,
            properties={
                "culprit": failure.culprit,
                "kernel": report.environment.kernel.name,
                "part": failure.part,
            },
        )
    yield from _waivers(report.waivers, path)
    for rung in report.rungs:
        for left in rung.unverified:
            yield finding(
                rule=f"{rung.name}-not-verified",
                level="warning",
                scope=rung.name,
                message=f"{printable(left.title, 100)} could not be verified: {printable(left.why)}",
                owner=left.tensor,
                place=left.name,
                properties={"culprit": left.culprit},
            )
    if skipped := report.skipped:
        titles = ", ".join(check.title for check in skipped)
        yield finding(rule=None, level="note", message=f"skipped: {titles}")


def _details(report: Report, rung: RungResult, failure: Failure) -> str:
    """The numbers of a failure, and the diagnosis of its type of weights."""
    words = ""
    if failure.got is not None and failure.expected is not None:
        words = f": got {failure.got:g}, expected {failure.expected:g}"
        words += f", bound {failure.bound:g}" if failure.bound is not None else ""
    kind = report.tensor_types.get(failure.tensor, "")
    diagnosis = next((d for d in rung.diagnoses if d.type in ("", kind)), rung.diagnosis)
    if diagnosis is not None and diagnosis.lines:
        words += f". Diagnosis: {printable(diagnosis.lines[0])}"
    return words


def _region(failure: Failure) -> tuple[int, int] | None:
    """The bytes of the block."""
    start = failure.byte_offset
    return None if start is None else (start, start + len(failure.block_hex or "") // 2)


def _waivers(waivers: Sequence[WaiverUse], path: str) -> Iterator[Finding]:
    for use in waivers:
        heading, words = f"waiver {use.state}", printable(use.words)
        yield Finding(rule=None, level=_OF_WAIVER[use.state], heading=heading, message=words, path=path)


# ---- of audits -------------------------------------------------------------------------------------------------------


def of_audit(audit: Audit) -> Iterator[Finding]:
    """Yield the fault, the findings of the file, waivers and unverified items."""
    path = str(audit.path)
    finding = partial(Finding, heading=f"{printable(audit.path.name)}: {audit.words}", path=path)
    if audit.fault:
        yield finding(rule="broken-off", level="error", message=printable(audit.fault))
    of_part = {file.part: file.shown for file in audit.files}
    starts = {(t.part, t.name): t.offset for t in (c.tensor for c in audit.contents)}
    for f in audit.findings:
        base = starts.get((f.part, f.owner))
        yield finding(
            rule=f.id,
            level=f.severity,
            scope=f"{f.id} at byte {f.start}",
            message=f"Found {f.found}; expected {f.expected}",
            details=f". Why it matters: {f.why}.",
            path=of_part.get(f.part, path),
            owner=f.owner,
            # the place in the tensor does not change when the header grows
            place=str(f.start - base) if base is not None and f.start >= base else "",
            region=(f.start, f.stop),
            waived=f in audit.waived,
            fails=audit.strict and f.severity == "warning",
        )
    yield from _waivers(audit.waivers, path)
    for name, why in audit.unverified:
        words = f"{printable(name, 64)} could not be judged: {printable(why)}"
        yield finding(rule="not-verified", level="warning", message=words, owner=name)


def of_audits(audits: Audits) -> Iterator[Finding]:
    """Yield the findings of each file, and the files that could not be opened."""
    from ..audit.many import Unopened  # late: a run's report does not need it

    for a in audits.audits:
        if isinstance(a, Unopened):
            heading = f"{printable(a.path.name)}: {a.verdict}"
            yield Finding(rule="not-opened", level="error", heading=heading, message=printable(a.why), path=str(a.path))
        else:
            yield from of_audit(a)


# ---- of a graph ------------------------------------------------------------------------------------------------------


def of_graph(report: GraphReport) -> Iterator[Finding]:
    """Yield the fault, recorded wrong nodes, nodes that were not judged or fell back, and nodes whose bits vary."""
    finding = partial(Finding, heading=f"{words.about(report)}: {report.verdict}", path=report.path)
    left = partial(finding, rule="graph-not-verified", level="warning")
    if report.fault:
        yield finding(rule="graph-broken-off", level="error", message=words.seen(report.fault))
    for node in report.wrong:
        place = f"{node.operation}/{node.device}"
        yield finding(rule="graph-mismatch", level="error", message=words.line(node), owner=node.node, place=place)
    if beyond := report.wrong_nodes - len(report.wrong):
        yield finding(rule="graph-mismatch", level="error", message=f"{beyond:,} more wrong nodes", place="more")
    if report.ended_by:
        yield left(message=f"ended early {words.ended(report)}", place="ended early")
    for each in report.not_judged:
        message = f"not judged: {words.left(each)}"
        yield left(message=message, owner=each.operation, place=f"{each.device}/{each.why}")
    if report.verdict == "not everything verified" and not report.not_judged:
        yield left(message=words.sentence(report))
    if back := words.fell_back(report):
        yield finding(rule=None, level="note", message=f"fell back {back}")
    for varying in report.varying:
        if varying.node:
            message, place = ": ".join(words.varying(varying)), varying.slot or str(varying.micro_batch)
            yield finding(rule="graph-other-bits", level="note", message=message, owner=varying.node, place=place)
