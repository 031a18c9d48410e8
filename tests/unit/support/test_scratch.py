"""The folder of a run's temporary files goes with the run, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_verify.support import scratch, sealed
from gguf_verify.support.errors import EnvironmentFault
from tests.support.processes import gone
from tests.support.tools import ROOT


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder as TMPDIR, in which this process has made nothing."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(scratch, "_own", None)
    monkeypatch.setattr(scratch, "_joined", None)
    monkeypatch.delenv(scratch.VARIABLE, raising=False)
    yield folder
    scratch.remove()


def python(place: Path, script: str, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "harness"), "TMPDIR": str(place), **more}
    return subprocess.Popen(
        [sys.executable, "-c", f"from gguf_verify.support import scratch\n{script}"], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_all_lies_in_one_private_folder(place: Path) -> None:
    first, second = scratch.folder("a"), scratch.folder("a")
    assert first != second
    assert {first.parent, second.parent, scratch.shared("cache").parent} == {scratch.top()}
    assert scratch.shared("cache") == scratch.shared("cache")
    assert {p.stat().st_mode & 0o7777 for p in (scratch.top(), first, second, scratch.shared("cache"))} == {0o700}
    assert [p.name for p in place.iterdir()] == [scratch.top().name]
    assert scratch.top().name.startswith("gguf-verify-")
    with scratch.temporary("b") as folder:
        (folder / "file").touch()
    assert not folder.exists()
    with scratch.file("c") as file:
        file.write(b"bytes")
    scratch.remove()
    assert list(place.iterdir()) == []
    assert scratch.top().exists()  # made anew


def test_no_folder_can_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "none"))
    with pytest.raises(EnvironmentFault, match="cannot create a temporary folder: No such file or directory"):
        scratch.folder("a")


@pytest.mark.parametrize("how", ["", "raise SystemExit(3)", "raise ValueError", "import threading; 1 / 0"])
def test_it_goes_when_the_process_ends(place: Path, how: str) -> None:
    process = python(place, f"(scratch.folder('a') / 'file').touch()\n{how}")
    process.communicate(timeout=60)
    assert list(place.iterdir()) == []


def test_a_child_uses_that_of_its_parent(place: Path) -> None:
    child = python(place, "print(scratch.folder('a'))", **scratch.environment())
    out, _ = child.communicate(timeout=60)
    assert Path(out.strip()).parent == scratch.top()
    assert Path(out.strip()).exists()  # it goes with the parent's
    missing = python(place, "print(scratch.top())", **{scratch.VARIABLE: str(place / "none")})
    out, _ = missing.communicate(timeout=60)
    assert Path(out.strip()).parent == place
    scratch.top().chmod(0o755)
    others = python(place, "print(scratch.top())", **scratch.environment())
    assert Path(others.communicate(timeout=60)[0].strip()) != scratch.top()
    scratch.remove()
    assert list(place.iterdir()) == []


def test_a_fork_leaves_it_to_its_parent(place: Path) -> None:
    top = scratch.top()
    pid = os.fork()
    if not pid:
        scratch.remove()
        os._exit(0 if scratch.top() == top else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert top.exists()


def test_the_folder_of_a_killed_run_goes_with_the_next(place: Path) -> None:
    process = python(place, "print(scratch.folder('a'), flush=True)\ninput()")
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip()).parent
    scratch.top()
    assert left.exists()  # it is in use
    process.kill()
    process.communicate(timeout=60)
    assert gone([process.pid])
    scratch.remove()
    assert left.exists()
    assert scratch.top().exists()
    assert not left.exists()


def test_other_folders_stay(place: Path, tmp_path: Path) -> None:
    """A folder of another mode, one without a lock, a link to one, a file; an empty one goes after a day."""
    outside = tmp_path / "outside"
    for folder in (outside, place / "gguf-verify-open", place / "gguf-verify-full", place / "gguf-verify-new"):
        folder.mkdir(mode=0o700)
        if folder != place / "gguf-verify-new":
            (folder / "file").touch()
    for folder in (outside, place / "gguf-verify-open"):
        (folder / "lock").touch()
    (place / "gguf-verify-open").chmod(0o755)
    (place / "gguf-verify-link").symlink_to(outside)
    (place / "gguf-verify-file").touch()
    (place / "gguf-verify-old").mkdir(mode=0o700)
    then = time.time() - 100_000
    for name in ("old", "full"):
        os.utime(place / f"gguf-verify-{name}", (then, then))
    before = {p.name for p in place.iterdir()}
    scratch.remove_stale(place)
    assert before - {p.name for p in place.iterdir()} == {"gguf-verify-old"}
    assert (outside / "file").exists()


def test_a_lock_that_is_a_pipe_does_not_block(place: Path) -> None:
    folder = place / "gguf-verify-pipe"
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "lock")
    scratch.remove_stale(place)
    assert list(place.iterdir()) in ([], [folder])


def test_whatever_is_in_it_goes(place: Path, tmp_path: Path) -> None:
    """Folders without permissions, deeper than any path or stack, links out of it; their targets stay."""
    top, outside = scratch.folder("hostile"), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    (top / "link").symlink_to(outside)
    (top / "to nothing").symlink_to("nowhere")
    os.mkfifo(top / "pipe")
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").touch()
    (top / "closed" / "inner" / "link").symlink_to(outside)
    (top / "closed" / "inner").chmod(0o000)
    (top / "closed").chmod(0o500)
    (top / "lock").mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    scratch.remove()
    assert list(place.iterdir()) == []
    assert (outside / "file").read_text() == "stays"


def test_two_that_clean_at_once(place: Path) -> None:
    """Neither fails, and nothing of a killed run is left."""
    for i in range(20):
        folder = place / f"gguf-verify-{i}"
        folder.mkdir(mode=0o700)
        (folder / "lock").touch()
        for j in range(50):
            (folder / f"{j}").touch()
    script = f"from pathlib import Path\ninput()\nscratch.remove_stale(Path({str(place)!r}))"
    both = [python(place, script) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert list(place.iterdir()) == []


# ---- files that nobody can change ------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
def test_a_sealed_file_holds_what_it_was_given(place: Path, monkeypatch: pytest.MonkeyPatch, memory: bool) -> None:
    if not memory:
        monkeypatch.setattr(sealed, "_in_memory", lambda _content: None)
    content = os.urandom(100_000)
    with sealed.sealed_path(content) as one, sealed.sealed_path(b"other") as other:
        assert Path(one).read_bytes() == content
        assert Path(other).read_bytes() == b"other"
        if memory:
            fd = os.open(one, os.O_RDWR)
            with pytest.raises(OSError, match="Operation not permitted"):
                os.write(fd, b"x")
            os.close(fd)
    paths = []
    for i in range(40):
        with sealed.sealed_path(b"%d" % i) as path:
            assert Path(path).read_bytes() == b"%d" % i
            paths.append(path)
    assert len(set(paths)) == 40
    assert sealed.run_on(b"in it", ["cat"], []).stdout == "in it"
    assert len(list(scratch.top().iterdir())) == (1 if scratch._own else 0)


def test_invalid_libraries_do_not_load() -> None:
    for content in (b"", b"garbage"):  # a library that is cut short may end the process: digests come first
        with pytest.raises(OSError):  # noqa: PT011 - the loader's own words
            sealed.load_library(content)
