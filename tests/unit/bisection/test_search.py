"""The search for the boundary: every sequence of a few candidates, with every choice of those that cannot be tested."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, combinations

import pytest

from gguf_verify.bisection_results import Outcome
from gguf_verify.support.errors import UsageError
from gguf_verify_graph.bisection.candidates import between, is_version, listed
from gguf_verify_graph.bisection.search import Boundary, most_runs, search

MOST = 9


def sequences() -> Iterator[tuple[int, int, frozenset[int]]]:
    """How many candidates, the first bad one, and those that cannot be tested."""
    for n in range(2, MOST + 1):
        middle = range(1, n - 1)
        for skipped in chain.from_iterable(combinations(middle, k) for k in range(n - 1)):
            for first in range(1, n):
                yield n, first, frozenset(skipped)


class Trials:
    """Tries candidates, and remembers which."""

    def __init__(self, n: int, first: int, skipped: frozenset[int]) -> None:
        self._n, self._first, self._skipped = n, first, skipped
        self.tried: dict[int, Outcome] = {}

    def outcome(self, i: int) -> Outcome:
        return "skipped" if i in self._skipped else "bad" if i >= self._first else "good"

    def __call__(self, i: int) -> Outcome:
        assert 0 < i < self._n - 1
        assert i not in self.tried
        self.tried[i] = self.outcome(i)
        return self.tried[i]

    @property
    def boundary(self) -> Boundary:
        """The expected result."""
        good = max(i for i in range(self._first) if i not in self._skipped)
        bad = min(i for i in range(self._first, self._n) if i not in self._skipped)
        return Boundary(good, bad, tuple(range(good + 1, bad)))


def test_the_boundary_is_found_with_few_runs() -> None:
    count = 0
    for n, first, skipped in sequences():
        trials = Trials(n, first, skipped)
        assert search(n, trials) == trials.boundary
        skips = sum(outcome == "skipped" for outcome in trials.tried.values())
        assert len(trials.tried) <= math.ceil(math.log2(n - 1)) + skips
        assert most_runs(n) == math.ceil(math.log2(n - 1))
        count += 1
    assert count > 1500


def test_an_interrupted_search_resumes() -> None:
    for n, first, skipped in sequences():
        whole = Trials(n, first, skipped)
        search(n, whole)
        for k in range(len(whole.tried) + 1):
            known = dict(list(whole.tried.items())[:k])
            rest = Trials(n, first, skipped)
            assert search(n, rest, known) == whole.boundary
            assert known | rest.tried == whole.tried


def test_known_candidates_are_not_tried() -> None:
    for n, first, skipped in sequences():
        for step in (2, 3):
            trials = Trials(n, first, skipped)
            known = {i: trials.outcome(i) for i in range(1, n - 1, step)}
            assert search(n, trials, known) == trials.boundary
            assert not known.keys() & trials.tried.keys()


def test_the_first_of_several_bad_ranges_counts() -> None:
    known: dict[int, Outcome] = {2: "bad", 3: "good"}
    assert search(6, lambda i: "good", known) == Boundary(1, 2, ())


def test_versions_of_the_index() -> None:
    text = "WARNING: experimental\nllama (0.3.3)\nAvailable versions: 0.3.3, 0.3.2rc1, x;y, 0.3.1\n  LATEST: 0"
    assert listed(text) == ["0.3.1", "0.3.2rc1", "0.3.3"]
    assert listed("ERROR: no index") == listed("") == []
    known = ["0.3.1", "0.3.2", "0.3.3", "0.3.4"]
    assert between("0.3.1", "0.3.4", known) == ("0.3.2", "0.3.3")
    assert between("0.3.1", "0.3.2", known) == ()
    for good, bad, said in (("0.3.4", "0.3.1", "not older"), ("0.3.1", "0.3.1", "not older"), ("0.3.1", "0.3.9", "no")):
        with pytest.raises(UsageError, match=said):
            between(good, bad, known)
    assert not any(map(is_version, ("builds/1.0", "-1.0", "1", "../0.3.1", "0.3.1\n", "")))
