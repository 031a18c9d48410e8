"""Kernels that attack: never a pass, always a report, and no process, file or state of others is touched."""

from __future__ import annotations

import pytest

from tests.support.hostile import Arena, Attack, single, together
from tests.support.hostile_kernels import sources

MOMENTS = ("call", "import", "pack", "oracle")


def _each() -> list[object]:
    """Every attack that gets a run of its own, at each of its moments."""
    return [pytest.param(a, moment, id=f"{a.name}-{moment}") for a in single() for moment in a.moments]


def test_a_wrong_kernel_that_attacks_nobody(arena: Arena) -> None:
    outcome = arena.run([], exits=[1])
    assert not outcome.breaches, outcome.described()


@pytest.mark.parametrize("moment", MOMENTS)
def test_all_at_once(arena: Arena, moment: str) -> None:
    outcome = arena.run(together(), moment, exits=[1])
    assert not outcome.breaches, outcome.described()


@pytest.mark.parametrize(("attack", "moment"), _each())
def test_alone(arena: Arena, attack: Attack, moment: str) -> None:
    outcome = arena.run([attack], moment)
    assert not outcome.breaches, outcome.described()


@pytest.mark.parametrize("name", sources())
def test_in_cuda(arena: Arena, name: str) -> None:
    outcome = arena.run_source(name)
    assert not outcome.breaches, outcome.described()
