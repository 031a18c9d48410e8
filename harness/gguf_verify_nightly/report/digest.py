"""The digest of a night: the verdict, what changed, and each cell.

Each cell is a test case of JUnit. One that is wrong is a failure; one that could not be judged, was not run or vanished
is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from gguf_verify.report import graph_words
from gguf_verify.report.digest import Case, Digest, Finding, Level, Marked, Section, Table
from gguf_verify.support.text import printable

from ..records import Cell, Key, Outcome
from ..summary import NightReport


def digest(report: NightReport) -> Digest:
    """The digest of the night that is reported. Raises ValueError where its `started` is no ISO 8601."""
    night, verdict, found = report.night, report.verdict, [*findings(report)]
    suites: dict[str, dict[str, str]] = {}
    for f in found:
        assert f.case is not None
        suites.setdefault(
            f.case.suite, {"night": str(night.number), "config": night.config, "project": night.project}
        ).update(night.hardware)
    for key, cell in night.cells.items():
        suites[key.variant].update(cell.versions)
    return Digest(
        level=verdict.level,
        words=verdict.word,
        exit_code=night.exit_code,
        findings=found,
        sections=[*_sections(report)],
        started=datetime.fromisoformat(night.started),
        suites=suites,
    )


def findings(report: NightReport) -> Iterator[Finding]:
    """Yield the cells, verified ones too, and those that vanished; where there is none, that nothing was run."""
    comparison, cells = report.comparison, report.standings
    changed = {} if comparison is None else {c.key: c.reason for c in comparison.new_failures}
    for standing in cells:
        key, cell = standing
        reason = standing.reason or changed.get(key, "")
        level: Level = "none" if standing.verified else "error"
        yield _finding(key, cell, level, standing.outcome, reason)
    known = {standing.key for standing in cells}
    for change in () if comparison is None else comparison.vanished:
        if change.key not in known:
            yield _finding(change.key, None, "error", "vanished", change.reason)
    if not cells and (comparison is None or not comparison.vanished):  # a file without a case is green in some readers
        yield _finding(Key("matrix", "", "", "", "", ""), None, "error", "not run", "nothing was run")


def _finding(key: Key, cell: Cell | None, level: Level, kind: str, reason: str) -> Finding:
    rest = " · ".join(part for part in (key.type, key.host, key.prompt, key.variant) if part)
    seconds = 0.0 if cell is None else cell.seconds
    return Finding(
        rule=None,
        level=level,
        kind=kind,
        message=printable(reason),
        lines=[printable(line, 1000) for line in _evidence(key, cell, kind)],
        waived=cell is not None and cell.outcome is Outcome.WAIVED,
        case=Case(key.variant, f"{printable(key.model)}/{printable(key.kernel)}", printable(rest), seconds),
    )


def _evidence(key: Key, cell: Cell | None, kind: str) -> Iterator[str]:
    yield f"{key}: {kind}"
    if cell is None:
        return
    yield f"exit code {cell.exit_code}" if cell.exit_code is not None else "killed"
    for m in cell.measures:
        yield f"{m.rung}, {m.who}: utilisation {m.utilisation:.3g} at {m.where}"
    if cell.report is not None:
        yield from (f"{rung.name}: {failure.what}" for rung, failure in cell.report.failures)
        if cell.report.command:
            yield f"repeat with: {cell.report.repeat_of()}"
    if (graph := cell.graph) is not None:
        yield from (f"graph: {node.node} ({node.operation} on {node.device}) is wrong" for node in graph.wrong)
        if graph.command:
            yield f"repeat with: {graph_words.command(graph)}"


def _sections(report: NightReport) -> Iterator[Section]:
    night, changes, cells = report.night, report.changes, report.standings
    yield f"{report.title}: {report.verdict.sentence}."
    if report.comparison is not None:
        if changes:
            rows: list[Sequence[str | Marked]] = [
                (Marked(kind.level, kind.title), str(change.key), change.reason)
                for kind, listed in changes
                for change in listed
            ]
            title = f"What changed against {report.comparison.against}"
            yield Table(title, ("", "cell", "how"), rows, spare=20_000)
        else:
            yield f"Nothing changed against {report.comparison.against}."
    if wrong := [s for s in cells if not s.verified]:
        reasons = [(str(s.key), Marked(s.level, s.outcome), s.reason) for s in wrong]
        yield Table(f"{len(wrong):,} not verified", ("cell", "outcome", "why"), reasons, folded=True)
    if verified := [s.cell for s in cells if s.verified and s.cell is not None]:
        times = [(str(cell.key), f"{cell.seconds:.1f}") for cell in verified]
        yield Table(f"{len(verified):,} verified", ("cell", "seconds"), times, folded=True)
    facts = {"project": night.project, "started": night.started, "finished": night.finished or "not finished"}
    yield " · ".join(f"{name} {value}" for name, value in {**facts, **night.hardware}.items() if value)
