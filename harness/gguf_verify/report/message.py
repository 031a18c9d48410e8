"""The failures of a run in at most 15 lines: the message of a failed test and of `raise_for_mismatch`.

In the manner of numpy.testing and torch.testing.assert_close: how many of how many outputs are wrong, the greatest
utilisation and where it is, got and expected; and beyond those: the block's place in the file, the diagnosis, the
fix, and the command that repeats the failing call.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..results.diagnoses import LocatedDiagnosis
from ..results.failures import CULPRITS, Failure
from ..results.report import Report
from ..support.command_line import repeat, shown
from ..support.text import counted, printable
from . import run_words

#: Lines of a message, and of the diagnosis in it; characters of a line, but for the command.
MOST_LINES, _MOST_DIAGNOSIS, _WIDTH = 15, 4, 200
_HEX_DIGITS = 64


def of_run(report: Report, tensor: str | None = None) -> str:
    """The message of a run, or of one of its tensors: what is wrong there alone, and what is wrong with no tensor in
    particular."""
    found = _Wrong(report, tensor)
    lines = [*found.heading(), *found.numbers(), *found.explained(), *found.left()]
    repeat = found.repeat
    return "\n".join([*lines[: MOST_LINES - bool(repeat)], *([f"repeat with: {repeat}"] if repeat else [])])


def of_cause(report: Report, tensor: str) -> str:
    """The cause of a tensor's failures, or the reason why it was not checked, in a few words."""
    cause = run_words.causes(report).get(tensor, "")
    if cause:
        return cause
    failed = any(rung.failing.get(tensor) for rung in report.rungs)
    listed = next((f for _, f in report.failures if f.tensor in (tensor, "")), None)
    if listed is not None and listed.got is None:
        return printable(listed.what.removeprefix(f"{tensor}: "), _WIDTH)
    if failed:
        found = _diagnosis_of(report, tensor)
        return "cause not diagnosed" if found is None else f"cause: {found.verdict}"
    faults = (rung.fault for rung in report.rungs if rung.fault)
    left = (u.why for rung in report.rungs for u in rung.unverified if u.tensor in (tensor, ""))
    return printable(next(iter((*filter(None, [report.fault]), *faults, *left)), "not checked"), _WIDTH)


def like_another(report: Report, tensor: str, other: str) -> str:
    """The message of a tensor whose failures have the cause of another one, in a line.

    Args:
        other: the name under which the other one's message is printed.
    """
    return f"same cause as {other}: {run_words.causes(report)[tensor]}; {_extent(report, tensor)}"


def not_diagnosed(report: Report, tensor: str) -> str:
    """The message of a tensor with wrong outputs of an unknown cause, if the run diagnosed another one of its type: two
    lines, of which the second is the command that diagnoses it. "" for other tensors."""
    kind = report.tensor_types.get(tensor)
    others = any(said.type == kind for rung in report.rungs for said in rung.diagnoses)
    listed = [failure for _, failure in report.failures if failure.tensor in (tensor, "")]
    if _diagnosis_of(report, tensor) is not None or not others or any(failure.got is None for failure in listed):
        return ""
    rung = next((rung.name for rung in report.rungs if rung.failing.get(tensor)), "")
    words = "not diagnosed by itself, and not explained by the diagnosis of another matrix"
    again = shown(repeat(report.command, rung, tensor, ""))
    return f"{words}; {_extent(report, tensor)}\ndiagnose it with: {again}"


def _extent(report: Report, tensor: str) -> str:
    """The number of failures of a tensor, and its worst output."""
    n = counted(sum(rung.failing.get(tensor, 0) for rung in report.rungs), "failures")
    records = [record for rung in report.rungs for record in rung.gemms if record.tensor == tensor]
    if not records:
        return f"this matrix: {n}"
    sizes = ", ".join(dict.fromkeys(f"{record.m}×{record.n}" for record in records))
    worst = max(record.worst for record in records)
    return f"this matrix: {n} in products of {sizes} outputs and at other M, worst {worst:.3g} × the bound"


def _diagnosis_of(report: Report, tensor: str) -> LocatedDiagnosis | None:
    """The diagnosis of a tensor; else that of one whose failures have the same cause."""
    found = [said for rung in report.rungs for said in rung.diagnoses]
    causes = run_words.causes(report)
    cause = causes.get(tensor, "")
    alike = (said for said in found if cause and causes.get(said.tensor) == cause)
    return next((said for said in found if said.tensor == tensor), None) or next(alike, None)


