"""Attacks on the memory of other processes: the verifier's, and a bystander's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from ._attack import Targets, attack, every, libc

_NO_SIGHT = "a PID namespace; else seccomp (ptrace, process_vm_*, pidfd_getfd) and Landlock, which makes ptrace fail"
_MINE = b"mine"


class _Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _by_file(pid: int, address: int, content: bytes) -> None:
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as f:
        f.seek(address)
        f.write(content)


def _by_call(pid: int, address: int, content: bytes) -> None:
    mine = _Range(ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p), len(content))
    theirs = _Range(address, len(content))
    if libc.process_vm_writev(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_writev")


def _trace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    libc.ptrace.restype = ctypes.c_long
    said = libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), ctypes.c_void_p(data))
    if said < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


@attack(_NO_SIGHT, r"bystander: memory: b.mine")
def writes_memory_by_file(t: Targets) -> None:
    """It writes into a bystander's memory by /proc/PID/mem."""
    _by_file(t.bystander["pid"], t.bystander["address"], _MINE)


@attack(_NO_SIGHT, r"bystander: memory: b..{8}mine")
def writes_memory_by_call(t: Targets) -> None:
    """It writes into a bystander's memory by process_vm_writev."""
    _by_call(t.bystander["pid"], t.bystander["address"] + 8, _MINE)


@attack(_NO_SIGHT, r"bystander: memory: b..{16}mine")
def writes_memory_by_tracing(t: Targets) -> None:
    """It attaches to a bystander as a debugger does, and writes into its memory."""
    pid = t.bystander["pid"]
    _trace(16, pid)  # PTRACE_ATTACH
    try:
        end = time.monotonic() + 2.0
        while "t (tracing" not in Path(f"/proc/{pid}/status").read_text() and time.monotonic() < end:
            time.sleep(0.001)
        _trace(5, pid, t.bystander["address"] + 16, int.from_bytes(_MINE * 2, "little"))  # PTRACE_POKEDATA
    finally:
        _trace(17, pid)  # PTRACE_DETACH


def _redirects(t: Targets, write: object) -> None:
    """Overwrite the name of the report wherever it stands in the verifier's memory, by one of the same length."""
    name = os.path.basename(t.report).encode()
    other = b"forged.json"[: len(name)]
    assert len(other) == len(name)
    for pid in t.ancestors():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, rights = line.split()[:2]
                start, end = (int(v, 16) for v in span.split("-"))
                if not rights.startswith("rw") or end - start > 1 << 28:
                    continue
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    held = memory.read(end - start)
                    at = held.find(name)
                    while at >= 0:
                        with contextlib.suppress(OSError):
                            write(pid, start + at, other)  # type: ignore[operator]
                        at = held.find(name, at + 1)


@attack(_NO_SIGHT, r"the report|appeared: work/forged.json", alone=True, harmless_if_stopped=True)
def redirects_the_report(t: Targets) -> None:
    """It overwrites the report's name in the verifier's memory by /proc/PID/mem, so that another file is written."""
    _redirects(t, _by_file)


@attack(_NO_SIGHT, r"the report|appeared: work/forged.json", alone=True, harmless_if_stopped=True)
def redirects_the_report_by_call(t: Targets) -> None:
    """It overwrites the report's name in the verifier's memory by process_vm_writev."""
    _redirects(t, _by_call)


@attack(_NO_SIGHT, r"the report", alone=True)
def dies_with_the_verifier(t: Targets) -> None:
    """It traces the verifier with PTRACE_O_EXITKILL, so that its own end is the verifier's."""
    every(t.ancestors(), lambda pid: _trace(0x4206, pid, 0, 0x100000))  # PTRACE_SEIZE
    os._exit(0)


@attack(f"{_NO_SIGHT}; seccomp (prlimit64 of another process)", r"bystander: limits")
def changes_limits_of_others(t: Targets) -> None:
    """It lowers the limits of a bystander and of the verifier: a file that is too large is a signal."""
    import resource

    every([t.bystander["pid"]], lambda pid: resource.prlimit(pid, resource.RLIMIT_CORE, (7, 7)))
    every([t.bystander["pid"]], lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (7, 7)))


@attack(f"{_NO_SIGHT}; seccomp (prlimit64 of another process)", r"the report", alone=True, harmless_if_stopped=True)
def forbids_the_report(t: Targets) -> None:
    """It limits the size of the verifier's files to nothing, so that it cannot write the report."""
    import resource

    every(t.ancestors(), lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0)))


@attack("a PID namespace; seccomp (setpriority)", r"bystander: priority")
def slows_others(t: Targets) -> None:
    """It lowers the priority of a bystander."""
    os.setpriority(os.PRIO_PROCESS, t.bystander["pid"], 19)


@attack(_NO_SIGHT, r"bystander: pipe: .*mine")
def writes_into_descriptors(t: Targets) -> None:
    """It writes into a bystander's pipe, by /proc/PID/fd."""
    with open(f"/proc/{t.bystander['pid']}/fd/{t.bystander['pipe']}", "wb", buffering=0) as f:
        f.write(b"mine")


@attack(_NO_SIGHT, r"bystander: pipe: .*stolen")
def steals_descriptors(t: Targets) -> None:
    """It takes a bystander's pipe by pidfd_getfd, and writes into it."""
    from ._attack import call

    handle = call(438, os.pidfd_open(t.bystander["pid"]), t.bystander["pipe"], 0)
    os.write(handle, b"stolen")


@attack(_NO_SIGHT, r"forged words", alone=True, harmless_if_stopped=True)
def forges_output(t: Targets) -> None:
    """It writes a verdict into every file and pipe that the verifier holds, its standard output too."""

    def write(path: str) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)
        try:
            os.write(handle, f"VERIFIED FORGED-{t.token}\n".encode())
        finally:
            os.close(handle)

    for pid in t.ancestors():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    where = os.readlink(f"/proc/{pid}/fd/{fd}")
                    # what the test made, or what has no name
                    if "(deleted)" in where or where.startswith(("pipe:", f"{t.outside}/")):
                        write(f"/proc/{pid}/fd/{fd}")


@attack(_NO_SIGHT, r"llama.cpp died", alone=True, exits=(1, 3))
def breaks_the_links_of_others(t: Targets) -> None:
    """It takes every socket of the verifier by pidfd_getfd, and sends garbage to llama.cpp's process as if it were the
    verifier."""
    import socket

    from ._attack import call

    for pid in t.ancestors():
        handle = os.pidfd_open(pid)
        for fd in range(3, 64):
            with contextlib.suppress(OSError, ValueError):
                stolen = call(438, handle, fd, 0)
                taken = socket.socket(fileno=stolen)
                if taken.family == socket.AF_UNIX:
                    taken.send(b"\0\0\0\x04junk" * 3, socket.MSG_DONTWAIT)
                    taken.shutdown(socket.SHUT_RDWR)
    os.kill(os.getpid(), signal.SIGKILL)
