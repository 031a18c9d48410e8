"""The notebook of the documentation: its cells run, from where readers open it, and it is kept without outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.tools import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_it_is_kept_without_outputs() -> None:
    assert json.loads(NOTEBOOK.read_text())["nbformat"] == 4
    for cell in cells("code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


def test_its_cells_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT / "docs")
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for i, cell in enumerate(cells("code")):
        exec(compile("".join(cell["source"]), f"cell {i}", "exec"), namespace)
    said = capsys.readouterr().out
    for words in (
        "is not verified on tiny-Q4_0.gguf",
        "Fix: ",
        "at byte",
        "its call: own,",
        "FAILED 1 of 1,024 outputs",
    ):
        assert words in said
    assert "<div" in namespace["report"]._repr_html_()
