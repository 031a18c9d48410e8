"""Comparison of two nights: cells that are worse, better or missing. A missing cell is never a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gguf_verify.support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED
from gguf_verify.support.text import counted, printable

from .machine import SAME_MACHINE
from .records import Cell, Key, Night, Outcome, facts
from .significance import TimeChange, drifts, judge_times


@dataclass(frozen=True)
class Change:
    """A cell to report because of its outcomes in two nights.

    Args:
        old, new: the outcomes; None if that night has none.
        reason: the reason of the new cell and facts from the history; for a vanished cell, why it has no outcome.
    """

    key: Key
    old: Outcome | None
    new: Outcome | None
    reason: str = ""


@dataclass(frozen=True)
class Drift:
    """A largest utilisation outside the range expected from the history of its cell, rung and side.

    Args:
        old, new: the values of the two nights.
        least, most: the range in the nights of the history.
        nights: the number of nights in that history.
    """

    key: Key
    rung: str
    who: str
    old: float
    new: float
    least: float
    most: float
    nights: int

    @property
    def reason(self) -> str:
        """One line, without the key."""
        span = f"{self.least:.6g}" if self.least == self.most else f"{self.least:.6g} to {self.most:.6g}"
        side = f"{self.rung}, {printable(self.who, 60)}"
        return f"{side}: utilisation {self.old:.6g} → {self.new:.6g}, {span} in {counted(self.nights, 'nights')}"


@dataclass(frozen=True)
class Slower:
    """A cell's time, slower or faster than expected from the history."""

    key: Key
    time: TimeChange

    @property
    def reason(self) -> str:
        """One line, without the key."""
        t = self.time
        expected = f"{t.expected:.3g} s expected from {counted(t.nights, 'nights')}"
        return f"{t.seconds:.3g} s, {expected}, {t.sigmas:+.1f} σ (limit {t.limit:.1f})"


@dataclass(frozen=True)
class Comparison:
    """The differences between two nights.

    Args:
        old, new: the numbers of the nights.
        compared: number of cells that both nights have.
        verified: number of those that are verified in both.
        new_failures: cells that were verified or waived in the old night and are neither in the new one.
        fixed: cells that are verified in the new night but not in the old one.
        other_failures: failures with the same outcome but of another rung, place, count, culprit or diagnosis.
        still_failing: neither verified nor waived in either night, and not in `other_failures`.
        waived: waived in the new night.
        other_outcome: different outcomes, neither better nor worse.
        vanished: recorded in the old night, but not planned or not run in the new one.
        appeared: recorded in the new night only.
        not_run: planned in the new night and recorded in neither.
        drift: utilisations that changed.
        drift_not_judged: number of utilisations that vary, with a history too short to judge them.
        slower, faster: times that changed.
        pace: the new night's times relative to the usual ones; 1 is the usual pace.
        pace_sigmas: the deviation of `pace` from 1, in σ of the earlier nights' paces.
        times_judged: number of times that were judged.
        times_not_judged: nights in the history → number of cells with too few nights to be judged.
        versions: name → (old, new) → number of cells.
        project: the project's version in the old and the new night, if it changed.
        hardware: name → (old, new), for changed properties.
        other_machine: whether the nights ran on different hardware; if so, times and utilisations are not compared
            with those of the old night.
        new_exit_code: the exit code of the new night alone.
    """

    old: int
    new: int
    compared: int = 0
    verified: int = 0
    new_failures: tuple[Change, ...] = ()
    other_failures: tuple[Change, ...] = ()
    fixed: tuple[Change, ...] = ()
    waived: tuple[Change, ...] = ()
    still_failing: tuple[Change, ...] = ()
    other_outcome: tuple[Change, ...] = ()
    vanished: tuple[Change, ...] = ()
    appeared: tuple[Change, ...] = ()
    not_run: tuple[Key, ...] = ()
    drift: tuple[Drift, ...] = ()
    drift_not_judged: int = 0
    slower: tuple[Slower, ...] = ()
    faster: tuple[Slower, ...] = ()
    pace: float = 1.0
    pace_sigmas: float = 0.0
    times_judged: int = 0
    times_not_judged: Mapping[int, int] | None = None
    versions: Mapping[str, Mapping[tuple[str, str], int]] | None = None
    project: tuple[str, str] | None = None
    hardware: Mapping[str, tuple[str, str]] | None = None
    other_machine: bool = False
    new_exit_code: int = EXIT_UNVERIFIED

    @property
    def against(self) -> str:
        """The old night's name in a sentence."""
        return f"night {self.old}"

    def exit_code(self, strict: bool = False) -> int:
        """Return 1 for new failures, other failures and vanished cells, with `strict` also for drift and slower cells;
        5 if no cell could be compared; otherwise the new night's exit code, because a cell that still fails is not a
        pass."""
        worse = self.new_failures or self.other_failures or self.vanished
        if worse or (strict and (self.drift or self.slower)):
            return EXIT_MISMATCH
        return self.new_exit_code if self.compared else EXIT_UNVERIFIED


