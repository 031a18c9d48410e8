"""The list of tests that only `make test-all` runs: `tests/slow.txt`.

A line is one of

    path.py                     every test of the module
    path.py::test_name          the test with all its cases
    path.py::test_name[case]    one case
    !path.py::test_name[case]   a case that stays in `make test`, although its test or module is listed
    # comment

The paths begin with `tests/`. With `!`, the cases of a new type or kernel are slow unless someone chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def _prefixes(node_id: str) -> Iterator[str]:
    """The lines that can list a test: its module, its function, its case."""
    yield node_id.partition("::")[0]
    yield node_id.partition("[")[0]
    yield node_id


@dataclass(frozen=True)
class SlowTests:
    """`node_id in slow_tests` is whether that test is slow."""

    listed: frozenset[str]
    kept: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> SlowTests:
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        kept = frozenset(line[1:] for line in lines if line.startswith("!"))
        return cls(frozenset(line for line in lines if not line.startswith("!")), kept)

    def __contains__(self, node_id: str) -> bool:
        return node_id not in self.kept and not self.listed.isdisjoint(_prefixes(node_id))

    def functions(self) -> set[tuple[str, str]]:
        """Path and name of each function that a line names; "" for a whole module. Cases may differ by machine."""
        parts = (line.partition("[")[0].partition("::") for line in self.listed | self.kept)
        return {(path, name) for path, _, name in parts}
