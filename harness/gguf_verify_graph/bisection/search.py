"""The search itself: which candidate is tried next, whatever trying one means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gguf_verify.bisection_results import Outcome


@dataclass(frozen=True)
class Boundary:
    """Where good turns bad.

    Args:
        good: the last candidate that is known to be good.
        bad: the first that is known to be bad.
        skipped: those in between, none of which could be tested.
    """

    good: int
    bad: int
    skipped: tuple[int, ...]


def search(n: int, test: Callable[[int], Outcome], known: Mapping[int, Outcome] | None = None) -> Boundary:
    """The boundary among candidates 0 to n - 1, of which the first is good and the last is bad.

    Those that may still be tested are halved each time: the one in their middle is tried, and one that is skipped is
    taken out of them. So u candidates between the ends take at most ceil(log2(u + 1)) runs, and one more for each that
    is skipped, wherever these lie. No candidate is tried twice.

    Args:
        test: tries a candidate.
        known: candidates in between that need not be tried. Where a good one follows a bad one, the graph turned more
            than once, and the first bad one counts.
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
    """Runs that a search among n candidates takes if none is skipped, without those of its ends."""
    return (n - 2).bit_length()
