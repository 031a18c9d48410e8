"""The search: which candidate to try next, independent of how it is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gguf_verify.bisection_results import Outcome


@dataclass(frozen=True)
class Boundary:
    """The boundary between good and bad.

    Args:
        good: the last candidate known to be good.
        bad: the first candidate known to be bad.
        skipped: those in between, none of which could be tested.
    """

    good: int
    bad: int
    skipped: tuple[int, ...]


def search(n: int, test: Callable[[int], Outcome], known: Mapping[int, Outcome] | None = None) -> Boundary:
    """Find the boundary among candidates 0 to n - 1, of which the first is good and the last is bad.

    The untested candidates in between are halved each time: the middle one is tried, and a skipped one is removed. So u
    candidates between the ends take at most ceil(log2(u + 1)) runs, plus one for each skipped one, wherever these are.
    No candidate is tried twice.

    Args:
        test: tries a candidate.
        known: outcomes of candidates in between that need not be tried. If a good one follows a bad one, the graph
            changed more than once, and the first bad one counts.
    """
    known = known or {}
    bad = min((i for i, outcome in known.items() if outcome == "bad"), default=n - 1)
    good = max((i for i, outcome in known.items() if outcome == "good" and i < bad), default=0)
    skipped = {i for i, outcome in known.items() if outcome == "skipped"}
    while left := [i for i in range(good + 1, bad) if i not in skipped]:
        i = left[len(left) // 2]
        outcome = test(i)
        if outcome == "good":
            good = i
        elif outcome == "bad":
            bad = i
        else:
            skipped.add(i)
    return Boundary(good, bad, tuple(range(good + 1, bad)))


def most_runs(n: int) -> int:
    """Return the number of runs of a search among n candidates if none is skipped, without those of its ends."""
    return (n - 2).bit_length()
