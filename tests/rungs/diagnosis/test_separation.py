"""Rules of wrong outputs: exact ones are found, chance is no rule, and calls decide between rules that fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.diagnosis.fault import Case
from gguf_verify.diagnosis.separation import approximate, evidence, flag, number, rules
from gguf_verify.diagnosis.shared_data import shared_data
from gguf_verify.diagnosis.sizes import ROWS, Learnt, around, learn
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.domain import Extent
from gguf_verify.semantics.definitions import SEMANTICS

Q8_1 = SEMANTICS["q8_1"]
at = np.arange


def learnt(of: Callable[[int], np.ndarray], own: int, most: int = 300) -> Learnt | None:
    sizes = sorted({*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, own})
    calls = {n: of(n) for n in sizes if n <= own}
    return learn(calls, lambda n, _=0: of(n), most, Extent(), ROWS)


@pytest.mark.parametrize(
    ("of", "own", "words"),
    [
        (lambda n: np.full(n, n % 192 == 64), 256, "N mod 192 = 64"),
        (lambda n: np.full(n, n % 64 != 0), 100, "N is no multiple of 64"),
        (lambda n: np.full(n, n >= 100), 129, "N ≥ 100"),
        (lambda n: (n % 128 == 64) & (at(n) >= n - 64), 192, ""),
        (lambda n: at(n) % 48 == 5, 100, "row mod 48 = 5"),
        (lambda n: (at(n) % 32 >= 24) & (n >= 64), 100, "row mod 32 ≥ 24"),
        (lambda n: at(n) >= n // 24 * 24, 100, "the row is past the last whole tile of 24"),
        (lambda n: at(n) == n - 1, 100, "row ≥ N - 1"),
    ],
)
def test_rules_hold_for_sizes_that_were_not_tried(of: Callable[[int], np.ndarray], own: int, words: str) -> None:
    found = learnt(of, own)
    assert found is not None
    assert words in found.condition
    for n in range(1, 700):
        assert (found.wrong(n, at(n)) == of(n)).all(), (n, found.condition)


@pytest.mark.parametrize(
    ("of", "own", "words"),
    [
        (lambda n: (n >= 1024) & (n % 64 == 0) & (at(n) == n - 1), 32_064, "N ≥ 1,024"),
        (lambda n: np.full(n, (n >= 3000) & (n % 256 == 0)), 8_192, "N ≥ 3,0"),
    ],
)
def test_round_sizes_from_some_size_on(of: Callable[[int], np.ndarray], own: int, words: str) -> None:
    """The limit is looked for at round sizes, also in a call of many rows."""
    sizes = sorted({*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, own})
    calls = around({n: of(n) for n in sizes}, of, own, 2 * own, Extent())
    found = learn(calls, lambda n, _=0: of(n), 2 * own, Extent(), ROWS)
    assert found is not None
    assert words in found.condition
    for n in (64, 960, 1000, 1024, 1025, 2816, 3000, 3072, 3073, 4096, own):
        assert (found.wrong(n, at(n)) == of(n)).all(), (n, found.condition)


@pytest.mark.parametrize(
    "of",
    [
        lambda n: np.random.default_rng(n).random(n) < 0.2,
        lambda n: at(n) % 7 == 3,
        lambda n: np.full(n, n % 5 == 0),
        lambda n: np.full(n, n > 1 and all(n % i for i in range(2, n))),
        lambda n: at(n) >= n // 2,
    ],
)
def test_what_no_rule_says_has_none(of: Callable[[int], np.ndarray]) -> None:
    assert learnt(of, 101) is None


def test_a_rule_that_further_calls_contradict_is_none() -> None:
    """All calls so far fit "N ≥ 101"; calls with other operands are correct."""
    calls = {n: np.full(n, n >= 101) for n in (1, 50, 100, 101, 102)}
    assert learn(calls, lambda n, _=0: np.zeros(n, bool), 200, Extent(), ROWS) is None


def test_random_labels_have_no_rule_of_less_bits() -> None:
    """The probability is at most 2^-10 for each set of labels."""
    rng = np.random.default_rng(0)
    named = 0
    for _ in range(150):
        table = {str(i): flag("", "", rng.random(24) < rng.random()) for i in range(12)}
        table["size"] = number("size", rng.random(24))
        wrong = rng.random(24) < 0.4
        found = rules(table, wrong)
        named += bool(found) and evidence(wrong, ordered=False) - found[0].bits >= 10
    assert named <= 1


def test_an_approximate_rule_states_its_share() -> None:
    yes = at(100) < 50
    table = {"yes": flag("it is so", "it is not so", yes)}
    wrong = yes & (at(100) != 7)
    assert not rules(table, wrong)
    found = approximate(table, wrong, 0.9)
    assert found is not None
    assert found.words(table) == "wrong only where it is so, in 98 % of those"
    assert approximate(table, wrong, 0.99) is None


def test_runs_are_less_evidence_than_scattered_labels() -> None:
    tail = at(64) >= 48
    assert evidence(tail) < 10 < evidence(np.random.default_rng(0).permutation(tail))


def special(n: int = 40, seed: int = 0) -> tuple[Case, np.ndarray]:
    """Weights in which some rows have a block with a negative scale; bool[rows]: which."""
    fmt, rng = FORMATS["Q8_0"], np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, 4, fmt.block_bytes), dtype=np.uint8)
    blocks[..., :2] = rng.uniform(0.01, 0.02, (n, 4, 1)).astype(np.float16).view(np.uint8)
    those = at(n) % 5 < 2
    blocks[those, 1, 1] |= 0x80
    x = rng.standard_normal((9, 128)).astype(np.float32)
    return Case(Q8_1, fmt, blocks.reshape(n, -1), Q8_1.bytes_of(x), x), those


def test_data_that_wrong_rows_share() -> None:
    case, those = special()
    bad = np.broadcast_to(those, (9, 40))
    assert shared_data(case, bad) == (
        "rows are wrong exactly where the row has blocks of weights whose scale is negative",
    )
    few = bad & (at(40) < np.flatnonzero(those)[3])
    assert not shared_data(case, few)
    small, some = special(10)  # 8 bits say which 4 of 10 rows are wrong
    assert not shared_data(small, np.broadcast_to(some, (9, 10)))
    assert not shared_data(case, np.broadcast_to(np.random.default_rng(1).random(40) < 0.4, (9, 40)))