def compare(earlier: Sequence[Night], old: Night, new: Night) -> Comparison:
    """Compare a night with an earlier one.

    Args:
        earlier: the history for judging drift and times, in any order. Only nights before `new` and on the same
            machine count; `old` is included if it meets these conditions.
    """
    machine = _machine(new)
    history = {night.number: night for night in (*earlier, old) if night.number < new.number or night is old}
    history.pop(new.number, None)
    past = [night for _, night in sorted(history.items()) if _machine(night) == machine]
    changes = _changes([night for _, night in sorted(history.items())], old, new)
    drift, not_judged = _drift(past, old, new)
    times = judge_times([_times(night) for night in past], _times(new))
    both = [key for key in new.planned if key in new.cells and key in old.cells]
    return Comparison(
        old.number, new.number, len(both),
        sum(old.cells[key].verified and new.cells[key].verified for key in both),
        **changes,
        not_run=tuple(key for key in new.missing if key not in old.cells),
        drift=drift, drift_not_judged=not_judged,
        slower=tuple(Slower(key, times.slower[key]) for key in new.planned if key in times.slower),
        faster=tuple(Slower(key, times.faster[key]) for key in new.planned if key in times.faster),
        pace=times.pace, pace_sigmas=times.pace_sigmas, times_judged=times.judged, times_not_judged=times.not_judged,
        versions=_versions([(old.cells[key], new.cells[key]) for key in both]),
        project=(old.project, new.project) if old.project != new.project else None,
        hardware={
            name: (old.hardware.get(name, ""), new.hardware.get(name, ""))
            for name in (*new.hardware, *old.hardware)
            if old.hardware.get(name) != new.hardware.get(name)
        },
        other_machine=_machine(old) != machine, new_exit_code=new.exit_code,
    )  # fmt: skip


def _machine(night: Night) -> tuple[str, ...]:
    return tuple(night.hardware.get(name, "") for name in SAME_MACHINE)


def _changes(past: Sequence[Night], old: Night, new: Night) -> dict[str, tuple[Change, ...]]:
    """Return the lists of a comparison by name. `past`: the nights before the new one, oldest first."""
    names = "new_failures other_failures fixed waived still_failing other_outcome vanished appeared"
    out: dict[str, list[Change]] = {name: [] for name in names.split()}
    planned = set(new.planned)
    for key, cell in old.cells.items():
        now = new.cells.get(key)
        if now is None:
            why = "planned, but not run" if key in planned else "no longer planned"
            out["vanished"].append(Change(key, cell.outcome, None, why))
            continue
        if cell.verified and now.verified:
            continue
        kind, reason = _change(cell, now)
        about = [before.cells[key] for before in past if key in before.cells]
        said = _since(about) if kind == "waived" else _flaky(about) if kind in ("new_failures", "fixed") else ""
        out[kind].append(Change(key, cell.outcome, now.outcome, "; ".join(filter(None, (reason, said)))))
    for key, cell in new.cells.items():
        if key not in old.cells:
            out["appeared"].append(Change(key, None, cell.outcome, cell.reason))
    return {name: tuple(changes) for name, changes in out.items()}


