""".pre-commit-hooks.yaml, as other repositories use it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.needs import need
from tests.support.tools import ROOT

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def test_its_entry_is_an_installed_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert HOOK["entry"].split()[0] in scripts
    assert HOOK["language"] == "python"


@pytest.mark.parametrize(
    ("name", "wanted"), [("a/model.gguf", True), ("model.gguf.txt", False), ("gguf", False), ("x.GGUF", False)]
)
def test_it_is_for_gguf_files(name: str, wanted: bool) -> None:
    assert bool(re.search(HOOK["files"], name)) is wanted


def test_pre_commit_takes_it(tmp_path: Path) -> None:
    need("pre-commit")
    line = ["pre-commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
