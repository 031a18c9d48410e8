"""The Python environment of each llama.cpp variant."""

from __future__ import annotations

import re
import sys
import time
import tomllib
from pathlib import Path

import msgspec
import pytest

from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify_nightly import environments, requirements
from gguf_verify_nightly.config import Variant, read_config
from gguf_verify_nightly.environments import Environments
from gguf_verify_nightly.night import Settings, run_night
from gguf_verify_nightly.records import Outcome
from tests.support.stub_nights import STUB, run_stub, write_config
from tests.support.tools import ROOT


def test_the_dependencies_of_a_variant_are_the_projects_own() -> None:
    found = {text.partition("==")[0]: text for text in requirements.requirements(gpu=False)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(found) == {re.split(r"[<>=~ ]", text)[0] for text in project["dependencies"]} - {"llama-cpp-python"}
    assert all("==" in text for text in found.values())  # as they are installed here
    with_gpu = requirements.requirements(gpu=True)
    assert set(with_gpu) >= set(found.values())


def test_an_installed_harness_brings_nothing_but_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a variant would find this Python's llama_cpp before its own."""
    with requirements.package_path(tmp_path / "unused") as path:
        assert path == str(ROOT / "harness")  # a checkout holds no other package
    in_checkout = requirements.requirements(gpu=False)
    for name in ("gguf_verify", "llama_cpp", "gguf_verify-0.1.0.dist-info"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "x").write_text(name)
    monkeypatch.setattr(requirements, "package_parent", lambda: tmp_path / "site")
    (tmp_path / "to").mkdir()
    with requirements.package_path(tmp_path / "to") as path:
        assert sorted(p.name for p in Path(path).iterdir()) == ["gguf_verify", "gguf_verify-0.1.0.dist-info"]
        assert (Path(path) / "gguf_verify" / "x").is_file()
    assert requirements.requirements(gpu=False) == in_checkout  # of the installed metadata


def test_what_matters_names_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "cache_dir", lambda: tmp_path)
    made = Environments(Processes(), 10)
    base = Variant(version="0.3.35")
    name = made.identity(base)
    assert made.identity(msgspec.structs.replace(base, repack=True)) == name  # neither changes what is installed
    others = [
        msgspec.structs.replace(base, version="0.3.34"), msgspec.structs.replace(base, cmake_args="-DGGML_NATIVE=OFF"),
        msgspec.structs.replace(base, cmake_args=""),
    ]  # fmt: skip
    names = [made.identity(v) for v in others]
    monkeypatch.setenv("CXX", "another")
    names.append(made.identity(base))
    assert len({name, *names}) == 5
    assert made.identity(Variant()).startswith("installed 0.")


class Pip(Processes):
    """Stands in for venv and pip: makes the Python, or fails as told."""

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.commands: list[list[str]] = []
        self.fails = fails

    def run(self, command, time_limit, env=None, cwd=None, log=None, on_start=lambda _pid: None, grace=0.0):
        self.commands.append(list(command))
        if self.fails and self.fails in " ".join(command):
            command = [sys.executable, "-c", "print('ERROR: no such\\nERROR: no matching distribution'); exit(1)"]
        else:
            if "venv" in command:
                Path(command[-1], "bin").mkdir(parents=True)
            command = ["true"]
        return super().run(command, time_limit, env, cwd, log, on_start, grace)


def test_an_environment_is_made_once_and_again_if_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "cache_dir", lambda: tmp_path)
    variant = Variant(version="0.3.35", cmake_args="-DX=1")
    pip = Pip(fails="llama-cpp-python==")
    with pytest.raises(
        EnvironmentFault, match=r"cannot be installed: ERROR: no matching distribution .log: [0-9a-f]+.log"
    ):
        Environments(pip, 60).ready(variant)
    log = Environments(pip, 60).log(variant).read_text()
    assert "no matching distribution" in log
    assert "--no-binary llama-cpp-python --no-cache-dir llama-cpp-python==0.3.35" in log
    folder = tmp_path / "variants" / Environments(pip, 60).identity(variant)
    (folder / "half").write_text("made")
    pip = Pip()
    ready = Environments(pip, 60).ready(variant)
    assert ready.llama_version == "0.3.35"
    assert ready.python == str(folder / "bin" / "python")
    assert not (folder / "half").exists()
    assert len(pip.commands) == 3
    Environments(pip, 60).ready(variant)
    assert len(pip.commands) == 3


def test_a_variant_that_cannot_be_made_is_its_cells_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "cache_dir", lambda: tmp_path / "cache")

    def fails(*_args: object) -> None:
        raise EnvironmentFault("its llama.cpp cannot be installed: no network")

    monkeypatch.setattr(Environments, "_make", fails)
    text = "[variants.here]\n[variants.there]\nllama-cpp-python = '0.3.35'"
    night = run_stub(tmp_path, text, p="pass")
    assert {key.variant: (cell.outcome, cell.reason) for key, cell in night.cells.items()} == {
        "here": (Outcome.VERIFIED, ""),
        "there": (Outcome.BROKEN_OFF, "its llama.cpp cannot be installed: no network"),
    }
    assert night.exit_code == 3


def test_the_nightly_costs_little_beside_its_cells(tmp_path: Path) -> None:
    """Real time of a night of twenty cells of 0.5 s over the sum of theirs."""
    path = write_config(tmp_path, **{f"p{i}": "pass 0.5" for i in range(20)})
    start = time.monotonic()
    night = run_night(read_config(path), Settings(harness=STUB, say=lambda _line: None))
    wall = time.monotonic() - start
    cells = sum(cell.seconds for cell in night.cells.values())
    print(f"{wall:.2f} s for {cells:.2f} s of cells: {100 * (wall / cells - 1):.1f} % more")
    assert wall < 1.3 * cells  # generous: this machine may be busy. What is measured is printed
