"""Bytes as a file that nobody can change any more: for programs and loaders that take a path and nothing else."""

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

#: Numbers of the paths that were given away.
_numbers = itertools.count(1)
_OF_SIZE = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS = _OF_SIZE | fcntl.F_SEAL_WRITE


@contextlib.contextmanager
def sealed(content: bytes) -> Iterator[int]:
    """A descriptor of a file in memory that holds these bytes and can no longer be written. Where the system has none,
    of a file in the run's scratch folder that has no name any more. Raises OSError."""
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
    """A descriptor of a file in memory, of zeros, which takes no memory before it is written. Nobody can change its
    size any more, so that to read it where it is mapped is never a fatal signal. Raises OSError."""
    fd = os.memfd_create("gguf-verify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _OF_SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def has_fixed_size(fd: int) -> bool:
    """Whether nobody can change the size of a file. Raises OSError where it is no file in memory."""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _OF_SIZE == _OF_SIZE


def mapped_here(fd: int, nbytes: int) -> mmap.mmap:
    """A file in memory, mapped to be written by this process and by the one that it is shared with. A fork does not
    have the mapping: it may run a kernel, which could write to what this process shares with others. Raises OSError,
    ValueError and OverflowError."""
    made = mmap.mmap(fd, nbytes)
    made.madvise(mmap.MADV_DONTFORK)
    return made


@contextlib.contextmanager
def sealed_path(content: bytes) -> Iterator[str]:
    """A path in this process of such a file. No other content ever had this path here: loaders know by their paths what
    they have loaded, and a descriptor's number is used again. Raises OSError."""
    with sealed(content) as fd:
        spelling = "".join("/." if bit == "1" else "/" for bit in f"{next(_numbers):b}")
        yield f"/proc/self/fd{spelling}/{fd}"


def load_library(content: bytes) -> ctypes.CDLL:
    """A shared library that consists of exactly these bytes. Raises OSError where it does not load."""
    with sealed_path(content) as path:
        return ctypes.CDLL(path)


def run_on(content: bytes, before: list[str], after: list[str]) -> subprocess.CompletedProcess[str]:
    """What a program says of these bytes; their path stands between `before` and `after` in its command line."""
    with sealed(content) as fd:
        command = [*before, f"/proc/self/fd/{fd}", *after]
        return subprocess.run(command, pass_fds=[fd], capture_output=True, text=True, errors="replace", check=False)