def _change(old: Cell, new: Cell) -> tuple[str, str]:
    """For a cell that is not verified in both nights: the name of its list, and the reason to report."""
    if new.verified:
        return "fixed", ""
    if new.accepted:
        same = old.reason == new.reason or not old.accepted or old.verified
        return "waived", new.reason if same else f"{new.reason}; before: {old.reason}"
    if old.accepted:
        return "new_failures", new.reason
    if old.outcome is not new.outcome:
        return "other_outcome", new.reason
    if not _same_failure(old, new):
        return "other_failures", f"{new.reason}; before: {old.reason}"
    return "still_failing", new.reason


def _same_failure(old: Cell, new: Cell) -> bool:
    """Whether two cells fail in the same way, however that is worded.

    Without a record, as of a crash, there is only the sentence. If one of the two was recorded by a version that kept
    only sentences, the names and numbers in them are compared.
    """
    if old.failed is not None and new.failed is not None:
        return old.failed == new.failed
    if old.failed is None and new.failed is None:
        return old.reason == new.reason
    return facts(old.reason) == facts(new.reason)


def _since(past: Sequence[Cell]) -> str:
    """How long a cell has been waived."""
    nights = next((i for i, cell in enumerate(reversed(past)) if cell.outcome is not Outcome.WAIVED), len(past))
    return f"waived for {nights + 1} nights" if nights else "waived for the first time"


def _flaky(past: Sequence[Cell]) -> str:
    """How often a cell failed before, if it also changed between passing and failing then."""
    failed = sum(not cell.accepted for cell in past)
    turns = sum(a.accepted is not b.accepted for a, b in pairwise(past))
    return f"it failed in {failed} of {len(past)} nights before" if turns else ""


def _utilisations(cell: Cell) -> dict[tuple[str, str], float]:
    return {(m.rung, m.who): m.utilisation for m in cell.measures}


def _drift(past: Sequence[Night], old: Night, new: Night) -> tuple[tuple[Drift, ...], int]:
    """Return the drift of cells that are verified in both nights, and the number of measures that could not be judged.

    The utilisations of a failed cell mean little, and the failure is in another list.
    """
    out, not_judged = [], 0
    for key, cell in new.cells.items():
        before = old.cells.get(key)
        if before is None or not (before.verified and cell.verified):
            continue
        held = [_utilisations(night.cells[key]) for night in past if key in night.cells and night.cells[key].verified]
        olds = _utilisations(before)
        for place, value in _utilisations(cell).items():
            history = [values[place] for values in held if place in values]
            if place not in olds or not history:
                continue
            judged = drifts(history, value)
            not_judged += judged is None
            if judged:
                out.append(Drift(key, *place, olds[place], value, min(history), max(history), len(history)))
    return tuple(out), not_judged


def _times(night: Night) -> dict[Key, float]:
    """The times of verified cells: a failing run may take any time."""
    return {key: cell.seconds for key, cell in night.cells.items() if cell.verified and cell.seconds}


def _versions(pairs: Sequence[tuple[Cell, Cell]]) -> dict[str, dict[tuple[str, str], int]]:
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for old, new in pairs:
        if not old.versions or not new.versions:
            continue  # a run that ended early has no versions
        for name in dict.fromkeys([*old.versions, *new.versions]):
            change = (old.versions.get(name, ""), new.versions.get(name, ""))
            if change[0] != change[1]:
                counts.setdefault(name, Counter())[change] += 1
    return {name: dict(found) for name, found in counts.items()}
