"""Recipes of docs/extending.md that take one file: the new member is known and changes a verdict."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, flat, patched_block

MODEL = FIXTURES / "tiny-Q4_0.gguf"
#: One small matrix is enough for a verdict.
ONE_MATRIX = ("--tensor", r"blk\.0\.attn_k\.", "--effort", "quick")


# ---- a fault ---------------------------------------------------------------------------------------------------------


FAULT_FILE = "harness/gguf_verify/diagnosis/faults/rows_backwards.py"
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

BACKWARDS = """
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


def test_a_fault_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    path = tmp_path / "backwards.py"
    path.write_text(BACKWARDS.replace("RIGHT", repr(str(copy.root / "examples" / "numpy_q4_0.py"))))
    before = copy.cli(MODEL, "--rungs", "layers", *ONE_MATRIX, "--kernel", f"{path}:gemm")
    assert before.returncode == 1, before.stdout + before.stderr
    assert "the last row comes first" not in before.stdout

    copy.add(FAULT_FILE, FAULT)
    after = copy.cli(MODEL, "--rungs", "layers", *ONE_MATRIX, "--kernel", f"{path}:gemm")
    assert after.returncode == 1, after.stdout + after.stderr
    assert "the last row comes first" in flat(after.stdout)
    assert "count the rows upward" in flat(after.stdout)


# ---- a rung ----------------------------------------------------------------------------------------------------------


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
    copy = ProjectCopy(tmp_path / "project")
    before = copy.cli(MODEL, "--rungs", "bytes,tall")
    assert (before.returncode, "no rung is called tall" in before.stderr) == (2, True), before.stderr
    copy.add("harness/gguf_verify/rungs/tall.py", TALL)
    some = copy.cli(MODEL, "--rungs", "bytes,tall", "--tensor", "ffn_up", "-o", tmp_path / "run.json")
    assert some.returncode == 0, some.stdout + some.stderr
    assert '"Has every matrix many rows?"' in (tmp_path / "run.json").read_text()
    wrong = copy.cli(MODEL, "--rungs", "bytes,tall")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "FAILED tall: blk.0.attn_k.weight has 128 rows, fewer than 512" in flat(wrong.stdout)
    assert re.search(r"bytes +passed", wrong.stdout)


# ---- a report --------------------------------------------------------------------------------------------------------


ONE_LINE = '''"""A report of a test: the verdict in one line."""

from __future__ import annotations

from ..results.report import Report
from .writer import Form, Kind, Writer


def render(report: Report, form: Form) -> str:
    return f"{report.verdict}: {report.n_failures} failures\\n"


WRITER = Writer("one line", "--one-line", {Kind.RUN: render}, (".txt",))
'''


def test_a_new_report_is_one_file(tmp_path: Path) -> None:
    out = tmp_path / "verdict.txt"
    copy = ProjectCopy(tmp_path / "project")
    before = copy.cli(MODEL, "--rungs", "bytes", "--one-line", out)
    assert (before.returncode, out.exists()) == (2, False)
    copy.add("harness/gguf_verify/report/one_line.py", ONE_LINE)
    shown = copy.cli("--help").stdout
    assert "--one-line FILE" in shown
    assert "also write the verdict in one line" in shown
    assert "--one-line" not in copy.cli("audit", "--help").stdout  # it writes runs only
    assert copy.cli(MODEL, "--rungs", "bytes", "--one-line", out).returncode == 0
    assert out.read_text() == "verified: 0 failures\n"
    wrong = patched_block(MODEL, tmp_path / "wrong.gguf", "blk.0.attn_q.weight", 9, 3, 0, b"\x00\x7e")
    assert copy.cli(wrong, "--rungs", "bytes", "--one-line", out).returncode == 1
    assert out.read_text() == "mismatch: 1 failures\n"
    other = copy.cli(MODEL, "--rungs", "bytes", "--one-line", tmp_path / "verdict.md")
    assert (other.returncode, other.stderr) == (2, "gguf-verify: --one-line writes FILE.txt\n")


# ---- a measure -------------------------------------------------------------------------------------------------------


LINES = '''"""A measure of a test: no page is longer than so many lines."""

from __future__ import annotations

import argparse

from gguf_verify.support.paths import CHECKOUT
from .measure import Measure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most", type=int, default=1)


def run(options: argparse.Namespace) -> int:
    lines = len((CHECKOUT / "README.md").read_text().splitlines())
    print(f"the README has {lines} lines")
    return int(lines > options.most)


MEASURE = Measure("lines", "whether the README is short", __doc__, add_arguments, run)
'''


