"""A night, a comparison of two nights and a history, as `gguf-verify nightly` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.text import Text

from gguf_verify.report.terminal.console import BAD, GOOD, STYLES, WARN, capped, rendered, said, verdict_line
from gguf_verify.report.writer import Form
from gguf_verify.support.text import counted, printable

from ..compare import Change, Comparison
from ..records import EXIT_CODES, Cell, Key, Night, Outcome
from ..significance import LEAST_NIGHTS
from ..summary import NightReport

MOST_LINES = 20


def render(report: NightReport, form: Form) -> str:
    """Return the cells of a night that are not verified, and in the last line its verdict."""
    return rendered(night_lines(report.night, None if form.verbose else MOST_LINES), form)


def render_comparison(found: Comparison, form: Form) -> str:
    """Return the differences between two nights, and in the last line whether the later one is worse."""
    return rendered(comparison_lines(found, None if form.verbose else MOST_LINES), form)


def render_history(nights: Mapping[str, Night], form: Form) -> str:
    """Nights by the names that they are pinned by, or by number, one line each."""
    lines = [
        head(night) + (f" ({printable(name, 64)})" if name != str(night.number) else "")
        for name, night in nights.items()
    ]
    return rendered(map(Text, lines or ["no night has been run"]), form)


def night_lines(night: Night, most: int | None = MOST_LINES) -> Iterator[Text]:
    """The counts, each cell that is not verified, the worst first, and the verdict; `most`: lines of cells."""
    yield Text(head(night))
    bad = sorted((cell for cell in night.cells.values() if not cell.verified), key=lambda cell: _rank(cell.outcome))
    lines = [
        said((cell.outcome.upper(), STYLES.get(cell.outcome, WARN)), f" {_name(cell.key)}: {_shown(cell.reason)}")
        for cell in bad
    ]
    yield from capped(lines, len(lines) if most is None else most)
    yield _verdict(night, bad[0] if bad else None)


#: Outcomes that `gguf-verify explain` explains.
_EXPLAINED = (Outcome.MISMATCH, Outcome.UNVERIFIED, Outcome.BROKEN_OFF)


def _rank(outcome: Outcome) -> int:
    """Of the outcomes that decide the exit code of a night, the first is the worst; a waived cell is the least."""
    return [*EXIT_CODES, outcome].index(outcome)


def _verdict(night: Night, worst: Cell | None) -> Text:
    """The worst outcome, the number of cells, and the worst cell with its reason."""
    counts = f": night {night.number}: {sum(cell.verified for cell in night.cells.values())} of "
    counts += f"{counted(len(night.planned), 'cells')} verified"
    if (night.missing or not night.cells) and (worst is None or worst.outcome is Outcome.WAIVED):
        return verdict_line(("NOT FINISHED", WARN), counts)
    if worst is None:
        return verdict_line(("VERIFIED", GOOD), counts)
    outcome = worst.outcome
    more = f"gguf-verify explain {outcome.replace(' ', '-')}" if outcome in _EXPLAINED else ""
    first = f"{_name(worst.key)}: {_shown(worst.reason)}"
    return verdict_line((outcome.upper(), STYLES.get(outcome, WARN)), counts, ("first", first), ("more", more))


def head(night: Night) -> str:
    """A night in one line."""
    counts = Counter(cell.outcome for cell in night.cells.values())
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "nothing recorded"
    missing = f", {len(night.missing)} not run" if night.missing else ""
    seconds = sum(cell.seconds for cell in night.cells.values())
    state = f"finished {printable(night.finished, 40)}" if night.finished else "not finished"
    return (
        f"night {night.number} of {printable(night.config, 64)}, started {printable(night.started, 40)}, {state}: "
        f"{counted(len(night.planned), 'cells')}, {told}{missing}; {seconds:,.0f} s of runs; "
        f"gguf-verify {printable(night.project, 80)}"
    )


def comparison_lines(found: Comparison, most: int | None = MOST_LINES) -> Iterator[Text]:
    """The differences, worst first, and the verdict; `most`: lines of a kind."""
    both = f"{counted(found.compared, 'cells')} in both, {found.verified} of them verified in both"
    yield Text(f"night {found.new} against night {found.old}: {both}")
    if found.other_machine:
        yield Text("the nights ran on different machines: times and utilisations of the old night are not compared")
    changes = [
        ("NEW FAILURE", BAD, found.new_failures), ("FAILS IN ANOTHER WAY", BAD, found.other_failures),
        ("VANISHED", BAD, found.vanished), ("WAIVED", WARN, found.waived),
        ("OTHER OUTCOME", WARN, found.other_outcome), ("STILL FAILING", WARN, found.still_failing),
        ("FIXED", GOOD, found.fixed), ("APPEARED", "", found.appeared),
    ]  # fmt: skip
    groups = [(name, style, [_change(c) for c in listed]) for name, style, listed in changes]
    groups += [
        ("NOT RUN", WARN, [_name(key) for key in found.not_run]),
        ("DRIFT", WARN, [f"{_name(d.key)}, {_shown(d.reason)}" for d in found.drift]),
        ("SLOWER", WARN, [f"{_name(s.key)}: {_shown(s.reason)}" for s in found.slower]),
        ("FASTER", GOOD, [f"{_name(s.key)}: {_shown(s.reason)}" for s in found.faster]),
    ]
    for name, style, lines in groups:
        shown = [said((name, style), f" {line}") for line in lines]
        yield from capped(shown, len(shown) if most is None else most, f"more: {name}")
    yield from map(Text, _changed(found))
    yield from map(Text, _counts(found))
    yield _comparison_verdict(found)


def _comparison_verdict(found: Comparison) -> Text:
    """Whether the later night is worse, and the first cell that is."""
    worse = [*found.new_failures, *found.other_failures, *found.vanished]
    nights = f": night {found.new} against night {found.old}"
    if not found.compared and not worse:
        return verdict_line(("NOTHING COMPARED", WARN), nights)
    if not worse:
        failing = len(found.still_failing) + len(found.other_outcome)
        told = f", {failing:,} still failing" if failing else ""
        return verdict_line(("NOT WORSE", WARN if failing or found.drift or found.slower else GOOD), nights + told)
    return verdict_line(("WORSE", BAD), f"{nights}: {counted(len(worse), 'cells')}", ("first", _change(worse[0])))


def _counts(found: Comparison) -> Iterator[str]:
    counts = [
        (found.new_failures, "new failures"), (found.other_failures, "fail in another way"),
        (found.vanished, "vanished"), (found.fixed, "fixed"), (found.waived, "waived"),
        ((*found.still_failing, *found.other_outcome), "still failing"), (found.appeared, "appeared"),
        (found.drift, "utilisations drifted"), (found.slower, "slower"), (found.faster, "faster"),
    ]  # fmt: skip
    yield ", ".join(counted(len(listed), what) for listed, what in counts)
    for nights, cells in sorted((found.times_not_judged or {}).items()):
        known = f"their history has {counted(nights, 'nights')}, and {LEAST_NIGHTS} are needed"
        yield f"the times of {counted(cells, 'cells')} are not judged: {known}"
    if found.times_judged:
        pace = f"the night took {found.pace:.3g} times as long as is usual, {found.pace_sigmas:+.1f} σ"
        yield f"the times of {counted(found.times_judged, 'cells')} are judged; {pace}"
    if found.drift_not_judged:
        lacking = counted(found.drift_not_judged, "utilisations")
        yield f"not judged: {lacking} with a history that varies and is too short"


def _changed(found: Comparison) -> Iterator[str]:
    if found.project is not None:
        yield f"CHANGED gguf-verify: {_arrow(*found.project)}"
    for name, change in (found.hardware or {}).items():
        yield f"CHANGED {printable(name, 40)}: {_arrow(*change)}"
    for name, changes in (found.versions or {}).items():
        for change, cells in changes.items():
            yield f"CHANGED {printable(name, 80)}: {_arrow(*change)} in {counted(cells, 'cells')}"


def _arrow(old: str, new: str) -> str:
    return f"{printable(old, 80) or '–'} → {printable(new, 80) or '–'}"


def _change(change: Change) -> str:
    outcomes = f"{change.old or '–'} → {change.new or '–'}" if change.old != change.new else f"{change.new}"
    return f"{_name(change.key)}: {outcomes}{f': {_shown(change.reason)}' if change.reason else ''}"


def _name(key: Key) -> str:
    return printable(str(key), 200)


def _shown(reason: str) -> str:
    return printable(reason, 400)
