"""Reasons for a missing boundary on a machine, and the folders that are bound on this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gguf_verify.processes import boundary, sandbox
from gguf_verify.processes.child import Command
from gguf_verify.processes.mapped import mapped_files
from gguf_verify.processes.sandbox import Confinement
from gguf_verify.support.errors import EnvironmentFault
from tests.support.needs import need
from tests.support.processes import wait_until


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program in its place."""
    need("bubblewrap")
    monkeypatch.setattr(boundary, "_FOLDERS", str(tmp_path))
    boundary.fault.cache_clear()
    sandbox.forget()
    yield tmp_path / "bwrap"
    monkeypatch.undo()
    boundary.fault.cache_clear()
    sandbox.forget()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("setting up uid map: Permission denied", "user namespaces are refused here"),
        ("No permissions to create new namespace", "user namespaces are refused here"),
        ("Creating new namespace failed: Operation not permitted", "user namespaces are refused here"),
        ("Can't mount proc: out of luck", "bubblewrap does not run here: bwrap: Can't mount proc"),
    ],
)
def test_it_does_not_run(bwrap: Path, says: str, why: str) -> None:
    """One line says why, and how namespaces are allowed; the guard takes its place unless bubblewrap was requested."""
    bwrap.write_text(f'#!/bin/sh\necho "bwrap: {says}" >&2\nexit 1\n')
    bwrap.chmod(0o755)
    fault = boundary.fault()
    assert fault is not None
    assert fault.startswith(why)
    assert ("apparmor_restrict_unprivileged_userns" in fault) == (why == "user namespaces are refused here")
    with pytest.raises(EnvironmentFault, match=r"^--sandbox bubblewrap: "), sandbox.sandboxed("bubblewrap"):
        pass
    with sandbox.sandboxed("auto") as found:
        assert found.words.startswith("accident guard: ")
        assert fault in found.words


def test_it_is_not_installed(bwrap: Path) -> None:
    assert boundary.fault() == "bubblewrap is not installed"


def test_bound_folders_are_disjoint_and_read_only() -> None:
    """Each folder once, none as a whole that holds everything, and all of it read-only."""
    command = boundary.command(Confinement(shown=(Path("/"), Path("/usr/lib"))), Path("/own"), 5)
    pairs = [(command[i], command[i + 1]) for i in range(len(command)) if command[i].endswith("bind")]
    bound = [Path(path) for how, path in pairs if how == "--ro-bind"]
    assert {how for how, _ in pairs} == {"--ro-bind"}
    assert Path("/") not in bound
    assert len(set(bound)) == len(bound)
    assert not [path for path in bound if not set(bound).isdisjoint(path.parents)]


def test_python_below_a_folder_that_is_copied(tmp_path: Path) -> None:
    """A kernel may lie beside the folder of Python's environment, of which there is a copy or none."""
    python = Path(sys.prefix)
    for there in (tmp_path / "without", tmp_path / "with" / python.name):
        there.mkdir(parents=True)
    for copy in (tmp_path / "without", tmp_path / "with"):
        command = boundary.command(Confinement(copies={python.parent: copy}), Path("/own"), 5)
        binds = list(pairwise(command))
        assert sys.prefix.startswith("/usr") or ("--ro-bind", sys.prefix) in binds
        assert ("--ro-bind", str(copy / python.name)) not in binds


def test_no_link_and_no_compiler_shows_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, module = tmp_path / "home", tmp_path / "path/module"
    for folder in (home / "bin", module):
        folder.mkdir(parents=True)
    (home / "bin/g++").write_text("#!/bin/sh\n")
    (home / "bin/g++").chmod(0o755)
    (home / ".profile").touch()
    (module / "x.py").symlink_to(home / ".profile")
    for name, value in {"HOME": home, "PYTHONPATH": module.parent, "CXX": home / "bin/g++"}.items():
        monkeypatch.setenv(name, str(value))
    assert home / "bin/g++" in boundary.python()
    assert not [path for path in boundary.python() if home.is_relative_to(path)]


def test_mappings_of_a_bubblewrap_that_the_process_started() -> None:
    """Only the one that makes the boundary is not the process's own: libraries can be loaded into any other."""
    need("bubblewrap")
    program = boundary.program()
    assert program is not None
    code = f"import subprocess; subprocess.run([{program!r}, '--ro-bind', '/', '/', 'sleep', '60'])"
    process = Command([sys.executable, "-c", code])
    try:
        assert wait_until(lambda: os.path.realpath(program) in mapped_files(process.pid))
    finally:
        process.close()
