"""Files that the user names: inputs are read whole, outputs are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError
from .text import printable

#: Most seconds that the reader of a pipe may take to read more of an output.
_PIPE_LIMIT = 30.0
#: (device, inode) of each file that was read → its path; None while no command runs.
_inputs: dict[tuple[int, int], str] | None = None


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading. Pipes, which may block, and devices are refused.

    Raises OSError, and ValueError for a path that holds a NUL.
    """
    # O_NONBLOCK: opening a pipe without a writer would block
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        note_input(path, status)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_lock(path: Path) -> io.TextIOWrapper:
    """Open a file for `flock`, creating it if needed. Links, pipes and devices are refused. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return open(descriptor, "r+", encoding="utf-8", errors="replace")
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, what: str, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Pipes and devices are refused.

    Raises UsageError with one line that names the file and `what` it should be.
    """
    shown = printable(path.name or str(path))
    try:
        with open_regular(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {shown}: {error.strerror}") from None
    except ValueError as error:  # of a path that holds a NUL, for example
        raise UsageError(f"cannot read the {what} {shown}: {printable(str(error), 200)}") from None
    if len(content) > most:
        raise UsageError(f"cannot read the {what} {shown}: it has more than {most:,} bytes")
    return content


@contextmanager
def inputs_kept() -> Iterator[None]:
    """Record files that are read in this block, so that `write_output` refuses to overwrite them under any name."""
    global _inputs
    outer, _inputs = _inputs, {}
    try:
        yield
    finally:
        _inputs = outer


def note_input(path: Path | str, status: os.stat_result) -> None:
    """Record a file as an input of the running command."""
    if _inputs is not None:
        _inputs[status.st_dev, status.st_ino] = os.path.abspath(path)


def expect_no_input(path: Path) -> None:
    """Raise OSError if an output would overwrite an input."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        known = None if _inputs is None else _inputs.get((status.st_dev, status.st_ino))
        # The path is checked too: the inode of an input that was removed meanwhile may have been reused.
        if known is not None and os.path.exists(known) and path.samefile(known):
            raise OSError(errno.EEXIST, "it was read as an input", str(path))


def write_output(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: write a new file of a random name, then rename it to the path.

    A character device or a pipe is written in place; nothing else that is no regular file is written, nor is a pipe
    that nobody reads. A symbolic link of this user is followed. Raises OSError.
    """
    expect_no_input(path)
    if path.exists() and not path.is_file():
        _write_in_place(path, content)
        return
    if path.is_symlink():
        if path.lstat().st_uid not in (os.geteuid(), 0):
            raise OSError(errno.ELOOP, "it is a link of another user", str(path))
        path = path.resolve()
    with replaced(path, f".{path.name[:64]}.") as file:
        file.write(content)
        os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())


def _write_in_place(path: Path, content: bytes) -> None:
    """Write to a character device or a pipe, and wait for a reader no longer than `_PIPE_LIMIT`. Raises OSError."""
    mode = path.stat().st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    # O_NONBLOCK: opening a pipe that nobody reads would block, and so would writing to a full one
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "nobody reads it", str(path)) from None
    try:
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        left = memoryview(content)
        while left:
            if not ready.poll(_PIPE_LIMIT * 1000):
                raise OSError(errno.ETIMEDOUT, f"nobody read it for {_PIPE_LIMIT:g} s", str(path))
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: Path, prefix: str) -> Iterator[io.BufferedWriter]:
    """Yield a new file beside the path, private to this user, that replaces the path when the block ends.

    Another process sees all of the content or none; an exception leaves the old file. `prefix` begins the new file's
    name. Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
