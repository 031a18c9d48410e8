"""Historical bugs are not verified, the kernel is at fault and the diagnosis is not wrong; correct twins are verified.

Entries of `pending.toml` are expected to fail. If one passes, remove its line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from gguf_verify.llama.library import Llama
from tests.meta.museum.collection import EXHIBITS, Exhibit, findings, pending
from tests.meta.museum.gates import passed, weights
from tests.meta.museum.verdicts import LIMITED, RIGHT, WRONG, Said, model_for, said_of
from tests.support.tools import FIXTURES

PENDING = pending()
#: In `pending.toml`: the brief plan verifies the exhibit; the full plan was not tried.
UNMEASURED = "unmeasured"
#: In `pending.toml`: the diagnosis varies between runs.
BY_CHANCE = "by chance"
#: Upper limit for the number of `quick` exhibits.
MOST_QUICK = 8
#: For a kernel that is never called, missing coverage is at fault, because nothing was checked.
CULPRITS = {"never called": "coverage"}


def exhibits(*pending_in: str) -> list[Any]:
    """Return a parameter for each exhibit. Those in one of these tables of `pending.toml` are expected to fail."""
    out = []
    for name, exhibit in EXHIBITS.items():
        marks = []
        whys = [PENDING[table][name] for table in pending_in if name in PENDING[table]]
        if whys:
            marks.append(pytest.mark.xfail(strict=whys[0] not in (UNMEASURED, BY_CHANCE), reason=whys[0]))
        out.append(pytest.param(exhibit, id=name, marks=marks))
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("museum")


@pytest.fixture(scope="module")
def verdict(folder: Path, llama: Llama) -> Callable[[str], Said]:
    """The report on an exhibit, which is verified once."""

    @cache
    def said(name: str) -> Said:
        exhibit = EXHIBITS[name]
        return said_of(exhibit.path, model_for(exhibit, folder, llama), "brief", "full", exhibit=exhibit)

    return said


@pytest.mark.parametrize("exhibit", exhibits("caught"))
def test_exhibits_are_not_verified(exhibit: Exhibit, verdict: Callable[[str], Said]) -> None:
    said = verdict(exhibit.id)
    assert said.verdict != "verified"
    assert said.culprits == (() if said.verdict == LIMITED else (CULPRITS.get(exhibit.label.kind, "kernel"),)), said


@pytest.mark.parametrize("exhibit", exhibits("caught", "named"))
def test_exhibits_are_named_rightly(exhibit: Exhibit, verdict: Callable[[str], Said]) -> None:
    said = verdict(exhibit.id)
    assert said.verdict != "verified"
    assert said.naming(exhibit) == RIGHT, said


@pytest.mark.parametrize("exhibit", exhibits())
def test_exhibits_are_never_named_wrongly(exhibit: Exhibit, verdict: Callable[[str], Said]) -> None:
    assert verdict(exhibit.id).naming(exhibit) != WRONG, verdict(exhibit.id)


def _twin(exhibit: Exhibit, tmp_path: Path, folder: Path, llama: Llama, plan: Literal["brief", "full"]) -> Said:
    fixture = FIXTURES / f"tiny-{exhibit.format}.gguf"
    return said_of(exhibit.twin(tmp_path), fixture if fixture.exists() else model_for(exhibit, folder, llama), plan)


@pytest.mark.parametrize("exhibit", exhibits())
def test_right_twins_are_verified(exhibit: Exhibit, tmp_path: Path, folder: Path, llama: Llama) -> None:
    said = _twin(exhibit, tmp_path, folder, llama, "brief")
    assert said.verdict == "verified", said


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=EXHIBITS.keys())
def test_right_twins_are_verified_by_the_full_plan(
    exhibit: Exhibit, tmp_path: Path, folder: Path, llama: Llama
) -> None:
    said = _twin(exhibit, tmp_path, folder, llama, "full")
    assert said.verdict == "verified", said


@pytest.mark.parametrize("exhibit", exhibits())
def test_other_checks_say_what_the_page_says(exhibit: Exhibit, llama: Llama) -> None:
    found = passed(exhibit.path, exhibit.format, weights(exhibit.format, llama))
    assert found == findings()[exhibit.id].gates


def test_enough_of_it_happened() -> None:
    historical = [e for e in EXHIBITS.values() if e.historical]
    assert len({e.label.source for e in historical}) >= 45
    for exhibit in historical:
        assert exhibit.label.source.split(" ")[0].count("#") == 1, exhibit.id


def test_the_quick_part_is_small_and_varied() -> None:
    kinds = [exhibit.label.kind for exhibit in EXHIBITS.values() if exhibit.label.quick]
    assert len(set(kinds)) == len(kinds) <= MOST_QUICK


def test_bugs_of_threads_memory_and_launches_are_in_cuda() -> None:
    in_python = {e.label.kind for e in EXHIBITS.values() if e.path.suffix == ".py"}
    assert in_python <= {"cached", "table"}


def test_labels_can_be_met() -> None:
    for exhibit in EXHIBITS.values():
        assert exhibit.label.names or exhibit.label.says, exhibit.id
        assert exhibit.text.split("[/museum]")[0].count("\n") < 18, "a label, not an essay"
    assert set(findings()) == set(EXHIBITS)
    for table in PENDING.values():
        assert table.keys() <= EXHIBITS.keys()
    assert not PENDING["caught"].keys() & PENDING["named"].keys()


def test_a_twin_differs_as_its_label_states(tmp_path: Path) -> None:
    for exhibit in EXHIBITS.values():
        right = exhibit.twin(tmp_path).read_text().splitlines()
        wrong = exhibit.text.splitlines()
        assert len(right) == len(wrong)
        assert 1 <= sum(a != b for a, b in zip(wrong, right, strict=True)) <= 2, exhibit.id
