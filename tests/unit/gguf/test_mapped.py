"""Files as they are mapped: their bytes, their digests, and their paths."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.gguf.mapped import Mapped
from gguf_verify.gguf.model import open_model
from gguf_verify.support.errors import EnvironmentFault, HarnessError, NoSuchFile
from tests.support import corpus

PART, PARTS = 1 << 20, 16
MOST = 2 << 20


def mapped_pages(path: Path) -> int:
    """Bytes of the mapped file that count as this process's memory."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and len(words) >= 5:
            found = words[-1] == str(path)
        elif found and words[0] == "Rss:":
            total += int(words[1]) << 10
    return total


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(np.arange(PARTS * PART // 4, dtype=np.uint32).tobytes() + b"rest")
    return path


def test_parts_that_were_requested_long_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_verify.gguf.mapped._MAPPED", MOST)
    mapped, content = Mapped(path), path.read_bytes()
    views, most = [], 0
    for i in range(PARTS):
        views.append(mapped.part(i * PART + 3, (i + 1) * PART + 3))  # no part begins with a page
        assert views[-1].sum() >= 0
        most = max(most, mapped_pages(path))
    assert 0 < most <= MOST + 2 * PART
    for i, view in enumerate(views):  # all of them still hold their bytes
        assert view.tobytes() == content[i * PART + 3 : (i + 1) * PART + 3]
    mapped.close()
    assert views[0][1:5].view(np.uint32) == 1  # also those that are still held now
    with pytest.raises(ValueError, match="is closed"):
        mapped.part(0, 1)


def test_small_parts_are_not_remembered_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_verify.gguf.mapped._MAPPED", 64 * mmap.PAGESIZE)
    mapped = Mapped(path)
    for i in range(10_000):
        assert len(mapped.part(i % 7, i % 7)) == 0
    assert len(mapped._parts) <= 64
    mapped.close()


# ---- paths -----------------------------------------------------------------------------------------------------------
# Paths that name no file, or one that cannot be read here: one line and the right exit code, without waiting.


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
