"""The recipe "add an operation" of docs/extending.md: its module is removed and added again."""

from __future__ import annotations

from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, flat

MODULE = "harness/gguf_verify_graph/operations/glu.py"


def test_an_operation_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    run = "backend", FIXTURES / "tiny-Q4_0.gguf", "-p", "The import", "-n", "0"
    held = copy.take_away(MODULE)
    without = copy.cli(*run)
    assert without.returncode == 5, without.stdout + without.stderr
    assert "NOT JUDGED GLU SWIGLU on CPU: the operation GLU SWIGLU (3 nodes)" in flat(without.stdout)
    copy.add(MODULE, held)
    whole = copy.cli(*run)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "NOT JUDGED" not in whole.stdout
    assert "GLU SWIGLU" in whole.stdout