class _Wrong:
    """The lines of a message about one tensor, or about all."""

    def __init__(self, report: Report, tensor: str | None) -> None:
        self._report, self._tensor = report, tensor
        about = (tensor, "")
        self._failures = [(r, f) for r, f in report.failures if tensor is None or f.tensor in about]
        self._fails = bool(self._failures) or any(rung.failing.get(tensor or "") for rung in report.rungs)
        said = None if tensor is None or self._failures or not self._fails else _diagnosis_of(report, tensor)
        if said is not None:  # a run lists its first failures only
            self._failures = [(r, f) for r, f in report.failures if f.tensor == said.tensor]
        self._left = [(r, u) for r in report.rungs for u in r.unverified if tensor is None or u.tensor in about]

    @property
    def repeat(self) -> str:
        """The command."""
        if self._tensor is not None and not any(f.tensor in (self._tensor, "") for _, f in self._failures):
            rung = self._left[0][0].name if self._left else self._report.rungs[0].name
            return shown(repeat(self._report.command, rung, self._tensor, ""))
        return shown(self._report.repeat_of(self._failures[0][1] if self._failures else None))

    def heading(self) -> Iterator[str]:
        """The kernel, the file and the verdict, and the number of failures."""
        e = self._report.environment
        kernel, file = printable(e.kernel.name, 80), printable(e.file.path.rsplit("/", 1)[-1], 80)
        if self._tensor is not None:
            file = f"{printable(self._tensor, 64)} of {file}"
        # of a matrix that was not checked, the verdict of the run says nothing
        unchecked = self._tensor is not None and not self._fails and not self._report.fault
        verdict = "it was not checked" if unchecked else self._report.verdict
        yield f"kernel {kernel} (declares {e.kernel.declared}) is not verified on {file}: {verdict}"
        if self._report.fault:
            yield f"broken off: {printable(self._report.fault, _WIDTH)}"
        if not self._fails:
            return
        failed = [rung for rung in self._report.rungs if rung.failing.get(self._tensor or "")]
        rung = self._failures[0][0] if self._failures else failed[0]
        about = self._diagnosis()
        wrong, of = rung.n_failures, ""
        if self._tensor is not None:
            wrong = rung.failing.get(self._tensor, 0) or len(self._failures)
        if about is not None and about.outputs and self._tensor in (None, about.tensor):
            share = f"{about.wrong:,} of {about.outputs:,} ({about.wrong / about.outputs:.1%})"
            of = f"; {share} in the call that is explained"
        yield f"Wrong: {wrong:,} in the {rung.name} rung{of}"

    def numbers(self) -> Iterator[str]:
        """The greatest utilisation, and the first failure."""
        if self._failures:
            worst = max((f.utilisation for _, f in self._failures if f.utilisation is not None), default=None)
            if self._tensor is None:
                sides = [w for r, _ in self._failures[:1] for w in r.worst.values() if w.of_kernel]
                if sides:
                    most = max(sides, key=lambda w: w.utilisation if w.utilisation == w.utilisation else float("inf"))
                    yield (
                        f"Greatest utilisation of the bound: {most.utilisation:.3g} at {printable(most.where, 100)} "
                        "(at most 1 is allowed)"
                    )
            elif worst is not None:
                yield f"Greatest utilisation of the bound that is listed: {worst:.3g} (at most 1 is allowed)"
            rung, first = self._failures[0]
            yield f"First failure, {rung.name} rung: {printable(first.what, _WIDTH)}"
            yield from _values(first)

    def _diagnosis(self) -> LocatedDiagnosis | None:
        if self._tensor is not None:
            return _diagnosis_of(self._report, self._tensor)
        return next((said for _, said in self._report.diagnosed), None)

    def explained(self) -> Iterator[str]:
        """The diagnosis, with the fix, and the culprits."""
        said = self._diagnosis() if self._fails else None
        if said is not None:
            of = "" if self._tensor in (None, said.tensor) else f"of {printable(said.tensor, 64)}, the same cause: "
            for i, line in enumerate(said.lines[:_MOST_DIAGNOSIS]):
                head = "           " if i else f"Diagnosis: {of}"
                yield head + printable(line, 2 * _WIDTH)
        if self._failures:
            culprits = dict.fromkeys(f.culprit for _, f in self._failures)
            yield f"At fault: {', '.join(CULPRITS[c] for c in culprits)}"

    def left(self) -> Iterator[str]:
        """Faults and unverified items."""
        if self._report.unfinished:
            yield printable(f"Incomplete: {self._report.unfinished}", 2 * _WIDTH)
        for rung in self._report.rungs:
            if rung.fault:
                yield f"The {rung.name} rung was broken off: {printable(rung.fault, _WIDTH)}"
        for rung, left in self._left[:3]:
            yield f"Not verified in the {rung.name} rung: {printable(left.title, 100)}: {printable(left.why, _WIDTH)}"
        if len(self._left) > 3:
            yield f"… and {len(self._left) - 3:,} more could not be verified"
        if not self._failures and not self._left:
            for rung in self._report.rungs:
                if rung.outcome == "unverified":
                    yield f"The {rung.name} rung checked nothing"


def _values(f: Failure) -> Iterator[str]:
    if numbers := run_words.numbers(f):
        yield f"  {numbers}"
    if f.block_hex is not None:
        part = f" of part {f.part + 1}" if f.part else ""
        digits = f.block_hex[:_HEX_DIGITS] + ("…" if len(f.block_hex) > _HEX_DIGITS else "")
        at = "" if f.byte_offset is None else f" at byte {f.byte_offset} ({f.byte_offset:#x}){part}"
        yield f"  block {f.block} of row {f.row}{at}: {digits}"
