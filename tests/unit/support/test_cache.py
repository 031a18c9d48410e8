"""The folder of builds: its place, its entries and its size."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gguf_verify.support import cache, scratch
from gguf_verify.support.errors import UsageError
from tests.support.tools import ROOT
from tools.measure.__main__ import main as measure


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that the cache's folder is made in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(cache.SIZE_VARIABLE, raising=False)
    monkeypatch.delenv(scratch.VARIABLE, raising=False)
    (tmp_path / "home").mkdir(mode=0o755)
    return tmp_path / "home"


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_the_folder_is_private(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "gguf-verify").mkdir(mode=0o755)
    (home / "gguf-verify").chmod(0o755)
    assert cache.cache_dir() == home / "gguf-verify"
    assert (home / "gguf-verify").stat().st_mode & 0o7777 == 0o700
    assert cache.kept(("a",), ".so", b"content") == b"content"
    assert cache.index_folder().stat().st_mode & 0o7777 == 0o700
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("which", "mode", "why"),
    [
        ("gguf-verify", 0o777, "gguf-verify can be written by everybody"),
        ("gguf-verify", 0o1777, "gguf-verify can be written by everybody"),
        (".", 0o777, "home, which holds it, can be written by everybody"),
        (".", 0o1777, None),
    ],
)
def test_a_folder_that_others_can_write_is_not_used(
    home: Path, capsys: pytest.CaptureFixture[str], which: str, mode: int, why: str | None
) -> None:
    folder = home / "gguf-verify"
    folder.mkdir()
    (home / which).chmod(mode)
    used = cache.cache_dir()
    assert cache.cache_dir() == used
    said = capsys.readouterr().err
    if why is None:
        assert (used, said) == (folder, "")
    else:
        assert used.parent == scratch.top()
        assert used.stat().st_mode & 0o7777 == 0o700
        assert why in said
        assert said.endswith("; a private temporary folder is used instead\n")
        assert said.count("\n") == 1


def test_a_folder_of_a_group(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in which this user is alone, as many systems make for each user, is not others."""
    folder = home / "gguf-verify"
    folder.mkdir()
    folder.chmod(0o770)
    monkeypatch.setattr("gguf_verify.support.folders._own_group", lambda _gid: False)
    assert cache.cache_dir().parent == scratch.top()
    cache._kept.cache_clear()
    monkeypatch.setattr("gguf_verify.support.folders._own_group", lambda _gid: True)
    assert cache.cache_dir() == folder


def test_a_folder_of_another_user_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "gguf-verify").mkdir()
    scratch.top()
    someone = os.geteuid() + 1000
    monkeypatch.setattr(os, "geteuid", lambda: someone)
    assert cache.cache_dir().parent == scratch.top()
    assert "gguf-verify belongs to another user" in capsys.readouterr().err


def test_links_are_followed_to_what_they_name(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "cache").mkdir()
    (home / "gguf-verify").symlink_to("../open/cache")
    assert cache.cache_dir() == tmp_path / "open" / "cache"
    cache._kept.cache_clear()
    (tmp_path / "open").chmod(0o777)
    assert cache.cache_dir().parent == scratch.top()
    assert "open, which holds it, can be written by everybody" in capsys.readouterr().err