def test_a_new_measure_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    copy.also("tools")
    before = copy.python("-m", "tools.measure", "lines")
    assert (before.returncode, "MEASURE takes alarms, " in before.stderr) == (2, True), before.stderr
    copy.add("tools/measure/lines.py", LINES)
    assert "whether the README is short" in copy.python("-m", "tools.measure", "--help").stdout
    (copy.root / "README.md").write_text("one\ntwo\n")
    for most, code in ((1, 1), (2, 0)):
        done = copy.python("-m", "tools.measure", "lines", "--most", most)
        assert (done.returncode, done.stdout) == (code, "the README has 2 lines\n"), done.stderr


# ---- an operation ----------------------------------------------------------------------------------------------------


GLU = "harness/gguf_verify_graph/operations/glu.py"


def test_an_operation_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    run = "backend", MODEL, "-p", "The import", "-n", "0"
    held = copy.take_away(GLU)
    without = copy.cli(*run)
    assert without.returncode == 5, without.stdout + without.stderr
    assert "NOT JUDGED GLU SWIGLU on CPU: the operation GLU SWIGLU (3 nodes)" in flat(without.stdout)
    copy.add(GLU, held)
    whole = copy.cli(*run)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "NOT JUDGED" not in whole.stdout
    assert "GLU SWIGLU" in whole.stdout


# ---- a host, a backend of llama.cpp ----------------------------------------------------------------------------------


HALF = '''"""A host of a test: the CPU, whose products are rounded to half as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cpu_host import CpuHost
from ..kind import HostKind


class HalfHost(CpuHost):
    """The CPU host but for `download`."""

    name = "half"
    _rounds = False

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> None:
        super().launch(kernel, *arguments, **named)
        self._rounds = kernel.__name__.startswith("gemm")

    def download(self, output: Any) -> Any:
        made = super().download(output)
        return made.view(np.float32).astype(np.float16).astype(np.float32).view(np.uint8) if self._rounds else made


HALF = HostKind("half", "the CPU, rounding to half", -1, HalfHost, lambda: None, emulated=True)
'''

SCALED = '''"""A backend of a test: llama.cpp's CPU backend, whose block products are a thousandth too large."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cpu import CpuBackend, CpuDevice
from .interface import BackendKind


class ScaledBackend(CpuBackend):
    """The CPU backend by another name."""

    def describe(self) -> str:
        return "CPU, scaled"


class ScaledDevice(CpuDevice):
    """The CPU but for the products of blocks."""

    def block_products(self, *arguments: Any) -> Any:
        return super().block_products(*arguments) * np.float32(1.001)


SCALED = BackendKind("CPU", "llama.cpp's CPU backend, scaled", ScaledBackend, lambda _device: ScaledDevice())
'''


def test_a_new_host_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    layers = (MODEL, "--rungs", "layers", *ONE_MATRIX)
    before = copy.cli(*layers, "--host", "half")
    assert (before.returncode, "'half'" in before.stderr) == (2, True), before.stderr
    copy.add("harness/gguf_verify/hosts/kinds/half.py", HALF)
    assert "half: the CPU, rounding to half" in flat(copy.cli("--help").stdout)
    right = copy.cli(*layers, "--host", "cpu")
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = copy.cli(*layers, "--host", "half")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "is outside the bound" in flat(wrong.stdout)
    assert "half: " in wrong.stdout


def test_a_new_backend_is_one_file(tmp_path: Path) -> None:
    """For a device that ggml has: the CPU backend, after its own file was removed."""
    copy = ProjectCopy(tmp_path / "project")
    blocks = (MODEL, "--host", "cpu", "--rungs", "blocks", *ONE_MATRIX)
    file = "harness/gguf_verify/llama/backends/cpu.py"
    text, _, record = copy.take_away(file).rpartition("\nCPU = ")
    assert record.startswith("BackendKind(")
    copy.add(file, text)
    before = copy.cli(*blocks)
    assert before.returncode == 5, before.stdout + before.stderr
    copy.add("harness/gguf_verify/llama/backends/scaled.py", SCALED)
    wrong = copy.cli(*blocks)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert re.search(r"llama\.cpp \S+ on CPU, scaled", flat(wrong.stdout))
    assert "is outside the bound" in flat(wrong.stdout)
