"""Verdicts of the readers on every crafted file."""

from __future__ import annotations

import pytest

from tests.support.reader_table import PAGE, Table, _versions_line, tabulate


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return tabulate(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def known(table: Table) -> Table:
    """The table where the readers are those that the page and the expectations are of."""
    stated = next((line for line in PAGE.read_text().splitlines() if line.startswith("Readers: ")), "")
    if stated != _versions_line(table.versions):
        pytest.skip(f"the page is of other versions: {stated!r}, here are {_versions_line(table.versions)!r}")
    return table
