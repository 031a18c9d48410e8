"""The bytes of a file, mapped into memory, with a check that the file is still the one that was opened."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault, MalformedFile, NoSuchFile
from ..support.files import note_input
from ..support.near import nearest
from ..support.text import printable
from .digests import Digests, digests, pieces_of, whole_of

Bytes = npt.NDArray[np.uint8]
#: Bytes of recently read parts whose pages stay mapped.
_MAPPED = 1 << 28
#: Bytes of one read that only fills the cache.
_LOADED = 1 << 18
#: Errors that mean that the path names no file.
_NO_FILE = (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENXIO, errno.ENODEV)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Return the values that differ once a file was written to.

    Programs that copy files reset the time of the last change (mtime); only the kernel sets that of the inode (ctime).
    A program that has the file mapped can write to it without changing either, and so can one that is faster than the
    kernel's clock: then only the content differs.
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Mapped:
    """A file's bytes, mapped read-only.

    Touching a page that the file no longer has kills the process (SIGBUS); Python code cannot catch that. So `read`
    compares the file's size before it returns a view. A file that is truncated while a view is in use can still kill
    the process, so code that uses a view for long should use smaller views, one after another.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises NoSuchFile if there is no regular file at that path, EnvironmentFault if it cannot be read or mapped
        here.
        """
        self.path = path
        self._file: io.BufferedReader | None = None
        self._map: mmap.mmap | None = None
        #: The parts that were read last, oldest first, and their total bytes.
        self._parts: deque[tuple[int, int]] = deque()
        self._in_parts = 0
        self._counting = threading.Lock()
        try:
            # Checked before opening, since opening a FIFO waits for a writer.
            self._expect_regular(os.stat(path))
            # Opened without waiting, in case a FIFO takes the file's place now.
            self._file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - held until close()
            opened = os.fstat(self._file.fileno())
            self._expect_regular(opened)
            note_input(path, opened)
            self.size = opened.st_size
            #: Device, inode, size and time of change in ns: whether another process opens the same file.
            self.identity = [opened.st_dev, opened.st_ino, opened.st_size, opened.st_mtime_ns]
            self._state = _state(opened)
            self._bytes: Bytes | None = np.zeros(0, dtype=np.uint8)
            if self.size:  # an empty file cannot be mapped
                self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
                self._bytes = np.frombuffer(self._map, np.uint8)
        except NoSuchFile:
            self.close()
            raise
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or "there is not enough memory"
            said = f"{printable(str(path))}: cannot be read: {printable(reason)}"
            number = getattr(error, "errno", None)
            if number == errno.ENOENT:
                raise NoSuchFile(said + _instead_of(path), "no-such-file") from error
            if number in _NO_FILE or type(error) is ValueError:  # a path that holds a NUL
                raise NoSuchFile(said, "unreadable-file") from error
            if number == errno.ENOMEM:
                said += "; a limit of memory here is below the file's size"
            raise EnvironmentFault(said, "unreadable-file") from error

    def _expect_regular(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            folder = stat.S_ISDIR(status.st_mode)
            kind = "a directory" if folder else "not a regular file"
            held = _held_by(self.path) if folder else ""
            said = f"{printable(str(self.path))}: {kind}, expected a GGUF file{held}"
            raise NoSuchFile(said, "is-a-directory" if folder else "unreadable-file")

    def read(self) -> Bytes:
        """Return `uint8[size]`, a view. Raises MalformedFile if the file has shrunk, ValueError if it was closed."""
        now = os.fstat(self.fileno()).st_size
        if now < self.size:
            raise MalformedFile(
                f"{printable(str(self.path))}: byte {now}: the file ends here now, but held {self.size} bytes when it "
                "was opened"
            )
        assert self._bytes is not None
        return self._bytes

    def part(self, start: int, stop: int) -> Bytes:
        """Return `uint8[stop - start]`, a view like that of `read`, for code that reads the file part by part.

        The pages of parts that were read long before no longer count as memory of this process. A view of them stays
        valid: the system maps its pages again. Raises the errors of `read`.
        """
        part = self.read()[start:stop]
        with self._counting:
            if not self._parts or self._parts[-1] != (start, stop):
                self._parts.append((start, stop))
                self._in_parts += _counted(start, stop)
            while self._in_parts > _MAPPED and len(self._parts) > 1:
                self._unmap(*self._parts.popleft())
        return part

    def _unmap(self, start: int, stop: int) -> None:
        self._in_parts -= _counted(start, stop)
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        whole = self._map
        if whole is not None and start < stop:
            whole.madvise(mmap.MADV_DONTNEED, first, stop - first)

    def load(self, nbytes: int) -> None:
        """Load the first bytes into memory. A page that is missing when the mapping is used stops all threads."""
        assert self._file is not None
        with contextlib.suppress(OSError):  # the code that needs them reports the error
            for at in range(0, min(nbytes, self.size), _LOADED):
                os.pread(self._file.fileno(), _LOADED, at)

    def next_data(self, position: int) -> int:
        """Return the first byte from `position` on outside the holes of a sparse file; the size if there is none."""
        assert self._file is not None
        try:
            return min(os.lseek(self._file.fileno(), position, os.SEEK_DATA), self.size)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else position

    def fileno(self) -> int:
        """Return the descriptor of the open file. Raises ValueError if it was closed."""
        if self._file is None:
            raise ValueError(f"{printable(str(self.path))} is closed")
        return self._file.fileno()

    @property
    def changed(self) -> bool:
        """Whether the file is no longer the one that was opened, judging by its inode.

        True if it was written to, truncated or replaced; for changes that the inode does not show, see `_state`.
        """
        if self._file is None:
            return False
        try:
            states = (os.fstat(self._file.fileno()), os.stat(self.path))
        except OSError:
            return True
        return any(_state(state) != self._state for state in states)

    def digests(self, wanted: Callable[[], bool] = lambda: True) -> Digests:
        """Return the digests of the whole file and of its pieces, as long as they are wanted.

        The file is read as a stream and not through the mapping.
        """
        self.read()
        assert self._file is not None
        return digests(self._file.fileno(), wanted)

    def sha256(self) -> str:
        """Return the hex digest of the whole file."""
        self.read()
        assert self._file is not None
        return whole_of(self._file.fileno())

    def pieces(self) -> tuple[bytes, ...]:
        """Return the digests of its pieces, which takes less time."""
        self.read()
        assert self._file is not None
        return pieces_of(self._file.fileno())

    def close(self) -> None:
        """Close the file. Views that are still held keep their pages."""
        self._bytes = self._map = None
        if self._file is not None:
            self._file.close()
            self._file = None


def _counted(start: int, stop: int) -> int:
    """Return the bytes that a part counts as: at least a page, which limits the number of parts to remember."""
    return max(mmap.PAGESIZE, stop - start)


#: The most entries of a folder that are listed for a better message.
_MOST_ENTRIES = 1000


def _models_in(folder: Path) -> list[str]:
    """Return the names of GGUF files in a folder; none if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = (entry.name for entry in islice(entries, _MOST_ENTRIES))
        return sorted(name for name in names if name.lower().endswith(".gguf"))
    return []


def _held_by(folder: Path) -> str:
    """Return a hint to the GGUF files of a folder."""
    names = _models_in(folder)
    if not names:
        return "; it holds no file that ends in .gguf"
    count = "one" if len(names) == 1 else f"{len(names):,}"
    return f"; it holds {count}, give its path: {printable(str(folder / names[0]), 300)}"


def _instead_of(path: Path) -> str:
    """Return a hint to a similar file name, or to the folder that does not exist."""
    if not path.parent.is_dir():
        return f"; there is no folder {printable(str(path.parent), 200)}"
    near = nearest(path.name, _models_in(path.parent)).rstrip()
    return f"; {near}" if near else ""
