"""The list of slow tests: which tests a line makes slow, and whether every line names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.slow_tests import SlowTests
from tests.support.tools import ROOT

LIST = """\
# a comment
tests/unit/test_a.py
tests/unit/test_b.py::test_one
!tests/unit/test_b.py::test_one[Q4_0-x[1]]
tests/unit/test_b.py::test_two[a b]
"""


@pytest.fixture
def slow(tmp_path: Path) -> SlowTests:
    path = tmp_path / "slow.txt"
    path.write_text(LIST)
    return SlowTests.read(path)


@pytest.mark.parametrize(
    ("node_id", "is_slow"),
    [
        ("tests/unit/test_a.py::test_any", True),
        ("tests/unit/test_a.py::test_any[case]", True),
        ("tests/unit/test_b.py::test_one", True),
        ("tests/unit/test_b.py::test_one[Q8_0-x[1]]", True),
        ("tests/unit/test_b.py::test_one[Q4_0-x[1]]", False),
        ("tests/unit/test_b.py::test_two[a b]", True),
        ("tests/unit/test_b.py::test_two[a]", False),
        ("tests/unit/test_b.py::test_one_more", False),
        ("tests/unit/test_ab.py::test_any", False),
    ],
)
def test_what_is_slow(slow: SlowTests, node_id: str, is_slow: bool) -> None:
    assert (node_id in slow) == is_slow


def test_every_line_names_a_test() -> None:
    listed = SlowTests.read(ROOT / "tests" / "slow.txt").functions()
    for path in {path for path, _ in listed}:
        defined = set(re.findall(r"(?m)^def (test_\w+)", (ROOT / path).read_text()))
        assert {name for of, name in listed if of == path} <= {"", *defined}, path
