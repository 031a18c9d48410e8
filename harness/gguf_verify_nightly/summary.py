"""Summary at the top of every report of a night: the verdict, the counts and the changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .compare import Change, Comparison, Drift, Slower
from .records import Cell, Key, Night, Outcome

#: An entry of a comparison's list: each has a `key` and a `reason`, which is one line.
Changed = Change | Drift | Slower

#: The outcome of a cell that is planned but not recorded.
NOT_RUN = "not run"


class Kind(NamedTuple):
    """A list of a comparison: its attribute, its heading, and the level of its entries: "bad", "warn" or "good"."""

    name: str
    title: str
    level: str


#: The lists of a comparison that a report shows, the most important first.
KINDS = (
    Kind("new_failures", "new failures", "bad"), Kind("other_failures", "fail in another way", "bad"),
    Kind("vanished", "vanished", "bad"), Kind("still_failing", "still failing", "warn"),
    Kind("waived", "waived", "warn"), Kind("drift", "drift", "warn"), Kind("slower", "slower", "warn"),
    Kind("fixed", "fixed", "good"),
)  # fmt: skip


#: The verdicts on a night, as regular expressions.
WORDS = (
    "verified", r"verified with [0-9,]+ waived", "regression", "mismatch", "not finished", "not everything verified",
    "nothing was run",
)  # fmt: skip


class Standing(NamedTuple):
    """A cell of the matrix; `cell` is None if it was not run."""

    key: Key
    cell: Cell | None

    @property
    def verified(self) -> bool:
        """Whether the cell was run and is verified."""
        return self.cell is not None and self.cell.verified

    @property
    def outcome(self) -> str:
        """The cell's outcome, or `NOT_RUN`."""
        return NOT_RUN if self.cell is None else self.cell.outcome.value

    @property
    def worst(self) -> float | None:
        """See `worst`."""
        return None if self.cell is None else worst(self.cell)

    @property
    def reason(self) -> str:
        """One line that says why the cell is not verified."""
        return "the cell was planned but not run" if self.cell is None else self.cell.reason

    @property
    def level(self) -> str:
        """ "good" for verified, "bad" for a mismatch, "warn" for everything else."""
        if self.verified:
            return "good"
        return "bad" if self.cell is not None and self.cell.outcome is Outcome.MISMATCH else "warn"


@dataclass(frozen=True)
class Verdict:
    """The first lines of a report.

    Args:
        word: "verified", "verified with N waived", "regression", "mismatch", "not finished", "not everything verified"
            or "nothing was run".
        level: "good", "bad" or "warn".
        sentence: the counts.
        outcomes: outcome → number of cells, in the order of `Outcome`, followed by `NOT_RUN`.
    """

    word: str
    level: str
    sentence: str
    outcomes: Mapping[str, int]


@dataclass(frozen=True)
class NightReport:
    """The content of a report of a night. Raises ValueError without nights.

    Args:
        nights: oldest first; the last is reported, the others are its history.
        comparison: of the last night with an earlier one, if there is one.
    """

    nights: tuple[Night, ...]
    comparison: Comparison | None = None

    def __post_init__(self) -> None:
        if not self.nights:
            raise ValueError("there is no night to report")

    @property
    def night(self) -> Night:
        """The reported night."""
        return self.nights[-1]

    @property
    def title(self) -> str:
        """The night's number and configuration."""
        return f"night {self.night.number} of {self.night.config}"

    @property
    def standings(self) -> list[Standing]:
        """All cells: the planned ones in order, then those recorded without being planned."""
        return standings(self.night)

    @property
    def lists(self) -> list[tuple[Kind, Sequence[Changed]]]:
        """The lists of the comparison; empty without one."""
        return lists(self.comparison)

    @property
    def changes(self) -> list[tuple[Kind, Sequence[Changed]]]:
        """The non-empty lists of the comparison."""
        return [(kind, found) for kind, found in self.lists if found]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the night, given the comparison."""
        return verdict(self.night, self.comparison)

    @property
    def history(self) -> list[tuple[Night, Verdict]]:
        """All nights with their verdicts, the reported one last."""
        return [*((night, verdict(night)) for night in self.nights[:-1]), (self.night, self.verdict)]


def standings(night: Night) -> list[Standing]:
    """All cells of a night: the planned ones in order, then those recorded without being planned."""
    return [Standing(key, night.cells.get(key)) for key in dict.fromkeys([*night.planned, *night.cells])]


def lists(comparison: Comparison | None) -> list[tuple[Kind, Sequence[Changed]]]:
    """The lists of a comparison that a report shows, in the order of `KINDS`."""
    return [] if comparison is None else [(kind, getattr(comparison, kind.name)) for kind in KINDS]


def verdict(night: Night, comparison: Comparison | None = None) -> Verdict:
    """Return the verdict on a night. Vanished cells, cells that were not run, and a night without cells never pass."""
    cells = standings(night)
    found = Counter(s.outcome for s in cells)
    outcomes = {name: found[name] for name in [*Outcome, NOT_RUN] if found[name]}
    good, changed = found[Outcome.VERIFIED], [(kind, of) for kind, of in lists(comparison) if of]
    counts = [f"{good:,} of {len(cells):,} cell{'' if len(cells) == 1 else 's'} verified"]
    counts += [f"{n:,} {name}" for name, n in outcomes.items() if name != Outcome.VERIFIED]
    counts += [f"{len(listed):,} {kind.title}" for kind, listed in changed]
    if not night.cells:
        word, level = "nothing was run", "bad"
    elif any(kind.level == "bad" for kind, _ in changed):
        word, level = "regression", "bad"
    elif found[Outcome.MISMATCH]:
        word, level = "mismatch", "bad"
    elif found[NOT_RUN] or night.finished is None:
        word, level = "not finished", "warn"
    elif good + found[Outcome.WAIVED] == len(cells) and good < len(cells):
        word, level = f"verified with {found[Outcome.WAIVED]:,} waived", "warn"
    elif good < len(cells):
        word, level = "not everything verified", "warn"
    else:
        word, level = "verified", "good"
    return Verdict(word, level, "; ".join(counts), outcomes)


def worst(cell: Cell, rung: str = "layers") -> float | None:
    """The kernel's largest utilisation in a rung, where NaN exceeds any number; None without one."""
    values = [m.utilisation for m in cell.measures if m.rung == rung and m.of_kernel]
    return next((v for v in values if v != v), max(values, default=None))
