"""After `pip install .`, without llama.cpp: the promises of the README, and the pre-commit hook, in an environment that
has only the declared dependencies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gguf_verify.cli.command import commands
from tests.support.bare import Bare
from tests.support.tools import FIXTURES, ROOT

MODEL = FIXTURES / "tiny-Q4_0.gguf"
#: Prints the exit code of each command's `--help`.
HELPS = """
import contextlib, io, json, sys
from gguf_verify.cli import main
codes = {}
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            code = main([name, "--help"])
        except SystemExit as end:
            code = end.code
    codes[name] = [code or 0, shown.getvalue().split("\\n")[0][:19]]
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    return Bare(tmp_path_factory.mktemp("bare") / "env")


def test_it_has_no_llama(bare: Bare) -> None:
    done = bare.run(program="import numpy, gguf, msgspec, gguf_verify; import llama_cpp")
    assert "ModuleNotFoundError: No module named 'llama_cpp'" in done.stderr


def test_every_command_has_its_help(bare: Bare) -> None:
    done = bare.run(*commands(), program=HELPS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: [0, "usage: gguf-verify "[:19]] for name in commands()}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--help",), 0, "usage: gguf-verify"),
        (("completion", "bash"), 0, "complete -o bashdefault"),
        (("kernle",), 2, "'kernle' is neither a command nor a file; did you mean 'kernel'?"),
        ((MODEL,), 3, "llama.cpp, the reference, is not installed"),
        (("devices",), 3, "llama.cpp, the reference, is not installed"),
        (("backend", MODEL), 3, "llama.cpp, the reference, is not installed"),
        (("audit", "--no-llama", MODEL), 0, "CLEAN AS FAR AS CHECKED"),
        (("audit", MODEL), 5, "NOT VERIFIED every tensor: llama.cpp is not installed"),
    ],
    ids=lambda part: " ".join(Path(str(each)).name for each in part) if isinstance(part, tuple) else "",
)
def test_a_command_line(bare: Bare, arguments: tuple[str | Path, ...], code: int, said: str) -> None:
    done = bare.run(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_kernel_is_verified_without_a_model(bare: Bare) -> None:
    kernel = f"{ROOT / 'examples/numpy_q4_0.py'}:gemm"
    done = bare.run("kernel", kernel, "-K", "256", "-N", "8", "--effort", "quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERIFIED" in done.stdout


def test_the_hook_takes_a_good_file_and_no_bad_one(bare: Bare, tmp_path: Path) -> None:
    """As pre-commit runs it: its entry, then the files of a commit."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    command, *arguments = hook["entry"].split()
    assert command == "gguf-verify"
    assert bare.run(*arguments, MODEL).returncode == 0
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(MODEL.read_bytes()[:-4096])
    done = bare.run(*arguments, cut)
    assert done.returncode in (1, 4), done.stdout + done.stderr
