"""A dozen hostile kernels in a row in one process; `python -m tests.fortress.soak` makes it hundreds."""

from __future__ import annotations

import pytest

from tests.fortress.soak import SHORT, Look, grown, one_process
from tests.support.hostile import Arena
from tests.support.hostile_kernels import attacks

FLAT = [Look(run, 100 << 20, 20, 0, 1) for run in (8, 104, 200)]


def test_a_dozen_in_one_process(arena: Arena) -> None:
    soaked = one_process(arena, [attacks()[name] for name in SHORT], len(SHORT), 300.0)
    assert not soaked.breaches, "\n".join(map(str, [*soaked.breaches, *soaked.looks]))


def test_flat() -> None:
    assert not grown(FLAT)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (Look(200, 130 << 20, 20, 0, 1), "memory grows"), (Look(200, 100 << 20, 21, 0, 1), "descriptors grow"),
        (Look(200, 100 << 20, 20, 1, 1), "1 children"), (Look(200, 100 << 20, 20, 0, 2), "temporary files grow"),
    ],
)  # fmt: skip
def test_growth_is_reported(look: Look, words: str) -> None:
    assert words in "\n".join(grown([*FLAT[:2], look]))
