"""Attacks on files: the user's, the verifier's, the run's own."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from ._attack import Targets, attack, every, lasting, orphan

_READ_ONLY = "file system: a read-only view but for the kernel's own folder (bwrap, Landlock)"


def _forger(t: Targets) -> bytes:
    return Path(t.forger).read_bytes()


def _overwrite(path: str, content: bytes) -> None:
    """In place where that can be, else by another file of that name."""
    try:
        with open(path, "r+b") as f:
            f.write(content)
            f.truncate()
    except OSError:
        other = f"{path}.new"
        Path(other).write_bytes(content)
        os.replace(other, path)


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@attack(_READ_ONLY, r"changed: home/victims/overwrites_home")
def overwrites_home(t: Targets) -> None:
    """It writes into the user's files, removes, renames and opens them to all."""
    every(
        [0, 1, 2, 3],
        lambda i: (
            lambda: _overwrite(t.victim("overwrites_home"), b"mine now"),
            lambda: os.unlink(t.victim("removes_home")),
            lambda: os.rename(t.victim("renames_home"), t.victim("renamed")),
            lambda: os.chmod(t.victim("opens_home"), 0o777 | stat.S_ISUID),
        )[i](),
    )


@attack(_READ_ONLY, r"appeared: home/\.ssh/authorized_keys2")
def appears_in_home(t: Targets) -> None:
    """It makes files that the user's programs read: start-up files, keys, links and programs on the path."""
    every(
        [".ssh/authorized_keys2", ".bashrc", ".local/bin/c++", ".config/systemd/user/a.service"],
        lambda name: _program(Path(t.home, name), "#!/bin/sh\ntrue\n"),
    )


@attack(_READ_ONLY, r"appeared: home/\.local/lib")
def preloads(t: Targets) -> None:
    """It leaves what later processes of Python run before their own code: .pth files, usercustomize, sitecustomize."""
    import sysconfig

    user = sysconfig.get_path("purelib", "posix_user", {"userbase": f"{t.home}/.local"})
    code = f"import ctypes; ctypes.CDLL({t.forger!r})\n"
    every(
        [f"{user}/a.pth", f"{user}/usercustomize.py", f"{t.project}/harness/sitecustomize.py",
         f"{t.work}/sitecustomize.py", f"{t.work}/numpy.py"],
        lambda name: _program(Path(name), code),
    )  # fmt: skip


@attack(_READ_ONLY, r"changed: project/")
def changes_the_project(t: Targets) -> None:
    """It writes into the verifier's own sources, compiled modules, headers of kernels, and adds a module."""
    package = f"{t.project}/harness/gguf_verify"
    with contextlib.suppress(OSError):
        Path(f"{package}/nothing.py").write_text("pass\n")
    compiled = [str(p) for p in Path(package, "report").rglob("*.pyc")][:3]
    every(
        [f"{package}/verification/pipeline.py", f"{package}/report/annotations.py", *compiled,
         f"{t.project}/kernels/emulator/standard.hpp"],
        lambda path: _append(path, b"\n"),
    )  # fmt: skip


def _append(path: str, content: bytes) -> None:
    with open(path, "ab") as f:
        f.write(content)


@attack(f"{_READ_ONLY}; the cache out of sight", r"forged|changed: cache", alone=True, moments=("call", "import"))
def forges_by_the_cache(t: Targets) -> None:
    """It replaces each compiled library in the cache by one that forges a pass when the verifier loads it."""
    content = _forger(t)
    every([str(p) for p in Path(t.cache).rglob("*") if p.suffix in (".so", ".o")], lambda p: _overwrite(p, content))


@attack(f"{_READ_ONLY}; the cache out of sight", r"changed: cache")
def forges_by_headers(t: Targets) -> None:
    """It replaces precompiled headers and lists in the cache, and adds entries."""
    constructor = f"\n__attribute__((constructor)) static void f() {{ __builtin_trap(); }} // {t.token}\n"
    found = [p for p in Path(t.cache).rglob("*") if p.is_file()]
    every([str(p) for p in found if p.suffix == ".hpp"], lambda p: _append(p, constructor.encode()))
    every([str(p) for p in found if p.suffix == ".gch"], os.unlink)
    every([str(p) for p in found if p.suffix == ".json"], lambda p: _overwrite(p, b"[]"))
    for folder in {p.parent for p in found}:
        every([str(folder / f"hostile-{t.token}.so")], lambda p: Path(p).write_bytes(_forger(t)))


