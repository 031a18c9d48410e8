"""Files that are passed to a process as descriptors: it reads the opened files, and cannot change them."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.gguf.mapped import Mapped
from gguf_verify.hosts.process_child import shared_memory
from gguf_verify.kernels.foreign.operands import MemoryFile
from gguf_verify.processes import boundary, guard, sandbox, syscalls
from gguf_verify.processes.child import Command, Forked, Spawned
from gguf_verify.processes.commands import Processes
from gguf_verify.processes.given import Given
from gguf_verify.processes.mapped import mapped_files
from gguf_verify.processes.sandbox import Confinement
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.lanes import Lane
from gguf_verify.support.paths import CHECKOUT
from gguf_verify.support.progress import progress_bar
from gguf_verify.support.sealed import mapped_here, of_fixed_size
from tests.support.needs import fault_of, need
from tests.support.processes import wait_until

KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=f"{kind}: {why}"))
    for kind, why in {"bubblewrap": fault_of("bubblewrap"), "landlock": fault_of("landlock"), "none": None}.items()
]  # fmt: skip
REFUSED = {"PermissionError", "OSError"}


class Reader:
    """A process that is given files, and the record of those files."""

    def __init__(self) -> None:
        variables = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "harness")])}
        self.child = Spawned("tests.support.attempts", environment=variables, confined=Confinement())
        self.given = Given()

    def says(self, expression: str) -> str:
        self.child.link.send_bytes(expression.encode())
        return self.child.link.recv_bytes().decode()

    def takes(self, *groups: Sequence[Mapped]) -> tuple[list[list[str]], str]:
        """The paths of the files there, and the result."""
        paths = self.given.give(*groups)
        self.child.link.send_bytes(f"take({self.given.announced()!r})".encode())
        self.given.hand_over(self.child.link)
        return paths, self.child.link.recv_bytes().decode()

    def reads(self, path: str) -> str:
        return self.says(f"Path({path!r}).read_text()")


@pytest.fixture(params=KINDS)
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    with sandbox.sandboxed(request.param):
        made = Reader()
        try:
            yield made
        finally:
            made.child.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(stack: ExitStack, *paths: Path) -> list[Mapped]:
    files = [Mapped(path) for path in paths]
    for file in files:
        stack.callback(file.close)
    return files


def written(folder: Path, **texts: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def test_the_opened_file_is_read(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Files of one group lie side by side; where they lay, another file may be by now."""
    first, second = written(tmp_path / "a", one="1", two="2")
    files = opened(stack, first, second)
    first.rename(tmp_path / "elsewhere")
    written(tmp_path / "a", one="another")
    second.unlink()
    ((one, two),), _ = reader.takes(files)
    assert (reader.reads(one), reader.reads(two)) == ("'1'", "'2'")
    assert os.path.dirname(one) == os.path.dirname(two)
    assert [os.path.basename(path) for path in (one, two)] == ["one", "two"]


