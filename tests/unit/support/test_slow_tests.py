"""Which tests are slow: by the list, and as cases of types that others represent; whether every line names a test."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gguf_verify.formats.tensor_types import FORMATS
from tests.support.slow_tests import REPRESENTATIVES, SlowTests, types_of
from tests.support.tools import ROOT

LIST = """\
# a comment
tests/unit/test_a.py
!tests/unit/test_a.py::test_kept
tests/unit/test_b.py::test_one
!tests/unit/test_b.py::test_one[Q4_0-x[1] | seldom]
tests/unit/test_b.py::test_two[a b | c-*]
tests/unit/test_b.py::test_three[]
!tests/unit/test_c.py::test_of_every_type
"""


def slow_among(node_ids: Iterable[str], tmp_path: Path) -> set[str]:
    path = tmp_path / "slow.txt"
    path.write_text(LIST)
    return SlowTests.read(path).among(node_ids)


@pytest.mark.parametrize(
    ("node_id", "is_slow"),
    [
        ("tests/unit/test_a.py::test_any", True),
        ("tests/unit/test_a.py::test_any[case]", True),
        ("tests/unit/test_a.py::test_kept[case]", False),
        ("tests/unit/test_b.py::test_one", True),
        ("tests/unit/test_b.py::test_one[Q8_0-x[1]]", True),
        ("tests/unit/test_b.py::test_one[Q4_0-x[1]]", False),
        ("tests/unit/test_b.py::test_one[seldom]", False),
        ("tests/unit/test_b.py::test_two[a b]", True),
        ("tests/unit/test_b.py::test_two[c-anything]", True),
        ("tests/unit/test_b.py::test_two[a]", False),
        ("tests/unit/test_b.py::test_three[]", True),
        ("tests/unit/test_b.py::test_three[a]", False),
        ("tests/unit/test_b.py::test_one_more", False),
        ("tests/unit/test_ab.py::test_any", False),
    ],
)
def test_tests_that_the_list_makes_slow(node_id: str, is_slow: bool, tmp_path: Path) -> None:
    assert slow_among([node_id], tmp_path) == ({node_id} if is_slow else set())


@pytest.mark.parametrize("function", ["test_of_types", "test_of_every_type"])
def test_types_are_represented(function: str, tmp_path: Path) -> None:
    """In a test of many types, each with a definition."""
    cases = [f"tests/unit/test_c.py::{function}[{name}-mmq]" for name in FORMATS]
    others = [case for case in cases if not types_of(case) <= REPRESENTATIVES]
    assert slow_among(cases, tmp_path) == (set() if function == "test_of_every_type" else set(others))


def test_types_that_were_chosen_stay(tmp_path: Path) -> None:
    cases = [f"tests/unit/test_c.py::test_some[{name}]" for name in ("Q2_K", "Q3_K", "IQ1_M")]
    assert slow_among(cases, tmp_path) == set()


def test_every_type_is_known_by_its_name() -> None:
    assert {name for name in FORMATS if types_of(f"tests/a.py::test_a[x-{name}]") != {name}} == set()
    assert set(FORMATS) >= REPRESENTATIVES


def test_every_line_names_a_test() -> None:
    listed = {line.function for line in SlowTests.read(ROOT / "tests" / "slow.txt").lines}
    for path in {function.partition("::")[0] for function in listed}:
        defined = re.findall(r"(?m)^def (test_\w+)", (ROOT / path).read_text())
        named = {function for function in listed if function.startswith(f"{path}::")}
        assert named <= {f"{path}::{name}" for name in defined}, path
