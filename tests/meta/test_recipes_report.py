"""The recipe "add a report" of docs/extending.md: one new file adds a flag and writes the verdict."""

from __future__ import annotations

from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, patched_block

ONE_LINE = '''"""A report of a test: the verdict in one line."""

from __future__ import annotations

from ..results.report import Report
from .writer import Form, Kind, Writer


def render(report: Report, form: Form) -> str:
    return f"{report.verdict}: {report.n_failures} failures\\n"


WRITER = Writer("one line", "--one-line", "also write the verdict in one line", {Kind.RUN: render}, (".txt",))
'''


def test_a_new_report_is_one_file(tmp_path: Path) -> None:
    model, out = FIXTURES / "tiny-Q4_0.gguf", tmp_path / "verdict.txt"
    copy = ProjectCopy(tmp_path / "project")
    before = copy.cli(model, "--rungs", "bytes", "--one-line", out)
    assert (before.returncode, out.exists()) == (2, False)
    copy.add("harness/gguf_verify/report/one_line.py", ONE_LINE)
    shown = copy.cli("--help").stdout
    assert "--one-line FILE" in shown
    assert "also write the verdict in one line" in shown
    assert "--one-line" not in copy.cli("audit", "--help").stdout  # it writes runs only
    assert copy.cli(model, "--rungs", "bytes", "--one-line", out).returncode == 0
    assert out.read_text() == "verified: 0 failures\n"
    wrong = patched_block(model, tmp_path / "wrong.gguf", "blk.0.attn_q.weight", 9, 3, 0, b"\x00\x7e")
    assert copy.cli(wrong, "--rungs", "bytes", "--one-line", out).returncode == 1
    assert out.read_text() == "mismatch: 1 failures\n"
    other = copy.cli(model, "--rungs", "bytes", "--one-line", tmp_path / "verdict.md")
    assert (other.returncode, other.stderr) == (2, "gguf-verify: --one-line writes FILE.txt\n")
