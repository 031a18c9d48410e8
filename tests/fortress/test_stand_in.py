"""The attacks verified: on a verifier that does not protect itself each of them is seen."""

from __future__ import annotations

import re

import pytest

from tests.support.hostile import Arena, Attack, possible, shared, shown_by_stand_in, single
from tests.support.hostile_kernels import sources


def test_shared_attacks_are_seen(arena: Arena) -> None:
    outcome = arena.unprotected(shared())
    missing = [attack.name for attack in shared() if possible(attack) and not re.search(attack.seen, outcome.told)]
    assert not missing, f"{missing}\n{outcome.described()}"


@pytest.mark.parametrize("attack", [pytest.param(a, id=a.name) for a in single() if a.seen])
def test_an_attack_is_seen(arena: Arena, attack: Attack) -> None:
    if not possible(attack):
        pytest.skip("this machine forbids it to ordinary users")
    outcome = arena.unprotected([attack])
    assert re.search(attack.seen, outcome.told), outcome.described()


@pytest.mark.parametrize("name", [n for n in sources() if shown_by_stand_in(n)])
def test_an_attack_in_cuda_is_seen(arena: Arena, name: str) -> None:
    outcome = arena.unprotected_source(name)
    assert re.search("bystander: signal: 10" if name == "native" else "changed: home", outcome.told), (
        outcome.described()
    )


def test_peace_is_seen(arena: Arena) -> None:
    outcome = arena.unprotected([])
    assert outcome.breaches == ["exit code 1"], outcome.described()
