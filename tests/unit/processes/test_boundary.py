"""Reasons for a missing boundary on a machine, and the folders that are bound on this one."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.hosts.process_child import shared_memory
from gguf_verify.kernels.foreign.operands import MemoryFile
from gguf_verify.processes import boundary, sandbox
from gguf_verify.processes.child import Command, Forked, Spawned
from gguf_verify.processes.commands import Processes
from gguf_verify.processes.mapped import mapped_files
from gguf_verify.processes.sandbox import Confinement
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.lanes import Lane
from gguf_verify.support.progress import progress_bar
from gguf_verify.support.sealed import mapped_here, of_fixed_size
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


# ---- commands --------------------------------------------------------------------------------------------------------
# Commands that are kept by a process of their own.


def test_a_process_with_many_descriptors_starts_commands() -> None:
    """The keeper inherits the numbers of descriptors, of which select() takes no more than 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2,048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    null, processes = os.open(os.devnull, os.O_RDONLY), Processes()
    held = [os.dup(null) for _ in range(1100)]
    try:
        ended = processes.run(["sh", "-c", "exit 7"], 60.0)
    finally:
        for each in (null, *held):
            os.close(each)
        processes.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (ended.exit_code, ended.said) == (7, ())


# ---- forked memory ---------------------------------------------------------------------------------------------------
# Memory that the verifier shares with other processes: a function of it that runs in a fork has none.


def shared_mappings() -> set[str]:
    """The writable shared mappings of this process: lines of /proc/self/maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line for line in lines if line.split()[1].startswith("rw") and line.split()[1].endswith("s")}


@contextmanager
def everything_shared() -> Iterator[None]:
    """The log of another process's keeper, operands, lanes, and a bar of progress with its lock."""
    before = shared_mappings()
    with ExitStack() as stack:
        stack.enter_context(progress_bar("something", 1, "", shown=False))
        stack.enter_context(closing(Spawned("gguf_verify.distributed.local_process")))
        stack.enter_context(closing(MemoryFile(5000)))
        stack.enter_context(closing(Lane(of_fixed_size(4096), mapped=True)))
        handle, _shared = shared_memory(4096)
        stack.callback(os.close, handle)
        assert len(shared_mappings() - before) >= 4
        yield


def test_a_fork_has_no_memory_that_is_shared_with_others() -> None:
    def run(link: Connection) -> None:
        link.send(shared_mappings())

    before = shared_mappings()
    with everything_shared(), closing(Forked(run, False, 60.0)) as made:
        assert made.link.recv() - before == set()
        assert made.wait(60) == 0


def test_shared_memory_is_shared() -> None:
    """It is one memory in both mappings of its file, of which a fork has none."""
    handle = of_fixed_size(4096)
    one, other = (np.frombuffer(mapped_here(handle, 4096), np.uint8) for _ in range(2))
    one[7] = 9
    assert other[7] == 9
    os.close(handle)
