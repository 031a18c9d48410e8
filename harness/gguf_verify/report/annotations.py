"""Reports as workflow commands of GitHub Actions: what is wrong becomes an annotation of the run.

GitHub takes such lines from a step's standard output, and shows ten errors and ten warnings of a step. The format:
https://docs.github.com/actions/reference/workflow-commands-for-github-actions#setting-an-error-message
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..results.report import Report
from ..support.text import printable
from .writer import Kind, Writer

if TYPE_CHECKING:
    from ..audit import Audit
    from ..audit.many import Audits
    from ..backend_results import GraphReport

#: That GitHub shows of a step, of each level.
MOST = 10
_LIMIT = 900


class Annotation(NamedTuple):
    """One line: what it is about, and what is said."""

    level: Literal["error", "warning", "notice"]
    title: str
    message: str

    @property
    def command(self) -> str:
        """As GitHub takes it; no text can end the line, or begin another command."""
        title = _escaped(printable(self.title, 120)).replace(":", "%3A").replace(",", "%2C")
        return f"::{self.level} title={title}::{_escaped(printable(self.message, _LIMIT))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def of_run(report: Report) -> Iterator[Annotation]:
    """The diagnosis, each failure, what could not be verified, and waivers."""
    name = report.environment.file.path.rpartition("/")[2]
    title = f"{name}: {report.words}"
    if report.fault:
        yield Annotation("error", title, report.fault)
    if report.unfinished:
        yield Annotation("warning", title, report.unfinished)
    for rung in report.rungs:
        if rung.fault:
            yield Annotation("error", title, f"{rung.name}: {rung.fault}")
        for diagnosis in rung.diagnoses if rung.verdict == "failed" else ():
            yield Annotation("error", title, f"{diagnosis.tensor}: {'; '.join(diagnosis.lines)}")
    for rung, failure in report.failures:
        if failure.tensor not in rung.waived:
            yield Annotation("error", title, f"{rung.name}: {failure.what}")
    for use in report.waivers:
        if use.state != "applied":
            yield Annotation("error" if use.state == "expired" else "warning", f"waiver {use.state}", use.words)
        else:
            yield Annotation("notice", "waived", use.words)
    for rung in report.rungs:
        for left in rung.unverified:
            yield Annotation("warning", title, f"{rung.name}: {left.title} could not be verified: {left.why}")
    if skipped := report.skipped:
        yield Annotation("notice", title, f"skipped: {', '.join(check.title for check in skipped)}")


def of_audit(audit: Audit) -> Iterator[Annotation]:
    """Each error and warning, and what could not be judged."""
    title = f"{audit.path.name}: {audit.words}"
    if audit.fault:
        yield Annotation("error", title, audit.fault)
    for f in sorted(audit.findings, key=lambda f: f.severity != "error"):
        if f.severity != "note" and f not in audit.waived:
            level: Literal["error", "warning"] = "error" if f.severity == "error" or audit.strict else "warning"
            yield Annotation(level, title, f"{f.id} at byte {f.start}: found {f.found}; expected {f.expected}")
    for use in audit.waivers:
        level = "error" if use.state == "expired" else "warning"
        yield Annotation("notice" if use.state == "applied" else level, f"waiver {use.state}", use.words)
    for name, why in audit.unverified:
        yield Annotation("warning", title, f"{name} could not be judged: {why}")


def of_audits(audits: Audits) -> Iterator[Annotation]:
    """Those of each file, and files that could not be opened."""
    from ..audit.many import Unopened  # late: a run's report does not need it

    for a in audits.audits:
        if isinstance(a, Unopened):
            yield Annotation("error", f"{a.path.name}: {a.verdict}", a.why)
        else:
            yield from of_audit(a)


def of_graph(report: GraphReport) -> Iterator[Annotation]:
    """Each wrong node, what was not judged, what ended the run early, what fell back, and where bits vary."""
    from . import graph_words as words  # late: a run's report does not need it

    title = f"{words.about(report)}: {report.verdict}"
    if report.fault:
        yield Annotation("error", title, report.fault)
    for node in report.wrong:
        yield Annotation("error", title, words.line(node))
    if beyond := report.wrong_nodes - len(report.wrong):
        yield Annotation("error", title, f"and {beyond:,} more wrong nodes")
    if report.ended_by:
        yield Annotation("warning", title, f"ended early {words.ended(report)}")
    for left in report.not_judged:
        yield Annotation("warning", title, f"not judged: {words.left(left)}")
    if report.verdict == "not everything verified" and not report.not_judged:
        yield Annotation("warning", title, words.sentence(report))
    if back := words.fell_back(report):
        yield Annotation("notice", title, f"fell back {back}")
    for label, told in (words.varying(each) for each in report.varying if each.node):
        yield Annotation("notice", title, f"{label}: {told}")


def render(annotations: Iterable[Annotation]) -> str:
    """The lines; of what GitHub would not show, how much it is."""
    told: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for annotation in annotations:
        told[annotation.level].append(annotation.command)
    lines = []
    for level, commands in told.items():
        shown = commands if len(commands) <= MOST else commands[: MOST - 1]
        lines += shown
        if len(commands) > len(shown):
            lines.append(f"::{level} title=gguf-verify::and {len(commands) - len(shown):,} more, see the report")
    return "".join(f"{line}\n" for line in lines)


WRITER = Writer(
    "annotations", "--annotations", "also write what is wrong as workflow commands of GitHub Actions",
    {
        Kind.RUN: lambda report, form: render(of_run(report)),
        Kind.AUDIT: lambda audit, form: render(of_audit(audit)),
        Kind.AUDITS: lambda audits, form: render(of_audits(audits)),
        Kind.GRAPH: lambda report, form: render(of_graph(report)),
    },
)  # fmt: skip
