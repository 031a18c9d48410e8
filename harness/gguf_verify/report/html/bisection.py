"""The page of a bisection: the records of `bisection_results`, arranged for the templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...bisection_results import Bisection, FirstFailure, Outcome, Seen, Step, Turned
from ...support.command_line import shown
from .graph import Wrong, wrong

Level = Literal["good", "warn", "bad"]
_LEVELS: dict[Outcome, Level] = {"good": "good", "bad": "bad", "skipped": "warn"}
_WORDS: dict[Outcome, str] = {"good": "good", "bad": "bad", "skipped": "untestable"}


class Row(NamedTuple):
    """A build.

    Args:
        place: among the builds that are known, the oldest first.
        run: which run it was; "" where it was taken over.
        level, outcome: what it came to.
        mark: that it is the first bad one or the last good one; "" for others.
        seconds: "" where it was not run now.
    """

    name: str
    place: int
    run: str
    level: Level
    outcome: str
    mark: str
    build: str
    seconds: str
    why: str


@dataclass(frozen=True)
class Page:
    """A page, ready to be shown."""

    found: Bisection
    level: Level
    runs: Sequence[Row]
    taken_over: Sequence[Row]
    wrong: Wrong | None
    operation: str
    before: str
    #: The operation in the last good and in the first bad build: a label, the build, the operation.
    changes: Sequence[tuple[str, str, Seen]]
    failure: FirstFailure | None
    outcomes: Sequence[str]
    command: str
    environment: Sequence[tuple[str, Sequence[tuple[str, str]]]]


def of(found: Bisection) -> Page:
    """A bisection."""
    rows = [(step, _row(i, step, found)) for i, step in enumerate(found.steps, 1)]
    made_now = sorted((step.run, row) for step, row in rows if step.run is not None)
    turned = found.turned
    return Page(
        found=found, level=_level(found), runs=[row for _, row in made_now],
        taken_over=[row for step, row in rows if step.run is None],
        wrong=None if turned is None else wrong(turned.node), operation="" if turned is None else turned.node.operation,
        before="" if turned is None else turned.words, changes=[] if turned is None else _changes(found, turned),
        failure=found.failure, outcomes=sorted({row.outcome for _, row in rows}), command=shown(found.command),
        environment=[
            ("file", [("path", found.path), *(("sha256", digest) for digest in found.sha256)]),
            ("runs", [("arguments of each", " ".join(found.arguments)), ("results are kept in", found.state)]),
        ],
    )  # fmt: skip


def _level(found: Bisection) -> Level:
    if found.verdict == "found":
        return "good"
    return "bad" if found.verdict == "good end is bad" else "warn"


def _row(place: int, step: Step, found: Bisection) -> Row:
    tried = step.tried
    marks = {found.first_bad: "the first bad one", found.last_good: "the last good one"}
    if found.untested:
        marks = {found.first_bad: "the first that is known to be bad", found.last_good: "the last good one"}
    return Row(
        name=step.name, place=place, run="" if step.run is None else f"{step.run}", level=_LEVELS[tried.outcome],
        outcome=_WORDS[tried.outcome], mark=marks.get(step.name, ""), build=tried.build,
        seconds="" if step.run is None else f"{tried.seconds:.1f}", why=tried.why,
    )  # fmt: skip


def _changes(found: Bisection, turned: Turned) -> list[tuple[str, str, Seen]]:
    both = (("last good", found.last_good, turned.was), ("first bad", found.first_bad, turned.became))
    return [(label, build, each) for label, build, each in both if each is not None]
