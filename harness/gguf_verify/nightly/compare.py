"""Two nights: what is worse, what is better, what is gone. A cell that is gone is never a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..gguf import printable
from ..support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED
from .machine import SAME_MACHINE
from .records import Cell, Key, Night, Outcome
from .significance import TimeChange, drifts, judge_times


@dataclass(frozen=True)
class Change:
    """A cell of which the two nights say something to tell.

    Args:
        old, new: its outcomes; None where a night has none.
        words: the new cell's; of a vanished one, why it has none.
    """

    key: Key
    old: Outcome | None
    new: Outcome | None
    words: str = ""


@dataclass(frozen=True)
class Drift:
    """A worst utilisation beyond what the history shows for its cell, rung and side.

    Args:
        old, new: of the two nights.
        least, most: of all nights that it was judged against.
        nights: how many those are.
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
    def words(self) -> str:
        """One line, without the key."""
        span = f"{self.least:.6g}" if self.least == self.most else f"{self.least:.6g} to {self.most:.6g}"
        return (
            f"{self.rung}, {printable(self.who, 60)}: utilisation {self.old:.6g} → {self.new:.6g}, {span} in "
            f"{self.nights} nights"
        )


@dataclass(frozen=True)
class Slower:
    """A time beyond the history's noise: see `gguf_verify.nightly.significance.TimeChange`."""

    key: Key
    time: TimeChange

    @property
    def words(self) -> str:
        """One line, without the key."""
        t = self.time
        return (
            f"{t.seconds:.3g} s, {t.expected:.3g} s expected of {t.nights} nights, {t.sigmas:+.1f} σ "
            f"(limit {t.limit:.1f})"
        )


@dataclass(frozen=True)
class Comparison:
    """What differs between two nights.

    Args:
        old, new: their numbers.
        compared: cells that both have.
        verified: cells of those that both verify.
        new_failures: verified before, not now.
        fixed: the other way round.
        still_failing: neither time verified, by the same outcome.
        other_outcome: neither time verified, by another outcome.
        vanished: recorded in old, and in new not planned or not run.
        appeared: recorded in new alone.
        not_run: planned in new, not recorded, and not in old either.
        drift: utilisations.
        drift_not_judged: measures whose history varies and is too short to judge them.
        slower, faster: times.
        pace: the new night's times over what is usual; 1 is as ever. `pace_sigmas` is how far off that is, in σ of the
            earlier nights' paces.
        times_judged: how many times were.
        times_not_judged: nights in the history → how many cells were not judged for want of more.
        versions: name → (old, new) → cells.
        project, hardware: name → (old, new) of what changed.
        other_machine: the nights ran on different hardware: neither times nor utilisations of the old one count.
    """

    old: int
    new: int
    compared: int = 0
    verified: int = 0
    new_failures: tuple[Change, ...] = ()
    fixed: tuple[Change, ...] = ()
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

    @property
    def against(self) -> str:
        """The older night in words."""
        return f"night {self.old}"

    def exit_code(self, strict: bool = False) -> int:
        """1 for new failures and vanished cells, `strict` also for drift and slower cells; 5 where no cell could be
        compared; else 0."""
        if self.new_failures or self.vanished or (strict and (self.drift or self.slower)):
            return EXIT_MISMATCH
        return EXIT_VERIFIED if self.compared else EXIT_UNVERIFIED


def compare(earlier: Sequence[Night], old: Night, new: Night) -> Comparison:
    """Compare a night with an older one.

    Args:
        earlier: the history that drift and times are judged by, in any order; of it and `old`, the nights before
            `new` on the same machine count.
    """
    machine = _machine(new)
    history = {night.number: night for night in (*earlier, old) if night.number < new.number or night is old}
    history.pop(new.number, None)
    past = [night for _, night in sorted(history.items()) if _machine(night) == machine]
    changes = _changes(old, new)
    drift, vague = _drift(past, old, new)
    times = judge_times([_times(night) for night in past], _times(new))
    both = [key for key in new.planned if key in new.cells and key in old.cells]
    passed = Outcome.VERIFIED
    return Comparison(
        old.number, new.number, len(both),
        sum(old.cells[key].outcome is passed and new.cells[key].outcome is passed for key in both),
        **changes,
        not_run=tuple(key for key in new.missing if key not in old.cells),
        drift=drift, drift_not_judged=vague,
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
        other_machine=_machine(old) != machine,
    )  # fmt: skip


def _machine(night: Night) -> tuple[str, ...]:
    return tuple(night.hardware.get(name, "") for name in SAME_MACHINE)


def _changes(old: Night, new: Night) -> dict[str, tuple[Change, ...]]:
    out: dict[str, list[Change]] = {
        name: [] for name in ("new_failures", "fixed", "still_failing", "other_outcome", "vanished", "appeared")
    }
    planned = set(new.planned)
    for key, cell in old.cells.items():
        now = new.cells.get(key)
        if now is None:
            why = "planned, but not run" if key in planned else "not planned any more"
            out["vanished"].append(Change(key, cell.outcome, None, why))
            continue
        before, after = cell.outcome is Outcome.VERIFIED, now.outcome is Outcome.VERIFIED
        if before and after:
            continue
        kind = "new_failures" if before else "fixed" if after else "still_failing"
        if not before and not after and cell.outcome is not now.outcome:
            kind = "other_outcome"
        out[kind].append(Change(key, cell.outcome, now.outcome, now.words))
    for key, cell in new.cells.items():
        if key not in old.cells:
            out["appeared"].append(Change(key, None, cell.outcome, cell.words))
    return {name: tuple(changes) for name, changes in out.items()}


def _utilisations(cell: Cell) -> dict[tuple[str, str], float]:
    return {(m.rung, m.who): m.utilisation for m in cell.measures}


def _drift(past: Sequence[Night], old: Night, new: Night) -> tuple[tuple[Drift, ...], int]:
    """Of cells that both nights verify: what failed is told elsewhere, and its numbers mean little."""
    out, vague = [], 0
    for key, cell in new.cells.items():
        before = old.cells.get(key)
        if before is None or before.outcome is not Outcome.VERIFIED or cell.outcome is not Outcome.VERIFIED:
            continue
        held = [_utilisations(night.cells[key]) for night in past if _passed(night, key)]
        olds = _utilisations(before)
        for place, value in _utilisations(cell).items():
            history = [values[place] for values in held if place in values]
            if place not in olds or not history:
                continue
            judged = drifts(history, value)
            vague += judged is None
            if judged:
                out.append(Drift(key, *place, olds[place], value, min(history), max(history), len(history)))
    return tuple(out), vague


def _passed(night: Night, key: Key) -> bool:
    return key in night.cells and night.cells[key].outcome is Outcome.VERIFIED


def _times(night: Night) -> dict[Key, float]:
    """Of what was verified: a failure takes a time of its own."""
    return {key: cell.seconds for key, cell in night.cells.items() if cell.outcome is Outcome.VERIFIED and cell.seconds}


def _versions(pairs: Sequence[tuple[Cell, Cell]]) -> dict[str, dict[tuple[str, str], int]]:
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for old, new in pairs:
        if not old.versions or not new.versions:
            continue  # one was not run far enough to say
        for name in dict.fromkeys([*old.versions, *new.versions]):
            change = (old.versions.get(name, ""), new.versions.get(name, ""))
            if change[0] != change[1]:
                counts.setdefault(name, Counter())[change] += 1
    return {name: dict(found) for name, found in counts.items()}
