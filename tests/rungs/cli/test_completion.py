"""Scripts that complete the command line, made from the parsers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gguf_verify.cli.command import commands
from tests.support.tools import command_here


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_a_script_for_each_shell(shell: str) -> None:
    done = command_here("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    for word in (*commands(), "exitfirst", "report-dir", "strict"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nigh"], {"nightly"}),
        (["verify", "--exit"], {"--exitfirst"}),
        (["--exit"], {"--exitfirst"}),  # a command line that names no command is verify's
        (["verify", "--host", ""], {"auto", "gpu", "cpu"}),
        (["nightly", "com"], {"compare"}),
        (["completion", "fi"], {"fish"}),
    ],
)
def test_what_bash_offers(tmp_path: Path, words: list[str], expected: set[str]) -> None:
    script = tmp_path / "completion"
    script.write_text(command_here("completion", "bash").stdout)
    line = " ".join(f"'{word}'" for word in ["gguf-verify", *words])
    asked = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shtab_gguf_verify; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) >= expected
    assert all(word.startswith(words[-1]) for word in done.stdout.split())
