"""Immutable files in memory, for programs and loaders that accept only a path."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import mmap
import os
import subprocess
from collections.abc import Iterator

from . import scratch

#: Counter that makes each path unique.
_numbers = itertools.count(1)
_OF_SIZE = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS = _OF_SIZE | fcntl.F_SEAL_WRITE


@contextlib.contextmanager
def sealed(content: bytes) -> Iterator[int]:
    """Yield a descriptor of a sealed memory file with this content, which no one can change.

    Without memory files, the descriptor is that of a nameless file in the run's scratch folder. Raises OSError.
    """
    fd = _in_memory(content)
    if fd is None:
        with scratch.file("sealed") as written:
            written.write(content)
            written.flush()
            fd = os.open(f"/proc/self/fd/{written.fileno()}", os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _in_memory(content: bytes) -> int | None:
    try:
        fd = os.memfd_create("gguf-verify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:  # vm.memfd_noexec may forbid it
        return None
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def of_fixed_size(nbytes: int) -> int:
    """Return a descriptor of a memory file of `nbytes` zeros, whose pages take memory only once written.

    Its size is sealed, so that reading a mapping of it never raises SIGBUS. Raises OSError.
    """
    fd = os.memfd_create("gguf-verify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _OF_SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def has_fixed_size(fd: int) -> bool:
    """Whether the size of a file is sealed. Raises OSError if it is not a memory file."""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _OF_SIZE == _OF_SIZE


def mapped_here(fd: int, nbytes: int) -> mmap.mmap:
    """Map a memory file for writing by this process and the one it is shared with.

    Forked children do not inherit the mapping: they may run a kernel, which could write to the shared memory. Raises
    OSError, ValueError and OverflowError.
    """
    made = mmap.mmap(fd, nbytes)
    made.madvise(mmap.MADV_DONTFORK)
    return made


@contextlib.contextmanager
def sealed_path(content: bytes) -> Iterator[str]:
    """Yield a path of such a file in this process, unique to this content.

    Loaders identify what they have loaded by path, and descriptor numbers are reused. So each path is spelled
    differently, with a new number of "/." parts. Raises OSError.
    """
    with sealed(content) as fd:
        spelling = "".join("/." if bit == "1" else "/" for bit in f"{next(_numbers):b}")
        yield f"/proc/self/fd{spelling}/{fd}"


def load_library(content: bytes) -> ctypes.CDLL:
    """Load a shared library of exactly these bytes. Raises OSError if it does not load."""
    with sealed_path(content) as path:
        return ctypes.CDLL(path)


def run_on(content: bytes, before: list[str], after: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program on these bytes; their path is put between `before` and `after` in its command line."""
    with sealed(content) as fd:
        command = [*before, f"/proc/self/fd/{fd}", *after]
        return subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, errors="replace", check=False)
