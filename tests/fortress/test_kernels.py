"""Kernels that attack: never a pass, always a report, and no process, no file and nobody else's state is touched."""

from __future__ import annotations

import pytest

from tests.support.hostile import Arena, Attack, of_source, single, together
from tests.support.hostile_kernels import sources

MOMENTS = ("call", "import", "pack", "oracle")


def _each() -> list[object]:
    """Every attack that gets a run of its own, at each of its moments. Where others are made with it in one run, its
    own is `slow`."""
    return [
        pytest.param(
            attack, moment, id=f"{attack.name}-{moment}",
            marks=[pytest.mark.slow] if _is_slow(attack, moment) else [],
        )
        for attack in single() for moment in attack.moments
    ]  # fmt: skip


def _is_slow(attack: Attack, moment: str) -> bool:
    return attack.slow or attack.harmless_if_stopped or moment != attack.moments[0]


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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if of_source(n).slow else []) for n in sources()]
)
def test_in_cuda(arena: Arena, name: str) -> None:
    outcome = arena.run_source(name)
    assert not outcome.breaches, outcome.described()
