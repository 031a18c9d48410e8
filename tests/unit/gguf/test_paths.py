"""Paths that name no file, or one that cannot be read here: one line and the right exit code, without waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_verify.gguf.mapped import Mapped
from gguf_verify.gguf.model import open_model
from gguf_verify.support.errors import EnvironmentFault, HarnessError, NoSuchFile
from tests.support import corpus


def loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def nothing(_path: Path) -> None:
    pass


#: How the path is made, the exit code, and a part of the message.
PATHS: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "nothing": (nothing, 2, "No such file"),
    "a broken link": (lambda path: path.symlink_to("/nowhere/at/all"), 2, "No such file"),
    "a loop of links": (loop, 2, "oo many levels of symbolic links"),
    "a folder": (Path.mkdir, 2, "a directory"),
    "a FIFO": (os.mkfifo, 2, "not a regular file"),
    "a device without bytes": (lambda path: path.symlink_to("/dev/null"), 2, "not a regular file"),
    "a device without end": (lambda path: path.symlink_to("/dev/zero"), 2, "not a regular file"),
    "an empty file": (Path.touch, 4, "an empty file"),
}


@pytest.mark.parametrize("name", PATHS)
def test_kinds_of_paths(name: str, tmp_path: Path) -> None:
    make, code, said = PATHS[name]
    path = tmp_path / "m.gguf"
    make(path)
    with pytest.raises(HarnessError, match=said) as caught:
        open_model(path)
    assert caught.value.exit_code == code
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("path", ["m" * 300, "a\0b", "file/m.gguf", "\x1b[31m"])
def test_names_that_no_file_can_have(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoSuchFile) as caught:
        Mapped(tmp_path / path)
    assert str(caught.value).isprintable()


def test_a_part_that_is_missing_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / corpus.ONE).write_bytes(corpus.part(0))
    with pytest.raises(HarnessError, match="split-part-missing") as caught:
        open_model(tmp_path / corpus.ONE)
    assert caught.value.exit_code == 4
    (tmp_path / corpus.TWO).mkdir()
    with pytest.raises(NoSuchFile, match="a directory"):
        open_model(tmp_path / corpus.ONE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf().data)
    path.chmod(0)
    with pytest.raises(EnvironmentFault, match="Permission denied"):
        open_model(path)


FAULTS = (
    OSError(5, "Input/output error"), PermissionError(13, "Permission denied"), OSError(12, "Cannot allocate memory"),
    MemoryError(), OverflowError("too large"),
)  # fmt: skip


@pytest.mark.parametrize("error", FAULTS)
def test_errors_of_the_machine(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf().data)

    def refuse(*_arguments: object, **_named: object) -> None:
        raise error

    monkeypatch.setattr("gguf_verify.gguf.mapped.mmap.mmap", refuse)
    with pytest.raises(EnvironmentFault, match="cannot be read") as caught:
        open_model(path)
    assert caught.value.exit_code == 3


def test_a_sparse_file_above_a_limit_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf().data)
    os.truncate(path, 200 << 30)
    code = (
        "import resource, sys\n"
        "from gguf_verify.gguf.model import open_model\n"
        "from gguf_verify.support.errors import HarnessError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))\n"
        "try: open_model(sys.argv[1])\n"
        "except HarnessError as error: print(error); sys.exit(error.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "a limit of memory here is below the file's size" in done.stdout
    assert len(done.stdout.splitlines()) == 1
