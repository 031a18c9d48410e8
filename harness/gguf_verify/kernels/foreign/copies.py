"""Copies of a foreign kernel's files, which its processes find in place of them: what runs is what was digested.

Inside the boundary nothing else of the user's folders is there. The system tells which of the copies are opened
(inotify(7)); the kernel's own processes, which could lie, are not asked.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from inotify_simple import INotify, flags

from ...gguf import printable
from ...support import scratch
from ...support.errors import UsageError
from ...support.sources import file_digest

#: Of one kernel: files, bytes in all, bytes of a file that is not named, and seconds to copy them.
MOST_FILES, MOST_BYTES, MOST_OF_ONE, MOST_SECONDS = 10_000, 1 << 30, 1 << 28, 10.0
#: Folders below these are never copied as a whole: they hold everything that a user has.
_OF_ALL = (Path("/"), Path.home(), Path(tempfile.gettempdir()))


class Copies:
    """The folders of these files, copied with all that lies below them but hidden files and links that lead outside.

    Of a folder that is too large, only the files that lie directly in it are copied, and packages of Python in it.

    Args:
        named: the kernel's file, its libraries, its oracle.

    Raises UsageError where a file cannot be read, or these are too many still.
    """

    def __init__(self, named: Iterable[Path]) -> None:
        self._files = {Path(absolute(path)) for path in named for absolute in (os.path.abspath, os.path.realpath)}
        self._top = scratch.folder("kernel")
        self._opened: set[Path] = set()
        self._watched: dict[int, Path] = {}
        self._events: INotify | None = None
        #: Folder → its copy.
        self.folders: dict[Path, Path] = {}
        try:
            for number, folder in enumerate(_outermost(path.parent for path in self._files)):
                copy = self._top / str(number)
                _copy(folder, copy, {path for path in self._files if path.is_relative_to(folder)})
                self.folders[folder] = copy
            self._watch()
        except BaseException:
            self.close()
            raise

    def _watch(self) -> None:
        """Begin to note what is opened. Where the system cannot, all of it counts as opened."""
        try:
            self._events = INotify(nonblocking=True)
            for folder, copy in self.folders.items():
                for place in (copy, *_folders_below(copy)):
                    number = self._events.add_watch(place, flags.OPEN)
                    self._watched[number] = folder / place.relative_to(copy)
        except OSError:
            self._stop_watching()
            self._opened = set(self._all())

    def _stop_watching(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _all(self) -> Iterator[Path]:
        for folder, copy in self.folders.items():
            yield from (folder / path.relative_to(copy) for path in copy.rglob("*") if path.is_file())

    def opened(self) -> Mapping[str, str | None]:
        """Path → sha256 of the copy, of each file that was opened until now, and of those that are named."""
        if self._events is not None:
            for event in self._events.read(timeout=0):
                if event.mask & flags.Q_OVERFLOW:
                    self._opened |= set(self._all())
                elif not event.mask & flags.ISDIR and event.wd in self._watched:
                    self._opened.add(self._watched[event.wd] / event.name)
        return {str(path): file_digest(self.copy_of(path)) for path in sorted({*self._opened, *self._files})}

    def copy_of(self, path: Path) -> Path:
        """Where the copy of a file lies."""
        folder = next(folder for folder in self.folders if path.is_relative_to(folder))
        return self.folders[folder] / path.relative_to(folder)

    def close(self) -> None:
        """Remove the copies."""
        self._stop_watching()
        scratch.remove_folder(self._top)


def _outermost(folders: Iterable[Path]) -> list[Path]:
    found = set(folders)
    return sorted(folder for folder in found if found.isdisjoint(folder.parents))


def _folders_below(top: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(top):
        yield from (Path(folder, name) for name in names if not Path(folder, name).is_symlink())


class _TooLarge(Exception):
    """A folder exceeds a limit."""


class _Room:
    """What may still be copied."""

    def __init__(self) -> None:
        self.files, self.nbytes, self._end = MOST_FILES, MOST_BYTES, time.monotonic() + MOST_SECONDS

    def take(self, nbytes: int) -> None:
        self.files, self.nbytes = self.files - 1, self.nbytes - nbytes
        if self.files < 0 or self.nbytes < 0 or time.monotonic() > self._end:
            raise _TooLarge


def _copy(folder: Path, copy: Path, named: set[Path]) -> None:
    whole = not any(each.is_relative_to(folder) for each in _OF_ALL)
    for deep in (True, False) if whole else (False,):
        try:
            _copy_folder(folder, copy, named, _Room(), deep)
            return
        except _TooLarge:
            scratch.remove_folder(copy)
        except OSError as error:
            raise UsageError(
                f"{printable(str(error.filename or folder), 200)}, a file of the kernel, cannot be read: "
                f"{error.strerror}"
            ) from None  # fmt: skip
    raise UsageError(
        f"the kernel's folder {printable(str(folder), 200)} holds more than {MOST_FILES:,} files or {MOST_BYTES:,} "
        "bytes; put the kernel into a folder of its own"
    )


def _copy_folder(folder: Path, copy: Path, named: set[Path], room: _Room, deep: bool) -> None:
    copy.mkdir(mode=0o700)
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path, there = folder / entry.name, copy / entry.name
        holds = any(file.is_relative_to(path) for file in named)
        if (entry.name.startswith(".") or entry.name == "__pycache__") and not holds:
            continue
        if entry.is_symlink():
            if path in named or path.resolve().is_relative_to(folder):
                room.take(0)
                there.symlink_to(os.readlink(path))
        elif entry.is_dir():
            if deep or holds or (path / "__init__.py").is_file():
                _copy_folder(path, there, named, room, deep or not holds)
        elif entry.is_file():
            _copy_file(path, there, room, path in named)


def _copy_file(path: Path, copy: Path, room: _Room, named: bool) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if named:
            raise
        return  # no user of the folder may read it
    with open(handle, "rb") as source:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or (about.st_size > MOST_OF_ONE and not named):
            return
        room.take(about.st_size)
        with copy.open("xb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    copy.chmod(0o500 if about.st_mode & 0o100 else 0o400)


__all__ = ["Copies"]
