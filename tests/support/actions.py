"""Steps of action.yml, run without GitHub: in a folder of their own, with the variables that GitHub would set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gguf_verify.support import seeds
from gguf_verify.support.cache import cache_dir
from tests.support.tools import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]


class Ran(NamedTuple):
    """A step that has ended: exit code, standard output, the step's outputs and the job's summary."""

    code: int
    out: str
    err: str
    outputs: dict[str, str]
    summary: str


def step(name: str) -> dict[str, Any]:
    """By the name that the job's log shows."""
    return next(s for s in STEPS if s["name"] == name)


def run_step(name: str, folder: Path, **variables: str) -> Ran:
    """A step's shell code as GitHub runs it (`bash --noprofile --norc -eo pipefail`).

    Args:
        folder: for the runner's temporary files, HOME and GitHub's files.
        variables: what its `env` would give it.
    """
    assert step(name)["shell"] == "bash"
    assert set(variables) == set(step(name)["env"]), "a step gets what its env names"
    (folder / "runner").mkdir(exist_ok=True)
    files = {n: folder / n for n in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("")
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder),
        "RUNNER_TEMP": str(folder / "runner"), "GITHUB_ACTION_PATH": str(ROOT), "PYTHONPATH": str(ROOT / "harness"),
        "COLUMNS": "80", seeds.VARIABLE: os.environ[seeds.VARIABLE], "XDG_CACHE_HOME": str(cache_dir().parent),
        **{n: str(path) for n, path in files.items()}, **variables,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = files["GITHUB_OUTPUT"].read_text().splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    return Ran(done.returncode, done.stdout, done.stderr, outputs, files["GITHUB_STEP_SUMMARY"].read_text())


def program(folder: Path, code: str, name: str = "program") -> str:
    """A program of these lines of Python; returns its path."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return str(path)


def gguf_verify(folder: Path) -> str:
    """The command line of this checkout as a program."""
    return program(folder, "import sys\nfrom gguf_verify.cli import main\nsys.exit(main())\n", "gguf-verify")
