"""Files that the user names: inputs that are read whole, and outputs that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from .errors import UsageError
from .text import printable


def read_input(path: Path, what: str, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. A pipe, which may never end, and a device are refused.

    Raises UsageError with one line that names the file, and `what` it should be.
    """
    shown = printable(path.name or str(path))
    try:
        # opening a pipe that has no writer would block
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"cannot read the {what} {shown}: it is not a regular file")
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {shown}: {error.strerror}") from None
    except ValueError as error:  # of a path that holds a NUL, for example
        raise UsageError(f"cannot read the {what} {shown}: {printable(str(error), 200)}") from None
    if len(content) > most:
        raise UsageError(f"{shown}: the file has more than {most:,} bytes")
    return content


def write_output(path: Path, content: bytes) -> None:
    """Whole or not at all: a new file of a random name, which no link can stand in for, takes the path's place. What a
    link or a device of that name stands for is written in place. Raises OSError."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(content)
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)  # with O_EXCL and O_NOFOLLOW
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


__all__ = ["read_input", "write_output"]
