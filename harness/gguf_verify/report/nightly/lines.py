"""A night and a comparison in a few lines, as `gguf-verify nightly` prints them. It reads records, computes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...gguf import printable
from ...nightly.compare import Change, Comparison
from ...nightly.records import Key, Night, Outcome
from ...nightly.significance import LEAST_NIGHTS

_MOST_LINES = 20


def night_lines(night: Night) -> Iterator[str]:
    """How it ended: counts, and each cell that is no pass."""
    yield head(night)
    bad = [cell for cell in night.cells.values() if cell.outcome is not Outcome.VERIFIED]
    for cell in bad[:_MOST_LINES]:
        yield f"{cell.outcome.upper()} {_name(cell.key)}: {_words(cell.words)}"
    if len(bad) > _MOST_LINES:
        yield f"… and {len(bad) - _MOST_LINES} more"


def head(night: Night) -> str:
    """One line."""
    counts = Counter(cell.outcome for cell in night.cells.values())
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "nothing"
    missing = f", {len(night.missing)} not run" if night.missing else ""
    seconds = sum(cell.seconds for cell in night.cells.values())
    state = f"finished {night.finished}" if night.finished else "not finished"
    return (
        f"night {night.number} of {printable(night.config, 64)}, begun {night.started}, {state}: "
        f"{len(night.planned)} cells, {told}{missing}; {seconds:,.0f} s of runs; "
        f"gguf-verify {printable(night.project, 80)}"
    )


def comparison_lines(found: Comparison) -> Iterator[str]:
    """What differs, worst first."""
    both = f"{found.compared} cells in both, {found.verified} verified in both"
    yield f"night {found.new} against night {found.old}: {both}"
    if found.other_machine:
        yield "they ran on different machines: neither times nor utilisations are compared with the old night's"
    kinds = [
        ("NEW FAILURE", found.new_failures), ("VANISHED", found.vanished), ("OTHER OUTCOME", found.other_outcome),
        ("STILL FAILING", found.still_failing), ("FIXED", found.fixed), ("APPEARED", found.appeared),
    ]  # fmt: skip
    for name, changes in kinds:
        yield from _capped([_change(name, c) for c in changes], f"{name} in all: {len(changes)}")
    yield from _capped([f"NOT RUN {_name(key)}" for key in found.not_run], f"NOT RUN in all: {len(found.not_run)}")
    yield from _capped(
        [f"DRIFT {_name(d.key)}, {_words(d.words)}" for d in found.drift], f"DRIFT in all: {len(found.drift)}"
    )
    yield from _capped(
        [f"SLOWER {_name(s.key)}: {_words(s.words)}" for s in found.slower], f"SLOWER in all: {len(found.slower)}"
    )
    yield from _capped(
        [f"FASTER {_name(s.key)}: {_words(s.words)}" for s in found.faster], f"FASTER in all: {len(found.faster)}"
    )
    yield from _changed(found)
    counts = [
        (len(found.new_failures), "new failures"), (len(found.vanished), "vanished"), (len(found.fixed), "fixed"),
        (len(found.still_failing) + len(found.other_outcome), "still failing"), (len(found.appeared), "appeared"),
        (len(found.drift), "utilisations drifted"), (len(found.slower), "slower"), (len(found.faster), "faster"),
    ]  # fmt: skip
    yield ", ".join(f"{n} {what}" for n, what in counts)
    for nights, cells in sorted((found.times_not_judged or {}).items()):
        yield f"times of {cells} cells not judged: {nights} of {LEAST_NIGHTS} nights"
    if found.times_judged:
        pace = f"the night's pace is {found.pace:.3g} of what is usual, {found.pace_sigmas:+.1f} σ"
        yield f"times of {found.times_judged} cells judged; {pace}"
    if found.drift_not_judged:
        yield f"utilisations not judged, of varying and short history: {found.drift_not_judged}"


def _changed(found: Comparison) -> Iterator[str]:
    if found.project is not None:
        yield f"CHANGED gguf-verify: {printable(found.project[0], 80)} → {printable(found.project[1], 80)}"
    for name, (old, new) in (found.hardware or {}).items():
        yield f"CHANGED {printable(name, 40)}: {printable(old, 80) or '-'} → {printable(new, 80) or '-'}"
    for name, changes in (found.versions or {}).items():
        for (old, new), cells in changes.items():
            shown = f"{printable(old, 80) or '-'} → {printable(new, 80) or '-'}"
            yield f"CHANGED {printable(name, 40)}: {shown} in {cells} cells"


def _change(name: str, change: Change) -> str:
    outcomes = f"{change.old or '-'} → {change.new or '-'}" if change.old != change.new else f"{change.new}"
    return f"{name} {_name(change.key)}: {outcomes}{f': {_words(change.words)}' if change.words else ''}"


def _capped(lines: Sequence[str], rest: str) -> Iterator[str]:
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"… {rest}"


def _name(key: Key) -> str:
    return printable(str(key), 200)


def _words(words: str) -> str:
    return printable(words, 400)
