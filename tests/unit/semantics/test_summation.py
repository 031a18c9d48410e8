"""Trees of summation are found from outputs alone, and recognised as rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gguf_verify.semantics.summation import (
    NoOrder,
    Rule,
    Tree,
    added_at_once,
    as_text,
    find,
    leaves_of,
    meeting,
    recognised,
    rules,
    sum_in,
)

Counted = Callable[[Sequence[tuple[int, int]]], np.ndarray]


def counted_by(added: Callable[[np.ndarray], float], n: int) -> Counted:
    """The outputs of a sum, for masks at each pair."""

    def counted(pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        outputs = []
        for i, j in pairs:
            values = np.ones(n)
            values[i], values[j] = 2.0**39, -(2.0**39)
            outputs.append(added(values))
        return np.array(outputs)

    return counted


def in_order(tree: Tree) -> Callable[[np.ndarray], float]:
    return lambda values: float(sum_in(tree, lambda i: np.array([[values[i]]]), "")[0, 0])


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("n", [10, 36])
def test_the_tree_of_every_rule_is_found(width: int, n: int) -> None:
    for rule in list(rules([width]))[:: 3 * width]:
        tree = rule.tree(n)
        assert sorted(leaves_of(tree)) == list(range(n))
        assert find(n, counted_by(in_order(tree), n)) == tree, rule


def test_random_trees_are_found() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 17, 40):
        items: list[Tree] = list(range(n))
        while len(items) > 1:
            a, b = sorted(rng.choice(len(items), 2, replace=False))
            one, other = items.pop(b), items.pop(a)
            items.append((one, other) if min(leaves_of(one)) < min(leaves_of(other)) else (other, one))
        assert find(n, counted_by(in_order(items[0]), n)) == items[0]


@pytest.mark.parametrize("rule", [Rule(), Rule(descending=True), Rule(8, joining="halves"), Rule(4, "chunks")])
def test_a_rule_is_recognised_by_some_of_its_trees(rule: Rule) -> None:
    trees = {n: rule.tree(n) for n in (5, 12, 33)}
    found = next(recognised(trees, rules()), None)
    assert found is not None
    assert found.tree(448) == rule.tree(448)
    assert not [*recognised({**trees, 6: ((0, 5), (1, (2, (3, 4))))}, rules())]


def test_pairs_meet_where_the_tree_says() -> None:
    tree = Rule(4, joining="neighbours").tree(13)
    rng = np.random.default_rng(2)
    pairs = [(int(i), int(j)) for i, j in (rng.choice(13, 2, replace=False) for _ in range(30))]
    assert meeting(tree, pairs) == (13 - counted_by(in_order(tree), 13)(pairs)).tolist()


@pytest.mark.parametrize("exact", [False, True])
def test_the_terms_of_an_addition_of_several_are_found(exact: bool) -> None:
    """Tensor cores align four terms and the sum to the largest, and truncate them; or an emulator adds them exactly."""

    def added(values: np.ndarray) -> float:
        total = 0.0
        for at in range(0, len(values), 4):
            terms = np.append(values[at : at + 4], total)
            if exact:
                total = float(np.float32(terms.sum()))
                continue
            unit = np.abs(terms).max() * 2.0**-24
            total = float((np.trunc(terms / unit) * unit).sum())
        return total

    with pytest.raises(NoOrder):
        find(16, counted_by(added, 16))
    groups = [list(range(at, at + 4)) for at in range(0, 16, 4)]
    assert added_at_once(16, counted_by(added, 16)) == groups
    firsts = [group[0] for group in groups]

    def of_firsts(values: np.ndarray) -> float:
        every = np.zeros(16)
        every[firsts] = values
        return added(every)

    assert find(4, counted_by(of_firsts, 4)) == Rule().tree(4)
    assert added_at_once(9, counted_by(in_order(Rule(2).tree(9)), 9)) == [[i] for i in range(9)]


@pytest.mark.parametrize(
    ("added", "why"),
    [
        (lambda values: float(values.sum()), "those of no tree: 2"),  # float64: nothing is swallowed
        (lambda values: float("nan"), "does not add in float32"),
        (lambda values: 6.0 if values[3] > 1 or values[3] < 0 else 3.0, "those of no tree"),
    ],
)
def test_outputs_of_no_tree_are_refused(added: Callable[[np.ndarray], float], why: str) -> None:
    with pytest.raises(NoOrder, match=why):
        find(9, counted_by(added, 9))


def test_fused_multiply_adds_round_once() -> None:
    """1 + (2^-24 + 2^-50) is above a tie; rounded alone, the product is half an ulp, and the tie goes to even."""
    values = [1.0, 2.0**-24 + 2.0**-50]
    of = lambda i: np.array([[values[i]]])  # noqa: E731
    assert sum_in((0, 1), of, "second")[0, 0] == np.float32(1 + 2.0**-23)
    assert sum_in((0, 1), of, "")[0, 0] == 1.0
    assert sum_in((0, 1), of, "first")[0, 0] == 1.0


def test_trees_are_drawn_in_a_line() -> None:
    assert as_text(Rule().tree(9)) == "0+1+…+8"
    assert as_text(Rule(4, joining="halves").tree(8)) == "0+4+(2+6)+(1+5+(3+7))"
    assert as_text(Rule(2, "chunks").tree(12)) == "0+1+2+3+4+5+(6+7+…+11)"
