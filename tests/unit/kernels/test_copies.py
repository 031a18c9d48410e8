"""What a confined kernel finds in place of its files, however they lie, and what of it counts as opened."""

from __future__ import annotations

import errno
import os
import py_compile
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign import copies as room
from gguf_verify.kernels.foreign.copies import Copies, installed_in
from gguf_verify.kernels.foreign.opened import Opened, Watch
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.processes.sandbox import Confinement, of_kernel, sandboxed
from gguf_verify.support import scratch
from gguf_verify.support.errors import UsageError
from gguf_verify.support.sources import file_digest
from tests.support.needs import need
from tests.unit.processes.test_confinement import DENIED, LIMITS, Attempts

DEEP = 1200


@dataclass(frozen=True)
class Layout:
    """Files of a folder, each of which holds its own name, and how a kernel finds them.

    Args:
        files: those that are made.
        links: name → where it leads; "TOP" is the folder.
        named: what the user names; the first is the kernel.
        found: file that is read → the file of which it has the text; None where it is not there.
        also: makes what is neither.
    """

    files: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ("k/k.py",)
    found: tuple[tuple[str, str | None], ...] = ()
    also: Callable[[Path], object] = lambda _: None


def _deep(top: Path) -> None:
    at = os.open(top / "k", os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


def _odd(top: Path) -> None:
    os.mkfifo(top / "k/fifo")
    (top / "k/endless").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as made, (top / "k/large").open("wb") as large:
        large.truncate(3 << 30)
        os.chdir(top)
        made.bind("k/socket")


LAYOUTS = {
    "beside": Layout(("k/k.py", "k/a.py", "k/p/__init__.py", "k/p/q/b.bin"), found=(("k/p/q/b.bin", "k/p/q/b.bin"),)),
    "a folder that is a link": Layout(
        ("real/k.so", "real/l.so.1"), (("real/l.so", "l.so.1"), ("lnk", "real")), ("lnk/k.so",),
        (("lnk/l.so", "real/l.so.1"), ("real/l.so", "real/l.so.1")),
    ),
    "a chain of links": Layout(
        ("c/k.py", "c/h.py"), (("b/k.py", "../c/k.py"), ("a/k.py", "../b/k.py")), ("a/k.py",),
        (("a/k.py", "c/k.py"), ("c/h.py", "c/h.py"), ("b/k.py", None)),
    ),
    "a link to above": Layout(
        ("k/k.py", "k/a.py"), (("k/p/a.py", "../a.py"), ("k/q/a.py", "TOP/k/a.py")),
        found=(("k/p/a.py", "k/a.py"), ("k/q/a.py", "k/a.py")),
    ),
    "named behind a link": Layout(
        ("k/k.toml", "build/k.so"), (("k/build", "../build"),), ("k/k.toml", "k/build/k.so"),
        (("k/build/k.so", "build/k.so"),),
    ),
    "links that lead out": Layout(
        ("k/k.py", "secret", "out/s"), (("k/s", "../secret"), ("k/o", "TOP/out"), ("k/up", "..")),
        found=(("k/s", None), ("k/o/s", None), ("k/up/secret", None), ("secret", None)),
    ),
    "links in circles": Layout(
        ("k/k.py",), (("k/a", "b"), ("k/b", "a"), ("k/c", "c"), ("k/here", ".")),
        found=(("k/here/k.py", "k/k.py"), ("k/a", None)),
    ),
    "hidden": Layout(("k/k.py", "k/.env", "k/.git/x"), found=(("k/.env", None), ("k/.git/x", None))),
    "a hidden folder that is named": Layout(
        ("k/k.toml", "k/.b/k.so", "k/.b/l.so"), (), ("k/k.toml", "k/.b/k.so"), (("k/.b/l.so", "k/.b/l.so"),)
    ),
    "odd names": Layout(
        ("a b,ü\n\x1b[1m:%s/k.py", "a b,ü\n\x1b[1m:%s/\udcff.bin"), named=("a b,ü\n\x1b[1m:%s/k.py",),
        found=(("a b,ü\n\x1b[1m:%s/\udcff.bin", "a b,ü\n\x1b[1m:%s/\udcff.bin"),),
    ),
    "folders without an end": Layout(("k/k.py",), also=_deep),
    "what is no file": Layout(
        ("k/k.py",), found=(("k/fifo", None), ("k/endless", None), ("k/socket", None), ("k/large", None)), also=_odd
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel finds what lies beside its files, and nothing else; what it opened is listed with the copy's digest."""
    need("bubblewrap")
    monkeypatch.chdir(tmp_path)
    layout = LAYOUTS[name]
    for file in layout.files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(os.fsencode(file))
    for link, leads in layout.links:
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(leads.replace("TOP", str(tmp_path)))
    layout.also(tmp_path)
    copies, opened = Copies([Path(file) for file in layout.named]), Opened()
    opened.watch(copies)
    try:
        # what comes later is not what runs
        digests = {file: file_digest(tmp_path / file) for file in layout.files}
        for file in layout.files:
            (tmp_path / file).write_text("exchanged")
        with sandboxed("bubblewrap"):
            made = Attempts(of_kernel(copies=copies.folders))
        try:
            for file, holds in layout.found:
                said = made.says(f"Path({str(tmp_path / file)!r}).read_bytes()")
                assert (said in DENIED) if holds is None else (said == repr(os.fsencode(holds))), (file, said)
        finally:
            made.child.close()
        opened.close()
        for file in layout.named:
            assert opened.files[str(tmp_path / file)] == digests[os.path.relpath((tmp_path / file).resolve(), tmp_path)]
        for _, holds in layout.found:
            assert holds is None or opened.files[str(tmp_path / holds)] == digests[holds]
    finally:
        copies.close()
        scratch.remove_folder(tmp_path)  # pytest does not remove very deep folders


def test_a_folder_for_temporary_files_below(tmp_path: Path) -> None:
    """Where the process's own folder lies below the kernel's, both are there."""
    need("bubblewrap")
    (tmp_path / "k.py").write_text("k")
    copy = tmp_path / "run" / "copy"
    copy.mkdir(parents=True)
    (copy / "k.py").write_text("k")
    (copy / "run").mkdir()
    own = tmp_path / "run" / "own"
    own.mkdir()
    with sandboxed("bubblewrap"):
        made = Attempts(Confinement(LIMITS, folder=own, copies={tmp_path: copy}))
    assert made.says(f"Path({str(tmp_path / 'k.py')!r}).read_text()") == "'k'"
    assert made.says(f"Path({str(own / 'x')!r}).write_text('y')") == "1"
    made.child.close()


def test_what_grows_is_copied_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows while it is copied takes no more than its size at the beginning."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10)
    stat = os.fstat

    def grown(handle: int) -> os.stat_result:
        about = stat(handle)
        if os.readlink(f"/proc/self/fd/{handle}") == str(log):
            with log.open("ab") as more:
                more.write(b"y" * 10)
        return about

    monkeypatch.setattr(os, "fstat", grown)
    copies = Copies([log])
    assert copies.copy_of(log).read_bytes() == b"x" * 10
    copies.close()


def test_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder above the limits is copied without its subfolders; one that is too large by itself is refused."""
    monkeypatch.setattr(room, "MOST_FILES", 8)
    for file in ("k.py", "p/__init__.py", *(f"data/{i}" for i in range(9))):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    copies = Copies([tmp_path / "k.py"])
    assert copies.copy_of(tmp_path / "p/__init__.py").exists()
    assert not copies.copy_of(tmp_path / "data").exists()
    copies.close()
    for i in range(9):
        (tmp_path / f"{i}.bin").touch()
    with pytest.raises(UsageError, match="put the kernel into a separate folder"):
        Copies([tmp_path / "k.py"])


def test_unreadable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of a kernel, and no fault; neither are those that go meanwhile."""
    (tmp_path / "k.py").touch()
    (tmp_path / "private").mkdir()
    opens = os.open

    def refused(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == tmp_path / "private":  # root may read all
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opens(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refused)
    copies = Copies([tmp_path / "k.py"])
    assert copies.copy_of(tmp_path / "k.py").exists()
    copies.close()


PATH_KERNEL = """
import installed, near.deep, single
from gguf_verify import kernel

FOUND = [installed.VALUE, near.deep.VALUE, single.VALUE]

@kernel(formats=["Q4_0"], semantics="f32")
def gemm(weights, activations, shape):
    return None
"""


def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of PYTHONPATH with two modules, an installed package, and a compiled module that is not its source's."""
    folder = tmp_path / "path"
    info = folder / "installed-1.2.dist-info"
    for each in (folder / "near", folder / "installed", info, tmp_path / "k"):
        each.mkdir(parents=True)
    (folder / "near" / "__init__.py").touch()
    for name in ("near/deep.py", "single.py", "installed/__init__.py", "unused.py"):
        (folder / name).write_text("VALUE = 1\n")
    forged = folder / "__pycache__" / f"single.{sys.implementation.cache_tag}.pyc"
    (tmp_path / "forged.py").write_text("raise SystemExit('forged')\n")
    py_compile.compile(
        str(tmp_path / "forged.py"), str(forged), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1.2\n")
    (info / "RECORD").write_text("installed/__init__.py,,\ninstalled-1.2.dist-info/METADATA,,\n")
    (tmp_path / "k" / "k.py").write_text(PATH_KERNEL)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_modules_of_pythons_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied as the kernel's folder is, without compiled modules; what is installed there has a version."""
    need("bubblewrap")
    folder = on_the_path(tmp_path, monkeypatch)
    with sandboxed("bubblewrap"):
        kernel = open_foreign(f"{tmp_path / 'k/k.py'}:gemm", CpuHost(1))
        (folder / "near" / "deep.py").write_text("exchanged")
        kernel.close()
    below = {path for path in kernel.opened.files if path.startswith(str(tmp_path))}
    modules = ("near/__init__.py", "near/deep.py", "single.py")
    assert below == {str(tmp_path / "k/k.py"), *(str(folder / name) for name in modules)}
    assert kernel.opened.files[str(folder / "near/deep.py")] == file_digest(folder / "single.py")
    assert kernel.opened.packages["installed"] == "1.2"


def too_many(folder: Path) -> None:
    for number in range(6):
        (folder / f"{number}.txt").touch()


def leads_out(folder: Path) -> None:
    (folder / "single.py").rename(folder.parent / "single.py")
    (folder / "single.py").symlink_to(folder.parent / "single.py")


@pytest.mark.parametrize(("most", "change"), [(6, too_many), (room.MOST_FILES, leads_out)])
def test_a_folder_of_pythons_path_that_is_not_copied(
    most: int, change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules are imported as they lie, and reported as not known."""
    need("bubblewrap")
    folder = on_the_path(tmp_path, monkeypatch)
    scratch.remove_folder(folder / "__pycache__")
    monkeypatch.setattr(room, "MOST_FILES", most)
    change(folder)
    with sandboxed("bubblewrap"):
        kernel = open_foreign(f"{tmp_path / 'k/k.py'}:gemm", CpuHost(1))
        kernel.close()
    assert kernel.opened.files["modules in path, a folder of Python's path"] is None


def test_a_kernel_in_a_folder_of_pythons_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy runs, whether the folder is on the path or one above it is."""
    need("bubblewrap")
    folder = tmp_path / "above" / "k"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text("VALUE = 1\n")
    (folder / "k.py").write_text(PATH_KERNEL.replace("installed, near.deep, single", "helper").replace(
        "[installed.VALUE, near.deep.VALUE, single.VALUE]", "helper.VALUE"
    ))  # fmt: skip
    for path in (folder, folder.parent):
        monkeypatch.setenv("PYTHONPATH", str(path))
        with sandboxed("bubblewrap"):
            kernel = open_foreign(f"{folder / 'k.py'}:gemm", CpuHost(1))
            kernel.close()
        assert {p for p in kernel.opened.files if p.startswith(str(tmp_path))} == {
            str(folder / name) for name in ("k.py", "helper.py")
        }


@pytest.mark.parametrize(
    ("path", "helper"),
    [("link", "real/helper.py"), ("x/site-packages", "x/site-packages/helper.py"), ("k/.h", "k/.h/helper.py"),
     ("k/__pycache__", "k/__pycache__/helper.py")],
)  # fmt: skip
def test_how_a_folder_of_pythons_path_is_called(
    path: str, helper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy runs also of a folder that is named by a link, or as folders of installed packages and hidden ones are."""
    need("bubblewrap")
    (tmp_path / "link").symlink_to("real")
    for name in ("k", "k/.h", "k/__pycache__", "real", "x/site-packages"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / helper).write_text("VALUE = 1\n")
    (tmp_path / "k/k.py").write_text(PATH_KERNEL.replace("installed, near.deep, single", "helper").replace(
        "[installed.VALUE, near.deep.VALUE, single.VALUE]", "helper.VALUE"
    ))  # fmt: skip
    if path == "k/__pycache__":
        (tmp_path / "k/helper.py").write_text("raise SystemExit('its namesake')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / path))
    with sandboxed("bubblewrap"):
        kernel = open_foreign(f"{tmp_path / 'k/k.py'}:gemm", CpuHost(1))
        kernel.close()
    found = {os.path.realpath(each) for each in kernel.opened.files if each.startswith(str(tmp_path))}
    assert found == {str(tmp_path / "k/k.py"), str(tmp_path / helper)}


@pytest.mark.parametrize(
    ("metadata", "record"),
    [
        (b"Name: h\n", b"h.py,,\n"),
        (b"Version: 1\n", b"h.py,,\n"),
        (b"Name: h\nVersion: 1\n", b"h.py,\xff\xfe,\n"),
        (b"Name: h\nVersion: 1\n", b"h.py,sha256=x,1,more,more\n"),
        (None, b"h.py,,\n"),
    ],
)
def test_a_package_whose_metadata_are_not_valid_is_none(tmp_path: Path, metadata: bytes | None, record: bytes) -> None:
    for name, texts in {
        "h": (metadata, record),
        "good": (b"Name: good\nVersion: 2\n", b"good.py,,\n/etc/x,,\n"),
    }.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        for file, text in zip(("METADATA", "RECORD"), texts, strict=True):
            if text is not None:
                (folder / file).write_bytes(text)
    assert installed_in(tmp_path) == {"good.py": ("good", "2")}


def test_a_kernel_below_a_folder_of_pythons_path_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is seen as it lies, and the kernel's own is still a copy."""
    need("bubblewrap")
    folder = tmp_path / "above" / "k"
    folder.mkdir(parents=True)
    for number in range(9):
        (folder.parent / f"{number}.txt").touch()
    (folder / "helper.py").write_text("VALUE = 1\n")
    (folder / "k.py").write_text(PATH_KERNEL.replace("installed, near.deep, single", "helper").replace(
        "[installed.VALUE, near.deep.VALUE, single.VALUE]", "helper.VALUE"
    ))  # fmt: skip
    monkeypatch.setattr(room, "MOST_FILES", 8)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    with sandboxed("bubblewrap"):
        kernel = open_foreign(f"{folder / 'k.py'}:gemm", CpuHost(1))
        kernel.close()
    assert kernel.opened.files["modules in above, a folder of Python's path"] is None
    assert kernel.opened.files[str(folder / "helper.py")] == file_digest(folder / "helper.py")


def test_more_is_opened_than_the_system_can_list(tmp_path: Path) -> None:
    """Then every file counts as opened."""
    for name in ("a", "b", "unopened"):
        (tmp_path / name).touch()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watch = Watch({tmp_path: tmp_path})
    for number in range(most + 2):  # the same file twice in a row would be one event
        os.close(os.open(tmp_path / "ab"[number % 2], os.O_RDONLY))
    assert watch.opened() == {tmp_path / name for name in ("a", "b", "unopened")}
    watch.close()
