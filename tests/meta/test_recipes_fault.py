"""The recipe "add a fault" of docs/extending.md: with one new file, the fault of an incorrect kernel is named."""

from __future__ import annotations

from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, flat

FILE = "harness/gguf_verify/diagnosis/faults/rows_backwards.py"
FAULT = '''"""A fault of a test."""

from __future__ import annotations

from ..fault import Case, Fault, Variants, always
from ..operands import Predicted


def _backwards(case: Case) -> Variants:
    yield "", Predicted(case.right.exact[:, ::-1], case.right.bound[:, ::-1])


ROWS_BACKWARDS = Fault(
    id="rows-backwards",
    words="the last row comes first",
    fix="count the rows upward",
    applies=always,
    variants=_backwards,
)
'''

KERNEL = """
import importlib.util
import numpy as np
from gguf_verify import kernel

spec = importlib.util.spec_from_file_location("right", RIGHT)
right = importlib.util.module_from_spec(spec)
spec.loader.exec_module(right)

@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(weights, activations, shape):
    return np.ascontiguousarray(right.gemm(weights, activations, shape)[:, ::-1])
"""

RUN = (FIXTURES / "tiny-Q4_0.gguf", "--rungs", "layers", "--tensor", r"blk\.0\.attn_k\.", "--probes", "brief")


def test_a_fault_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    path = tmp_path / "backwards.py"
    path.write_text(KERNEL.replace("RIGHT", repr(str(copy.root / "examples" / "numpy_q4_0.py"))))
    before = copy.cli(*RUN, "--kernel", f"{path}:gemm")
    assert before.returncode == 1, before.stdout + before.stderr
    assert "the last row comes first" not in before.stdout

    copy.add(FILE, FAULT)
    after = copy.cli(*RUN, "--kernel", f"{path}:gemm")
    assert after.returncode == 1, after.stdout + after.stderr
    assert "the last row comes first" in flat(after.stdout)
    assert "count the rows upward" in flat(after.stdout)
