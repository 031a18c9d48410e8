"""What every report of a night says first: the verdict, the counts, what changed. Nothing is judged here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...nightly.records import Cell, Key, Night, Outcome


class Changed(Protocol):
    """A cell that is not as it was, and how, in one line."""

    @property
    def key(self) -> Key: ...
    @property
    def words(self) -> str: ...


class Comparison(Protocol):
    """What a comparison of two nights found.

    `against` names the other night in words. A cell that failed in both is in none of the lists; one that is gone from
    the matrix, or was not run, is in `vanished`.
    """

    @property
    def against(self) -> str: ...
    @property
    def new_failures(self) -> Sequence[Changed]: ...
    @property
    def fixed(self) -> Sequence[Changed]: ...
    @property
    def vanished(self) -> Sequence[Changed]: ...
    @property
    def drift(self) -> Sequence[Changed]: ...
    @property
    def slower(self) -> Sequence[Changed]: ...


class Change(NamedTuple):
    """The plain `Changed`."""

    key: Key
    words: str


@dataclass(frozen=True)
class Changes:
    """The plain `Comparison`."""

    against: str
    new_failures: Sequence[Changed] = ()
    fixed: Sequence[Changed] = ()
    vanished: Sequence[Changed] = ()
    drift: Sequence[Changed] = ()
    slower: Sequence[Changed] = ()


class Kind(NamedTuple):
    """A list of a comparison: attribute, heading, and how it stands: "bad", "warn" or "good"."""

    name: str
    title: str
    level: str


#: The lists of a comparison, what matters most first.
KINDS = (
    Kind("new_failures", "new failures", "bad"), Kind("vanished", "vanished", "bad"), Kind("drift", "drift", "warn"),
    Kind("slower", "slower", "warn"), Kind("fixed", "fixed", "good"),
)  # fmt: skip

#: How a cell stands that was planned and not recorded.
NOT_RUN = "not run"


def changes(comparison: Comparison | None) -> Iterator[tuple[Kind, Sequence[Changed]]]:
    """The lists that hold something."""
    for kind in KINDS if comparison is not None else ():
        found: Sequence[Changed] = getattr(comparison, kind.name)
        if found:
            yield kind, found


class Standing(NamedTuple):
    """A cell of the matrix; `cell` is None where it was not run."""

    key: Key
    cell: Cell | None

    @property
    def verified(self) -> bool:
        return self.cell is not None and self.cell.outcome is Outcome.VERIFIED

    @property
    def outcome(self) -> str:
        return NOT_RUN if self.cell is None else self.cell.outcome.value

    @property
    def words(self) -> str:
        return "planned, and not recorded" if self.cell is None else self.cell.words

    @property
    def level(self) -> str:
        """ "good" is verified, "bad" is shown to be wrong, "warn" is everything that could not be judged."""
        if self.verified:
            return "good"
        return "bad" if self.cell is not None and self.cell.outcome is Outcome.MISMATCH else "warn"


def standings(night: Night) -> list[Standing]:
    """All cells: as planned, then what was recorded without being planned."""
    keys = dict.fromkeys([*night.planned, *night.cells])
    return [Standing(key, night.cells.get(key)) for key in keys]


@dataclass(frozen=True)
class Verdict:
    """The first lines of a report.

    Args:
        word: "verified", "regression", "not finished", "not everything verified" or "nothing was run".
        level: "good", "bad" or "warn".
        sentence: the counts.
        outcomes: outcome → cells, in the order of `Outcome`, those that are not run last.
    """

    word: str
    level: str
    sentence: str
    outcomes: dict[str, int]


def verdict(night: Night, comparison: Comparison | None = None) -> Verdict:
    """Of one night. Cells that vanished, or were not run, are never a pass; nor is a night without cells."""
    cells = standings(night)
    found = Counter(s.outcome for s in cells)
    outcomes = {name: found[name] for name in [*Outcome, NOT_RUN] if found[name]}
    good = found[Outcome.VERIFIED]
    said = [f"{good:,} of {count(len(cells), 'cell')} verified"]
    said += [f"{n:,} {name}" for name, n in outcomes.items() if name != Outcome.VERIFIED]
    lists = dict(changes(comparison))
    said += [f"{len(found):,} {kind.title}" for kind, found in lists.items()]
    regressed = any(kind.level == "bad" for kind in lists)
    if not night.cells:
        word, level = "nothing was run", "bad"
    elif regressed:
        word, level = "regression", "bad"
    elif found[NOT_RUN] or night.finished is None:
        word, level = "not finished", "warn"
    elif good < len(cells):
        word, level = "not everything verified", "bad" if found[Outcome.MISMATCH] else "warn"
    else:
        word, level = "verified", "good"
    return Verdict(word, level, "; ".join(said), outcomes)


def count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def worst(cell: Cell, rung: str = "layers") -> float | None:
    """Worst utilisation of the kernel in a rung; NaN counts as the worst of all."""
    values = [m.utilisation for m in cell.measures if m.rung == rung and m.of_kernel]
    return next((v for v in values if v != v), max(values, default=None))


def title(night: Night) -> str:
    return f"night {night.number} of {night.config}"


def last(nights: Sequence[Night]) -> Night:
    """The night that a report is of. Raises ValueError where there is none."""
    if not nights:
        raise ValueError("no night to report")
    return nights[-1]