def test_files_of_one_name(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """In two groups of one message, and one after the other, which is let go of."""
    a, b, c = (opened(stack, *written(tmp_path / name, same=name)) for name in "abc")
    ((of_a,), (of_b,)), _ = reader.takes(a, b)
    assert (reader.reads(of_a), reader.reads(of_b)) == ("'a'", "'b'")
    ((of_b,), (of_c,)), _ = reader.takes(b, c)
    assert (reader.reads(of_b), reader.reads(of_c)) == ("'b'", "'c'")
    assert reader.reads(of_a) == "FileNotFoundError"
    before = reader.says("len(os.listdir('/proc/self/fd'))")
    for files in (a, b, c, a, b, c):
        ((path,),), _ = reader.takes(files)
    assert (path, reader.reads(path)) == (of_c, "'c'")
    assert int(reader.says("len(os.listdir('/proc/self/fd'))")) < int(before)


def test_a_file_that_was_changed_is_given_anew(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Also where the system calls it by the same number."""
    (path,) = written(tmp_path / "a", one="1")
    ((before,),), _ = reader.takes(opened(stack, path))
    path.write_text("22")
    os.utime(path, (1, 1))
    ((given,),), _ = reader.takes(opened(stack, path))
    assert (given == before, reader.reads(given)) == (False, "'22'")


def test_a_file_that_was_closed_is_no_hang(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Its descriptor may be another file's by then."""
    (file,) = opened(stack, *written(tmp_path / "a", one="1"))
    reader.given.give([file])
    file.close()
    with pytest.raises(EnvironmentFault, match="cannot pass files to another process"):
        reader.given.hand_over(reader.child.link)


@pytest.mark.skipif(
    guard.landlock_abi() < 3 or syscalls.filter_fault() is not None, reason="nothing keeps it from that here"
)
@pytest.mark.parametrize("reader", KINDS[:2], indirect=True)
def test_it_cannot_change_them(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Its descriptors are for reading, and a file may be opened again through them."""
    (path,) = written(tmp_path / "a", one="1")
    path.chmod(0o644)
    before = path.stat()
    assert reader.says("only_read()") == "None"
    ((given,),), _ = reader.takes(opened(stack, path))
    handle = f"os.open({given!r}, os.O_RDONLY)"
    for call in (f"open({given!r}, 'r+b')", f"open({given!r}, 'ab')", f"open({given!r}, 'wb')",
                 f"os.truncate({given!r}, 0)", f"os.ftruncate({handle}, 0)", f"os.write({handle}, b'2')",
                 f"os.chmod({given!r}, 0o600)", f"os.fchmod({handle}, 0o600)", f"os.utime({given!r}, (1, 1))",
                 f"os.utime({handle}, (1, 1))", f"os.fchown({handle}, 0, 0)",
                 f"os.setxattr({handle}, 'user.x', b'1')"):  # fmt: skip
        assert reader.says(call) in REFUSED, call
    assert path.read_text() == "1"
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode, before.st_mtime_ns, before.st_ctime_ns
    )  # fmt: skip
    assert reader.reads(given) == "'1'"
    assert reader.says("Path('own').write_text('2')") == "1"


def test_many_files(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """More than one message of the system holds, and more than a process may have: then none, and it goes on."""
    files = opened(stack, *written(tmp_path / "a", **{f"f{i}": str(i) for i in range(450)}))
    (paths,), _ = reader.takes(files)
    assert [reader.reads(paths[i]) for i in (0, 199, 200, 449)] == ["'0'", "'199'", "'200'", "'449'"]
    reader.takes(files[:1])
    assert reader.says("resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))") == "None"
    assert reader.takes(files)[1] == "OSError"
    reader.given.forget()
    (few,), said = reader.takes(files[:2])
    assert (said, reader.reads(few[1])) == ("None", "'1'")


def test_file_names_in_messages(stack: ExitStack, tmp_path: Path) -> None:
    given = Given()
    ((one,), (two,)) = given.give(*(opened(stack, *written(tmp_path / name, m="")) for name in ("a", "b 'c'")))
    said = f"cannot read '{one}', nor {two.replace('/m', '/m2')}: given/77/m"
    assert given.named(said) == f"cannot read '{tmp_path}/a/m', nor {tmp_path}/b 'c'/m2: given/77/m"
    assert given.named(f"in /tmp/own/given-1/{one}") == f"in {tmp_path}/a/m"


def test_naming_is_linear_in_the_message(stack: ExitStack, tmp_path: Path) -> None:
    given = Given()
    given.give(opened(stack, *written(tmp_path, m="")))
    began = time.monotonic()
    for said in ("/" * 4_000_000, "/a" * 2_000_000, "given/" * 500_000):
        assert given.named(said) == said
    assert time.monotonic() - began < 20


# ---- boundary --------------------------------------------------------------------------------------------------------
# Reasons for a missing boundary on a machine, and the folders that are bound on this one.


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
