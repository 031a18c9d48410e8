"""The contents of an installation: the package under its own name, its types and its kernels, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.support.tools import ROOT

PACKAGES = {"gguf_verify", "gguf_verify_graph", "gguf_verify_nightly"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built by hatchling itself: an isolated build would ask the network for it."""
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_package_and_its_metadata_are_all(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    (metadata,) = tops - PACKAGES
    assert metadata.startswith("gguf_verify-")
    assert metadata.endswith(".dist-info")
    assert not any("harness" in Path(name).parts for name in wheel.namelist())


def test_every_file_of_the_package_is_there(wheel: zipfile.ZipFile) -> None:
    """Types, schemas, templates and sources alike; the kernels lie in `_kernels`."""
    names = set(wheel.namelist())
    assert "gguf_verify/py.typed" in names
    for folder, inside in (
        *((ROOT / "harness" / package, package) for package in PACKAGES),
        (ROOT / "kernels", "gguf_verify/_kernels"),
    ):
        files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        wanted = {f"{inside}/{path}" for path in files if "__pycache__" not in path.parts}
        assert wanted <= names, sorted(wanted - names)


def test_the_command_and_the_plugin_are_declared(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    said = wheel.read(name).decode()
    assert "gguf-verify = gguf_verify.cli:main" in said
    assert "gguf_verify.pytest_plugin = gguf_verify.pytest_plugin" in said
    assert "backend = gguf_verify_graph.commands.backend:COMMAND" in said
    assert "nightly = gguf_verify_nightly.command:COMMAND" in said


def test_an_installation_runs_and_finds_its_kernels(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """From a folder that holds nothing else, as site-packages would be."""
    wheel.extractall(tmp_path / "site")
    code = (
        "import gguf_verify; from gguf_verify.support.paths import kernel_root\n"
        "print(gguf_verify.__file__, kernel_root(), gguf_verify.__version__, sep='\\n')"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site")}
    for arguments in (["-c", code], ["-m", "gguf_verify", "--version"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        if arguments[0] == "-c":
            file, kernels, version = done.stdout.splitlines()
            assert Path(file) == tmp_path / "site" / "gguf_verify" / "__init__.py"
            assert Path(kernels) == tmp_path / "site" / "gguf_verify" / "_kernels"
            assert version[0].isdigit()


def test_the_source_distribution_can_be_tested_and_built(tmp_path: Path) -> None:
    names = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    for wanted in (
        "Makefile",
        "mkdocs.yml",
        "README.md",
        "tests/conftest.py",
        "kernels/common.cuh",
        "scripts/nightly.py",
    ):
        assert wanted in names


def test_extras_of_make_exist() -> None:
    """pip only warns of an extra that does not exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.findall(r"\.\[([\w,]+)\]", (ROOT / "Makefile").read_text())
    assert {"test", "docs"} <= {name for names in asked for name in names.split(",")} <= extras.keys()
