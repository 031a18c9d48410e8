"""An environment with this project and its declared dependencies alone, as `pip install .` makes it, without a network:
the packages are those of this Python, linked one by one."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from gguf_verify.support import seeds
from gguf_verify.support.cache import cache_dir

from .tools import ROOT


class Bare:
    """The environment. `run` calls its Python.

    Args:
        folder: where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self._python = folder / "bin" / "python"
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "project.pth").write_text(f"{ROOT / 'harness'}\n")
        # its own metadata too: entry points add commands
        tops = [top for top in _tops(metadata.distribution("gguf-verify")) if top.suffix == ".dist-info"]
        for name in set(_closure(_declared())):
            tops += _tops(metadata.distribution(name))
        for top in tops:
            target = packages / top.name
            if not target.exists():
                target.symlink_to(top)

    def run(self, *arguments: str | Path, program: str | None = None) -> subprocess.CompletedProcess[str]:
        """`gguf-verify` with arguments, or a program of Python."""
        what = ["-m", "gguf_verify"] if program is None else ["-c", program]
        return subprocess.run(
            [self._python, "-P", *what, *arguments], capture_output=True, text=True, timeout=600, check=False,
            env={
                "PATH": "/usr/bin:/bin", "HOME": str(self._python.parent), "COLUMNS": "200",
                seeds.VARIABLE: os.environ[seeds.VARIABLE], "XDG_CACHE_HOME": str(cache_dir().parent),
            },
            cwd=self._python.parent,
        )  # fmt: skip


def _declared() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [str(line) for line in project["dependencies"]]


def _closure(requirements: list[str]) -> Iterator[str]:
    """The names of what they need, and of what that needs."""
    for line in requirements:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name
            yield from _closure(metadata.requires(requirement.name) or [])


def _tops(distribution: metadata.Distribution) -> Iterator[Path]:
    """The files and folders of a distribution in its site-packages."""
    for name in {file.parts[0] for file in distribution.files or () if not re.match(r"\.\.|__pycache__", str(file))}:
        yield Path(str(distribution.locate_file(name)))
