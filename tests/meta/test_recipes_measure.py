"""The recipe "add a measure" of docs/extending.md: one new file is listed and returns the exit code."""

from __future__ import annotations

from pathlib import Path

from tests.support.project_copy import ProjectCopy

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