@attack(_READ_ONLY, r"the report", alone=True, harmless_if_stopped=True, exits=(1, 3))
def report_is_a_folder(t: Targets) -> None:
    """It makes a folder where the report is to be written, so that there is none."""
    with contextlib.suppress(OSError):
        os.unlink(t.report)
    os.makedirs(f"{t.report}/full")


@attack(_READ_ONLY, r"changed: home/victims/report_is_a_link", alone=True, harmless_if_stopped=True, exits=(1, 3))
def report_is_a_link(t: Targets) -> None:
    """It puts a link where the report is to be written, so that the verifier overwrites another file."""
    with contextlib.suppress(OSError):
        os.unlink(t.report)
    with contextlib.suppress(OSError):
        os.rmdir(t.report)
    os.symlink(t.victim("report_is_a_link"), t.report)


@attack(f"{_READ_ONLY}; a PID namespace or a keeper", r"left:|the report", alone=True)
def forges_the_report_later(t: Targets) -> None:
    """A process of its own waits for the verifier's end, then writes a report that says "verified"."""
    content, root = Path(t.honest).read_bytes(), t.root

    def wait() -> None:
        if not Path(f"/proc/{root}").exists():
            _overwrite(t.report, content)

    orphan(lambda: lasting(wait))


@attack(_READ_ONLY, r"appeared: home/deceived", alone=True, harmless_if_stopped=True, exits=(1, 3))
def forges_the_report_now(t: Targets) -> None:
    """It writes a report that says "verified" and then holds up, so that whoever reads it early is deceived."""
    _overwrite(t.report, Path(t.honest).read_bytes())
    with open(t.lock, "w") as f:
        f.write("the report says verified")


@attack(_READ_ONLY, r"changed: work/model", alone=True, harmless_if_stopped=True, exits=(1, 3))
def changes_the_model(t: Targets) -> None:
    """It writes into the model's file after it was read."""
    with open(t.model, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\0")


@attack(_READ_ONLY, r"changed: work/kernel.py", exits=(1, 2, 3))
def changes_itself(t: Targets) -> None:
    """It overwrites its own source, so that another one seems to have been verified."""
    _append(t.kernel, b"\n# an honest kernel\n")


@attack(_READ_ONLY, r"(appeared|changed): tmp/")
def litters(t: Targets) -> None:
    """It leaves files in the folders of temporary files, and removes those of others."""
    every(["/tmp", "/var/tmp", "/dev/shm", t.tmp],
          lambda folder: Path(f"{folder}/gguf-verify-hostile-{t.token}").write_text("left"))  # fmt: skip
    every([f"{t.tmp}/somebody.txt"], os.unlink)
    for path in Path(t.tmp).glob("gguf-verify-*/**/*"):
        if path.is_file():
            every([str(path)], lambda p: _append(p, b"\n"))


@attack("seccomp (shmget, mq_open) or an IPC namespace", r"System V shared memory")
def keeps_memory(t: Targets) -> None:
    """It makes System V shared memory, which outlives every process."""
    from ._attack import libc

    identity = libc.shmget(int(t.token[:7], 16), 1 << 20, 0o1600)
    print("shared memory", identity)


@attack("limits of file size; a folder that goes with the process", r"appeared: tmp/", alone=True)
def fills_the_disk(t: Targets) -> None:
    """It writes a large file, a sparse one of a terabyte, and 20,000 small ones."""
    folder = f"{os.environ.get('TMPDIR', t.tmp)}/full-{t.token}"
    for base in {folder, f"{t.tmp}/full-{t.token}"}:
        with contextlib.suppress(OSError):
            os.makedirs(base)
            with open(f"{base}/sparse", "wb") as f, contextlib.suppress(OSError):
                f.truncate(1 << 40)
            with open(f"{base}/large", "wb") as f, contextlib.suppress(OSError):
                for _ in range(200):
                    f.write(bytes(1 << 20))
            for i in range(20000):
                with open(f"{base}/{i}", "w"):
                    pass
