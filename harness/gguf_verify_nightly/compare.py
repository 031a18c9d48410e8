"""What is worse, better or gone in a night, compared with an earlier one. A cell that is gone is never a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gguf_verify.support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED
from gguf_verify.support.text import printable

from .machine import SAME_MACHINE
from .records import Cell, Key, Night, Outcome
from .significance import TimeChange, drifts, judge_times


@dataclass(frozen=True)
class Change:
    """A cell whose outcomes in two nights are worth reporting.

    Args:
        old, new: the outcomes; None if that night has none.
        reason: the new cell's, with what the history adds; of a cell that vanished, why it has no outcome.
    """

    key: Key
    old: Outcome | None
    new: Outcome | None
    reason: str = ""


@dataclass(frozen=True)
class Drift:
    """A worst utilisation that the history of its cell, rung and side does not explain.

    Args:
        old, new: in the two nights.
        least, most: in all nights that it was judged by.
        nights: how many nights those are.
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
        return f"{side}: utilisation {self.old:.6g} → {self.new:.6g}, {span} in {self.nights} nights"


@dataclass(frozen=True)
class Slower:
    """A cell's time that the history does not explain, slower or faster."""

    key: Key
    time: TimeChange

    @property
    def reason(self) -> str:
        """One line, without the key."""
        t = self.time
        expected = f"{t.expected:.3g} s expected from {t.nights} nights"
        return f"{t.seconds:.3g} s, {expected}, {t.sigmas:+.1f} σ (limit {t.limit:.1f})"


@dataclass(frozen=True)
class Comparison:
    """What differs between two nights.

    Args:
        old, new: their numbers.
        compared: how many cells both nights have.
        verified: how many of those are verified in both.
        new_failures: verified or waived in the old night and neither in the new one.
        fixed: verified in the new night and not in the old one.
        other_failures: with the same outcome in both nights and another reason: rung, place, count or diagnosis.
        still_failing: neither verified nor waived in either, with the same outcome and reason.
        waived: waived in the new night.
        other_outcome: with different outcomes, neither better nor worse.
        vanished: recorded in the old night; in the new one not planned or not run.
        appeared: recorded in the new night only.
        not_run: planned in the new night and recorded in neither.
        drift: utilisations that changed.
        drift_not_judged: how many utilisations vary in a history that is too short to judge them.
        slower, faster: times that changed.
        pace: the new night's times relative to the usual ones; 1 is the usual pace. `pace_sigmas` is how far off that
            is, in σ of the earlier nights' paces.
        times_judged: how many times were judged.
        times_not_judged: nights in the history → how many cells have too few nights to be judged.
        versions: name → (old, new) → how many cells.
        project: the project's version in the old and the new night, if it changed.
        hardware: name → (old, new), for what changed.
        other_machine: the nights ran on different hardware, so that times and utilisations are not compared with the
            old night's.
        new_exit_code: that of the new night by itself.
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
        """1 for new failures, other failures and vanished cells, with `strict` also for drift and slower cells; 5 if no
        cell could be compared; else the new night's: a cell that still fails is no pass."""
        worse = self.new_failures or self.other_failures or self.vanished
        if worse or (strict and (self.drift or self.slower)):
            return EXIT_MISMATCH
        return self.new_exit_code if self.compared else EXIT_UNVERIFIED


def compare(earlier: Sequence[Night], old: Night, new: Night) -> Comparison:
    """Compare a night with an earlier one.

    Args:
        earlier: the history by which drift and times are judged, in any order. Only nights before `new` and on the
            same machine count; `old` is one of them if it meets these conditions.
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
    """The lists of a comparison, by name. `past` are the nights before the new one, oldest first."""
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
    """The list that a cell belongs to which is not verified in both nights, and the reason that is reported."""
    if new.verified:
        return "fixed", ""
    if new.accepted:
        same = old.reason == new.reason or not old.accepted or old.verified
        return "waived", new.reason if same else f"{new.reason}; before: {old.reason}"
    if old.accepted:
        return "new_failures", new.reason
    if old.outcome is not new.outcome:
        return "other_outcome", new.reason
    if old.reason != new.reason:
        return "other_failures", f"{new.reason}; before: {old.reason}"
    return "still_failing", new.reason


def _since(past: Sequence[Cell]) -> str:
    """How long a cell has been waived."""
    nights = next((i for i, cell in enumerate(reversed(past)) if cell.outcome is not Outcome.WAIVED), len(past))
    return f"waived for {nights + 1} nights" if nights else "waived for the first time"


def _flaky(past: Sequence[Cell]) -> str:
    """Of a cell that was both accepted and not before it changed now: how often it failed."""
    failed = sum(not cell.accepted for cell in past)
    turns = sum(a.accepted is not b.accepted for a, b in pairwise(past))
    return f"it failed in {failed} of {len(past)} nights before" if turns else ""


def _utilisations(cell: Cell) -> dict[tuple[str, str], float]:
    return {(m.rung, m.who): m.utilisation for m in cell.measures}


def _drift(past: Sequence[Night], old: Night, new: Night) -> tuple[tuple[Drift, ...], int]:
    """Drift of cells that both nights verify, and how many measures could not be judged. The utilisations of a failed
    cell mean little, and the failure is in another list."""
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
            continue  # one of the runs ended before it reported its versions
        for name in dict.fromkeys([*old.versions, *new.versions]):
            change = (old.versions.get(name, ""), new.versions.get(name, ""))
            if change[0] != change[1]:
                counts.setdefault(name, Counter())[change] += 1
    return {name: dict(found) for name, found in counts.items()}
