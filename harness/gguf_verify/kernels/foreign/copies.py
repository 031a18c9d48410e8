"""Copies of a foreign kernel's files, which its processes get in place of the originals.

So the code that runs is the code that was hashed.
Within the sandbox nothing else of the user's folders is visible, except packages installed in a folder of Python's
path: those are identified by their versions.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from ...support import scratch
from ...support.errors import EnvironmentFault, UsageError
from ...support.text import printable

#: Limits for one kernel: files, bytes in all, bytes of a file that is not named, and seconds to copy them.
MOST_FILES, MOST_BYTES, MOST_OF_ONE, MOST_SECONDS = 10_000, 1 << 30, 1 << 28, 60.0
#: Levels of folders; deeper ones are not copied.
_MOST_DEPTH = 64
#: Errors of a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT)


#: Folders of Python's path that could not be copied; the process does not try them again.
_uncopied: set[Path] = set()


class Copies:
    """Copies of the folders of these files, with everything below except hidden files and links that lead outside.

    Of a folder that is too large, only the files directly in it and Python packages in it are copied.

    Args:
        named: the kernel's file, its libraries, its oracle.
        path: folders of Python's path, which are copied, too, except for packages that are installed in them. If that
            is too much, or a link leads out of one, the kernel sees the folders themselves.

    Raises UsageError if a named file cannot be read, or the folders of the named files are too large.
    """

    def __init__(self, named: Iterable[Path], path: Iterable[Path] = ()) -> None:
        #: Each named file → its real path, if that is behind a link.
        self.named = {Path(os.path.abspath(each)): Path(os.path.realpath(each)) for each in named}
        self._top = Path(os.path.realpath(scratch.folder("kernel")))
        #: Folder → its copy. Two names of one folder share a copy.
        self.folders: dict[Path, Path] = {}
        #: Installed packages in folders that are copied.
        self.installed: tuple[Path, ...] = ()
        #: Folders of Python's path that are not copied, and those that are.
        self.uncopied: tuple[Path, ...] = ()
        self.imported: tuple[Path, ...] = ()
        imported = tuple(
            each
            for each in path
            if each.is_dir() and each not in _uncopied and not holds_all(Path(os.path.realpath(each)))
        )
        self.uncopied = tuple(set(path) - set(imported))
        try:
            try:
                self._copy(imported)
                self.imported = imported
            except UsageError:
                if not imported:
                    raise
                scratch.remove_folder(self._top)
                self._top.mkdir(mode=0o700)
                self.folders, self.uncopied = {}, tuple(path)
                self._copy(())
                _uncopied.update(imported)
            self.installed = tuple(folder / name for folder in self.imported for name in installed_in(folder))
        except BaseException:
            self.close()
            raise

    @property
    def shown(self) -> tuple[Path, ...]:
        """Files and folders that a process of the kernel sees as they are."""
        return self.installed + self.uncopied

    def _copy(self, imported: Sequence[Path]) -> None:
        every = {*self.named, *self.named.values()}
        above = {*(path.parent for path in every), *imported, *(Path(os.path.realpath(each)) for each in imported)}
        outermost = sorted(folder for folder in above if above.isdisjoint(folder.parents))
        folders = {folder: Path(os.path.realpath(folder)) for folder in outermost}
        reached = tuple(folder for folder, real in folders.items() if folder == real)
        installed = frozenset(
            Path(os.path.realpath(folder), name) for folder in imported for name in installed_in(folder)
        )
        for number, real in enumerate(sorted(set(folders.values()))):
            copy = self._top / str(number)
            names = [folder for folder in folders if folders[folder] == real]
            below = ((path, folder) for path in {*every, *imported} for folder in names if path.is_relative_to(folder))
            named = frozenset(real / path.relative_to(folder) for path, folder in below)
            whole = any(name in imported for name in names)
            alone = whole and not any(path.is_relative_to(folder) for path in every for folder in names)
            _copy(_Asked(real, named, reached, installed, alone), copy, whole)
            self.folders |= dict.fromkeys(names, copy)

    def copy_of(self, path: Path) -> Path:
        """Return the path of a file's copy. It lies within the copies, whatever the links."""
        for each in (path, self.named.get(path, path)):
            folder = next(folder for folder in self.folders if each.is_relative_to(folder))
            copy = Path(os.path.realpath(self.folders[folder] / each.relative_to(folder)))
            if copy.is_relative_to(self._top):
                return copy
        return self._top / "nothing"

    def close(self) -> None:
        """Remove the copies."""
        scratch.remove_folder(self._top)


