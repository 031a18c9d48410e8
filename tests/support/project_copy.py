"""A temporary copy of the project, in which a test adds a file or takes one away and then runs the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .tools import ROOT

_PARTS = ("harness", "kernels", "scripts", "examples")


class ProjectCopy:
    """The package, the kernels and the commands, copied to a folder; fixtures are those of the checkout.

    Args:
        folder: where the copy is made; it must not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder
        folder.mkdir(parents=True)
        for part in _PARTS:
            # With the bytecode, which Python takes only for a source of the same time and size: without it each start
            # of the command line would compile some 300 sources.
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.egg-info"))
        (folder / "fixtures").symlink_to(ROOT / "fixtures")

    def also(self, *paths: str) -> None:
        """Copy these files and folders of the checkout, too."""
        for path in paths:
            source, target = ROOT / path, self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)

    @property
    def package(self) -> Path:
        """The folder of gguf_verify."""
        return self.root / "harness" / "gguf_verify"

    def add(self, path: str, text: str) -> Path:
        """Write a new file, `path` counted from the top of the project; it must not exist yet."""
        target = self.root / path
        assert not target.exists(), f"{path} exists already"
        target.write_text(text)
        return target

    def take_away(self, path: str) -> str:
        """Remove a file; returns what it held."""
        target = self.root / path
        held = target.read_text()
        target.unlink()
        return held

    def python(self, *arguments: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy, with the copy's package and nothing of the checkout's."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "harness"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    def cli(self, *arguments: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run `python -m gguf_verify` in the copy."""
        return self.python("-m", "gguf_verify", *arguments, timeout=timeout)
