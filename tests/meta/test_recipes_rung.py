"""The recipe "add a rung" of docs/extending.md: one new file is listed and changes a verdict."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, flat

TALL = '''"""A rung of a test: every matrix must have many rows."""

from __future__ import annotations

from ..gguf.matrices import may_be_matrix
from ..results.failures import Failure
from ..results.rungs import RungResult
from .interface import Rung
from .run import Run

LEAST = 512


def check(run: Run, result: RungResult) -> None:
    for tensor in run.selected():
        if may_be_matrix(tensor):
            result.count("matrices")
            if tensor.n_rows < LEAST:
                result.fail(Failure(f"{tensor.name} has {tensor.n_rows} rows, fewer than {LEAST}", tensor.name))


RUNG = Rung("tall", 5, "Has every matrix many rows?", ("matrices",), check)
'''


def test_a_new_rung_is_one_file(tmp_path: Path) -> None:
    model = FIXTURES / "tiny-Q4_0.gguf"
    copy = ProjectCopy(tmp_path / "project")
    before = copy.cli(model, "--rungs", "bytes,tall")
    assert (before.returncode, "no rung is called tall" in before.stderr) == (2, True), before.stderr
    copy.add("harness/gguf_verify/rungs/tall.py", TALL)
    assert "tall" in copy.cli("--help").stdout
    some = copy.cli(model, "--rungs", "bytes,tall", "--tensor", "ffn_up", "--json", tmp_path / "run.json")
    assert some.returncode == 0, some.stdout + some.stderr
    assert '"Has every matrix many rows?"' in (tmp_path / "run.json").read_text()
    wrong = copy.cli(model, "--rungs", "bytes,tall")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "FAILED tall: blk.0.attn_k.weight has 128 rows, fewer than 512" in flat(wrong.stdout)
    assert re.search(r"bytes +passed", wrong.stdout)
