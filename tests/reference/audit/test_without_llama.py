"""Where llama.cpp is not installed: a file can be audited, the verdict lists the skipped comparisons, and verification
names the package to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_verify.report.writer import Kind
from tests.support.audits import TINY, run
from tests.support.shown import last_line, text_of
from tests.support.tools import ROOT, patched_block

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llama_cpp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """An environment in which no process can import llama_cpp."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKED)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "harness")])}


def cli(without: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gguf_verify", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=without, timeout=300, check=False)


def test_the_verdict_claims_no_more_than_was_checked(without: dict[str, str], tmp_path: Path) -> None:
    done = cli(without, "audit", TINY["Q4_0"], "-o", tmp_path / "a.json")
    assert (done.returncode, done.stderr) == (5, "")
    verdict = last_line(done.stdout)
    assert verdict.startswith("NOT EVERYTHING VERIFIED in ")
    assert "not compared with llama.cpp, llama.cpp's reader" in verdict
    assert "CLEAN" not in done.stdout
    whole = json.loads((tmp_path / "a.json").read_text())
    assert len(whole["tensors"]) == 30
    assert [entry["name"] for entry in whole["left_out"]] == ["llama.cpp", "llama.cpp's reader"]
    assert [r["reader"] for r in whole["readers"][0]] == ["gguf-py"]
    assert whole["header"]["llama.cpp"] is None


def test_errors_are_found_all_the_same(without: dict[str, str], tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    done = cli(without, "audit", path)
    assert done.returncode == 1
    assert "GGUF-100-scale-not-finite" in done.stdout


@pytest.mark.parametrize("arguments", [[TINY["Q4_0"]], ["audit", TINY["Q4_0"], "--source", TINY["F16"]]])
def test_one_line_names_the_package_to_install(arguments: list[object], without: dict[str, str]) -> None:
    done = cli(without, *arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'llama-cpp-python" in done.stderr


def test_statistics_are_those_with_llama() -> None:
    both = [run(TINY["Q5_1"], readers=False, llama=llama) for llama in (True, False)]
    for with_llama, alone in zip(*(r.contents for r in both), strict=True):
        assert with_llama.scan.codes.tolist() == alone.scan.codes.tolist()
        assert with_llama.scan.scale == alone.scan.scale
        assert with_llama.scan.zero_blocks == alone.scan.zero_blocks
    assert [r.verdict for r in both] == ["clean", "clean as far as checked"]
    assert "not compared with llama.cpp: llama.cpp is turned off" in text_of(Kind.AUDIT, both[1])