@cache
def installed_in(folder: Path) -> Mapping[str, tuple[str, str]]:
    """Return the packages installed in a folder: name of a file or folder → package and version.
    A package with invalid metadata is skipped.
    """
    found: dict[str, tuple[str, str]] = {}
    for package in metadata.distributions(path=[str(folder)]):
        try:
            of, files = (package.name, package.version), package.files or ()
        except Exception:  # the parsers of e-mail headers and CSV are not written for hostile text
            continue
        if all(isinstance(each, str) for each in of):
            tops = {file.parts[0] for file in files if file.parts}
            found |= dict.fromkeys(tops - {os.pardir, os.sep, "__pycache__"}, of)
    return found


class _TooLarge(Exception):
    """A folder exceeds a limit, or contains a link that leads outside."""


class _Room:
    """The amount that may still be copied."""

    def __init__(self) -> None:
        self.files, self.nbytes, self._end = MOST_FILES, MOST_BYTES, time.monotonic() + MOST_SECONDS

    def take(self, files: int, nbytes: int) -> None:
        self.files, self.nbytes = self.files - files, self.nbytes - nbytes
        if self.files < 0 or self.nbytes < 0 or time.monotonic() > self._end:
            raise _TooLarge


@dataclass(frozen=True)
class _Asked:
    """A folder to copy.

    Args:
        folder: its real path.
        named: the named files in it.
        reached: all folders whose copies appear at the original paths.
        skipped: paths that are not copied.
        closed: whether links that lead outside are an error.
    """

    folder: Path
    named: frozenset[Path]
    reached: tuple[Path, ...]
    skipped: frozenset[Path]
    closed: bool

    def holds(self, path: Path) -> bool:
        """Return whether a path is named, or a named file is below it."""
        return any(file.is_relative_to(path) for file in self.named)

    def link(self, path: Path) -> str | None:
        """Return the target for the copy of a link; None if it leads outside.

        Within its folder the target is relative, so that the link works at every place where the copy appears.
        """
        real = Path(os.path.realpath(path))
        if real.is_relative_to(self.folder):
            return os.path.relpath(real, path.parent)
        return str(real) if any(real.is_relative_to(folder) for folder in self.reached) else None


def holds_all(folder: Path) -> bool:
    """Return whether a folder is too general to copy: the user's home or this run's files are below it."""
    every = ("/", os.path.expanduser("~"), tempfile.gettempdir(), scratch.top())
    return any(Path(os.path.realpath(each)).is_relative_to(folder) for each in every if os.path.isabs(each))


def _copy(asked: _Asked, copy: Path, whole: bool) -> None:
    for deep in (False,) if holds_all(asked.folder) else (True,) if whole else (True, False):
        try:
            _copy_folder(asked, asked.folder, copy, _Room(), deep)
            return
        except _TooLarge:
            scratch.remove_folder(copy)
        except OSError as error:
            if error.errno in _FULL:
                raise EnvironmentFault(f"the kernel's files cannot be copied: {error.strerror}; set TMPDIR") from None
            raise UsageError(
                f"{printable(str(error.filename or asked.folder), 200)}, a file of the kernel, cannot be read: "
                f"{error.strerror}"
            ) from None
    raise UsageError(
        f"the kernel's folder {printable(str(asked.folder), 200)} holds more than {MOST_FILES:,} files or "
        f"{MOST_BYTES:,} bytes, or takes more than {MOST_SECONDS:g} s to copy; put the kernel into a separate folder"
    )


def _copy_folder(asked: _Asked, folder: Path, copy: Path, room: _Room, deep: bool) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if asked.holds(folder):
            raise
        return  # not readable, or removed meanwhile; a missing unnamed folder is no fault
    try:
        room.take(1, 0)
        copy.mkdir(mode=0o700)
        with os.scandir(handle) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            path, there = folder / entry.name, copy / entry.name
            holds = asked.holds(path)
            if (entry.name.startswith(".") or entry.name == "__pycache__" or path in asked.skipped) and not holds:
                continue
            if entry.is_symlink():
                if (leads := asked.link(path)) is not None:
                    room.take(1, 0)
                    there.symlink_to(leads)
                elif asked.closed:
                    raise _TooLarge
            elif entry.is_dir(follow_symlinks=False):
                shallow = len(folder.parts) < len(asked.folder.parts) + _MOST_DEPTH
                if holds or (shallow and (deep or os.path.isfile(path / "__init__.py"))):
                    _copy_folder(asked, path, there, room, deep or not holds)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(path, there, room, path in asked.named)
    finally:
        os.close(handle)


def _copy_file(path: Path, copy: Path, room: _Room, named: bool) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if named:
            raise
        return  # not readable, or removed meanwhile
    with open(handle, "rb") as source:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or (about.st_size > MOST_OF_ONE and not named):
            return
        room.take(1, about.st_size)
        left = about.st_size  # the file may grow meanwhile
        with copy.open("xb") as target:
            while left and (chunk := source.read(min(left, 1 << 20))):
                left -= target.write(chunk)
                room.take(0, 0)
    copy.chmod(0o500 if about.st_mode & 0o100 else 0o400)
