"""`python -m tools.measure backends` on the CPU backend: random nodes pass, and a wrong definition is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_verify_graph.operations import OPERATIONS, arithmetic
from tests.support.tools import FIXTURES
from tools.measure.__main__ import main
from tools.measure.backends.records import load


def test_operations_and_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    asked = ["backends", "--results", str(out), "--no-page", "--seeds", "1"]
    assert main([*asked, "--only", "SUM_ROWS", str(FIXTURES / "tiny-Q4_0.gguf")]) == 0
    (of,) = load(out).values()
    (row,) = of.operations
    assert (row.operation, row.wrong, row.unsupported, row.ended) == ("SUM_ROWS", 0, 0, 0)
    assert row.outputs > 100
    assert [graph.flash for graph in of.graphs] == ["auto", "off"]
    assert {graph.verdict for graph in of.graphs} == {"verified"}
    capsys.readouterr()


def test_a_wrong_definition_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SUM judged as MEAN."""
    judged = OPERATIONS["MEAN"].judge
    monkeypatch.setitem(
        OPERATIONS, "SUM_ROWS", replace(OPERATIONS["SUM_ROWS"], judge=lambda node: judged(replace(node, op="MEAN")))
    )
    asked = ["backends", "--results", str(tmp_path / "r.json"), "--no-page", "--seeds", "1"]
    assert main([*asked, "--only", "SUM_ROWS"]) == 1
    assert "SUM_ROWS: " in capsys.readouterr().out


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The declared errors are sufficient; half of them would be reported as insufficient."""
    out = tmp_path / "r.json"
    asked = ["backends", "--results", str(out), "--no-page", "--seeds", "0", "--functions", "halves"]
    assert main([*asked, "--only", "1/x"]) == 0
    (of,) = load(out).values()
    (row,) = of.functions
    assert (row.function, row.inputs, row.wrong) == ("1/x", 63488, 0)
    assert 0.49 < row.ulps <= 0.5
    monkeypatch.setitem(arithmetic._BACKENDS, "CPU", replace(arithmetic._BACKENDS["CPU"], division=0.25))
    assert main([*asked, "--only", "1/x"]) == 1
    assert "results exceed the declared error" in capsys.readouterr().out