def test_size_in_words(monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"": 1 << 30, "5": 5, "3K": 3 << 10, "2M": 2 << 20, "1G": 1 << 30}
    for text, nbytes in sizes.items():
        monkeypatch.setenv(cache.SIZE_VARIABLE, text)
        assert cache.size_limit() == nbytes
    for text in ("-1", "1T", "K", "1.5G", "\x1b[31m", "9" * 40):
        monkeypatch.setenv(cache.SIZE_VARIABLE, text)
        with pytest.raises(UsageError, match="GGUF_VERIFY_CACHE_SIZE must be a number of bytes") as caught:
            cache.cache_dir()
        assert str(caught.value).isprintable()
    assert measure(["mutation", "--help"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_is_kept_beyond_the_run(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv(cache.SIZE_VARIABLE, "0")
    cache.kept(("a",), ".so", b"content")
    assert cache.taken(("a",), ".so") == b"content"
    assert cache.index_folder().is_relative_to(scratch.top())
    assert list(home.rglob("*.so")) == []


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_a_kept_entry_is_taken(home: Path) -> None:
    assert cache.taken(("a",), ".so") is None
    cache.kept(("a",), ".so", b"content")
    assert cache.taken(("a",), ".so") == b"content"
    assert cache.taken(("a",), ".o") is None
    assert cache.taken(("a", ""), ".so") is None
    cache.forget(("a",), ".so")
    assert cache.taken(("a",), ".so") is None


@pytest.mark.parametrize("of", ["index", "content"])
@pytest.mark.parametrize("how", ["replaced", "cut short", "empty", "gone", "a link", "a folder", "a pipe", "writable"])
def test_a_changed_entry_is_not_taken(
    home: Path, tmp_path: Path, of: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gguf_verify")
    cache.kept(("a",), ".so", b"content")
    (path,) = (p for p in cache.index_folder().iterdir() if (p.suffix == ".index") == (of == "index"))
    was = path.read_bytes()
    if how == "writable":
        path.chmod(0o666)
    else:
        path.unlink()
    if how == "replaced":
        path.write_bytes(b"x" + was[1:])
    elif how in ("cut short", "empty"):
        path.write_bytes(was[:-1] if how == "cut short" else b"")
    elif how == "a link":  # to a valid entry
        (tmp_path / "beside").write_bytes(was)
        path.symlink_to(tmp_path / "beside")
    elif how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    assert cache.taken(("a",), ".so") is None
    assert [str(path) in record.getMessage() for record in caplog.records] == ([] if how == "gone" else [True])
    if how != "a folder":  # which no file can replace
        cache.kept(("a",), ".so", b"content")
        assert cache.taken(("a",), ".so") == b"content"


def test_a_full_disk_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept = cache.index_folder()
    assert cache.kept(("full",), ".so", b"content") == b"content"
    assert cache.taken(("full",), ".so") is None
    assert list(kept.iterdir()) == []


def test_on_a_full_disk_the_temporary_folder_takes_its_place(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every build would be repeated at each use. Another cache is not affected."""
    place, kept = os.replace, cache.cache_dir()

    def full(source: str, target: Path) -> None:
        if target.is_relative_to(kept):
            raise OSError(28, "No space left on device")
        place(source, target)

    monkeypatch.setattr(os, "replace", full)
    for name in ("moved", "also moved"):
        assert cache.kept((name,), ".so", b"content") == b"content"
        assert cache.taken((name,), ".so") == b"content"
    assert cache.cache_dir() != kept
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        f"the cache of compiled kernels is not used: {kept} cannot be written: No space left on device; a private "
        "temporary folder is used instead"
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert cache.cache_dir() == home / "other" / "gguf-verify"


def test_little_memory_is_enough_to_read_a_small_entry(home: Path) -> None:
    cache.kept(("a",), ".so", b"content")
    script = "import resource; from gguf_verify.support import cache; cache.taken(('b',), '.so')\n"
    script += "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)); print(cache.taken(('a',), '.so'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "b'content'\n", done.stderr


# ---- size ------------------------------------------------------------------------------------------------------------


def _aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_the_least_recently_used_goes_first(home: Path) -> None:
    for i in range(4):
        cache.kept((str(i),), ".so", bytes([i]) * 5000)  # two pages, and one for its index
    for path in cache.index_folder().iterdir():
        _aged(path, 1000)
    assert cache.taken(("1",), ".so") is not None
    cache.evict(cache.index_folder(), 4 * 4096)
    assert [cache.taken((str(i),), ".so") is not None for i in range(4)].count(True) <= 1
    assert cache.taken(("1",), ".so") == b"\1" * 5000
    assert sum(-(-p.stat().st_size // 4096) * 4096 for p in cache.index_folder().iterdir()) <= 4 * 4096


def test_writing_keeps_the_cache_small(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SIZE_VARIABLE, "64K")
    for i in range(40):
        cache.kept((str(i),), ".so", os.urandom(5000))
    assert 0 < len(list(cache.index_folder().glob("*.so"))) <= 8
    assert cache.taken(("39",), ".so") is not None


def test_files_of_killed_writers_go_after_a_day(home: Path) -> None:
    cache.kept(("a",), ".so", b"content")
    folder = cache.index_folder()
    for name in (".part-old", ".part-new"):
        (folder / name).write_bytes(b"half")
    _aged(folder / ".part-old", 100_000)
    for name in ("0" * 32 + ".so", "tmpab12_cde", "mutants.jsonl"):  # the first two are an older version's
        (folder.parent / name).write_bytes(b"old")
        _aged(folder.parent / name, 100_000)
    cache.evict(folder, 1 << 30)
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == [".part-new"]
    assert [p.name for p in folder.parent.iterdir() if p.is_file()] == ["mutants.jsonl"]
    assert cache.taken(("a",), ".so") == b"content"


_HAMMER = """
import sys, random
from gguf_verify.support import cache
seed = int(sys.argv[1])
draw = random.Random(seed)
found = 0
for _ in range(300):
    key = draw.randrange(12)
    content = bytes([key]) * (4000 + key)
    taken = cache.taken((str(key),), ".so")
    assert taken in (None, content), (key, taken[:9])
    found += taken is not None
    if taken is None:
        cache.kept((str(key),), ".so", content)
    if draw.random() < 0.1:
        cache.evict(cache.index_folder(), 40_000)
print(found)
"""


def test_processes_that_read_write_and_evict_at_once(home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'harness'}", cache.SIZE_VARIABLE: "60K"}
    command = [sys.executable, "-c", _HAMMER]
    running = [
        subprocess.Popen([*command, str(i)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(3)
    ]
    for process in running:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert int(out) > 0
    assert not list(cache.index_folder().glob(".part-*"))
