"""The action's last step and the pre-commit hook, with the real program on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import yaml

from tests.support.actions import gguf_verify, run_step
from tests.support.tools import FIXTURES, ROOT, patched_block

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
MODEL = FIXTURES / "tiny-Q4_0.gguf"


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a scale that is not finite."""
    path = tmp_path_factory.mktemp("model") / "wrong.gguf"
    return patched_block(MODEL, path, "blk.0.attn_q.weight", 3, 1, 0, b"\x00\x7c")


def inputs(folder: Path, **given: str) -> dict[str, str]:
    usual = {"COMMAND": "audit", "KERNEL": "", "ARGS": "", "FAIL_ON": "unverified"}
    return {"GGUF_VERIFY": gguf_verify(folder), **usual, **given}


def test_the_action_audits(tmp_path: Path, wrong: Path) -> None:
    done = run_step("Run gguf-verify", tmp_path, **inputs(tmp_path, MODEL=str(wrong), ARGS="--no-readers --no-sha256"))
    assert done.code == 1, done.err
    assert "❌ Wrong" in done.summary
    assert json.loads(Path(done.outputs["json"]).read_text())["exit_code"] == 1
    assert any(line.startswith("::error title=wrong.gguf%3A wrong::GGUF-") for line in done.out.splitlines())


def test_the_action_verifies(tmp_path: Path) -> None:
    arguments = "--rungs bytes --tensor 'blk.0.attn_[qk]' -n 1"
    given = inputs(tmp_path, COMMAND="verify", MODEL=str(MODEL), KERNEL="f32", ARGS=arguments)
    done = run_step("Run gguf-verify", tmp_path, **given)
    assert done.code == 0, done.err
    assert "✅ Verified" in done.summary
    assert json.loads(Path(done.outputs["json"]).read_text())["environment"]["kernel"]["name"] == "f32"
    assert done.outputs["html"].endswith("report.html")


def test_the_action_reports_a_usage_error(tmp_path: Path) -> None:
    done = run_step("Run gguf-verify", tmp_path, **inputs(tmp_path, MODEL=str(MODEL), ARGS="--no-such-flag"))
    assert done.code == 2
    assert "exit code 2" in done.summary


def test_several_files_are_one_summary_and_one_list_of_annotations(wrong: Path, tmp_path: Path) -> None:
    """As pre-commit calls the hook, with every changed file; one of them is no GGUF file."""
    (tmp_path / "none.gguf").write_bytes(b"no model")
    paths = [str(p) for p in (MODEL, wrong, tmp_path / "none.gguf")]
    reports = ["-o", str(tmp_path / "a.md"), "-o", str(tmp_path / "annotations.txt")]
    line = [sys.executable, "-m", "gguf_verify", *HOOK["entry"].split()[1:], *paths, "--no-readers", *reports]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 4, done.stdout + done.stderr
    summary, annotations = (tmp_path / "a.md").read_text(), (tmp_path / "annotations.txt").read_text()
    assert "3 files: " in unescape(summary)
    assert summary.index("wrong.gguf") < summary.index("tiny-Q4&#95;0.gguf")
    assert "::error title=wrong.gguf%3A wrong::GGUF-" in annotations
    assert "::error title=none.gguf%3A refused::" in annotations
