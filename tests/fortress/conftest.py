"""Fixtures for runs of hostile kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hostile import Arena
from tests.support.hostile_ground import Ground


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The attacks name system calls by their numbers on x86-64."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.needs("x86-64"))


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """A copy of the project, a warm cache and an honest report; parallel runs of tests share it."""
    base = tmp_path_factory.getbasetemp()
    # a process of pytest-xdist has a folder of its own in the run's
    return Ground((base.parent if base.name.startswith("popen-") else base) / "hostile-ground")


@pytest.fixture
def arena(ground: Ground, tmp_path: Path) -> Iterator[Arena]:
    """One run's folders, listeners and bystander."""
    with Arena(ground, tmp_path / "arena") as made:
        yield made
