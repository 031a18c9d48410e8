"""Observation of the files that a foreign kernel uses: those that its processes opened in its own folder, those that
the system's loader mapped into them, and those that its compilers read.

The kernel could lie, so the operating system is asked: it reports files opened in a folder (inotify(7)) and files that
a process has mapped (`/proc/PID/maps`). A system file that is mapped only between two looks is missed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from inotify_simple import INotify, flags

from ...processes.boundary import path_elsewhere
from ...processes.child import Kept
from ...processes.mapped import UNSEEN, mapped_files
from ...support import scratch
from ...support.files import open_regular
from ...support.paths import PACKAGE, kernel_root
from ...support.sources import file_digest
from .copies import MOST_FILES, Copies, holds_all, installed_in

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")


class Watch:
    """Watches which files below some folders are opened.

    Args:
        folders: folder → the folder that is watched in its place, such as its copy.

    Raises OSError if the system's limit of watches is reached.
    """

    def __init__(self, folders: Mapping[Path, Path]) -> None:
        self._folders = folders
        self._events = INotify(nonblocking=True)
        self._places: dict[int, Path] = {}
        self._opened: set[Path] = set()
        try:
            for folder, watched in folders.items():
                for place, _ in islice(_walk(watched), MOST_FILES):
                    self._places[self._events.add_watch(place, flags.OPEN)] = folder / place.relative_to(watched)
        except OSError:
            self.close()
            raise

    def opened(self) -> set[Path]:
        """Return the files opened so far; if the system dropped events, all files."""
        for event in () if self._events.closed else self._events.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                self._opened |= everything(self._folders)
            elif not event.mask & flags.ISDIR and event.wd in self._places:
                self._opened.add(self._places[event.wd] / event.name)
        return self._opened

    def close(self) -> None:
        """Stop watching."""
        self._events.close()


def everything(folders: Mapping[Path, Path]) -> set[Path]:
    """Return all files below some folders."""
    found = set()
    for folder, there in folders.items():
        for place, names in islice(_walk(there), MOST_FILES):
            found |= {folder / place.relative_to(there) / name for name in names if os.path.isfile(place / name)}
    return found


def _walk(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and its subfolders, with the names of their files.

    A folder that contains the user's whole home is not descended into.
    """
    alone = holds_all(top)
    for place, names, files in os.walk(top):
        yield Path(place), files
        names[:] = [] if alone else [name for name in names if not os.path.islink(os.path.join(place, name))]


class Opened:
    """The files that were opened, with their digests.

    Files of Python and of this project are not listed: reports have their versions. Files made during the run, such as
    the compiled kernel, are not listed either.
    """

    def __init__(self) -> None:
        #: Absolute path → sha256 when first seen; None if it cannot be read, or was replaced since. An entry in words
        #: stands for files that are not known.
        self.files: dict[str, str | None] = {}
        #: Installed packages → version: those that hold an opened file or are imported by one, and all packages in
        #: folders of Python's path other than its own.
        self.packages: dict[str, str] = {}
        self._copies: Copies | None = None
        self._watch: Watch | None = None

    def watch(self, copies: Copies) -> None:
        """Start noting which copies are opened."""
        self._copies = copies
        for folder in copies.uncopied:
            self.files[f"modules in {folder.name or folder}, a folder of Python's path"] = None
        for folder in copies.imported:
            self.packages |= dict(installed_in(folder).values())
        try:
            self._watch = Watch(copies.folders)
        except OSError:
            self._list(everything(copies.folders))

    def watch_folders(self, named: Iterable[Path]) -> None:
        """Start noting which files are opened in the folders of these files themselves."""
        folders = {Path(os.path.abspath(path)).parent for path in named}
        try:
            self._watch = Watch({folder: folder for folder in folders})
        except OSError:
            self.files[UNSEEN] = None

    def close(self) -> None:
        """Stop noting what is opened."""
        if self._watch is not None:
            self._list(self._watch.opened())
            self._watch.close()

    def look(self, process: Kept) -> None:
        """Add the files that a process and its children have mapped or opened now."""
        copied, installed = ((), ()) if self._copies is None else (self._copies.folders, self._copies.installed)
        own = tuple(f"{folder}{os.sep}" for folder in (process.folder, *copied) if folder is not None)
        # Of the copied folders, only installed packages are visible at their original place.
        beside = tuple(f"{path}{os.sep}" for path in installed)
        mapped = mapped_files(process.pid)
        self.take(path for path in mapped if not path.startswith(own) or f"{path}{os.sep}".startswith(beside))
        if self._watch is not None:
            self._list(self._watch.opened())

    def _list(self, paths: set[Path]) -> None:
        """Add files of the kernel's folders; for a compiled module, its source."""
        named = set() if self._copies is None else {*self._copies.named}
        for path in sorted({*paths, *named}):
            source = _source(path)
            if str(source) not in self.files:
                content = source if self._copies is None else self._copies.copy_of(source)
                self.files[str(source)] = file_digest(content)
                self.packages |= _imported(content)

    def take(self, paths: Iterable[str], read: Mapping[str, str | None] = MappingProxyType({})) -> None:
        """Add these files. A name that ends in " (deleted)" is a file that was replaced.

        Args:
            read: digests of files that were read before.
        """
        for path in paths:
            name = path.removesuffix(_DELETED)
            # A file replaced since it was listed may have been replaced before its digest was made, so it is not
            # skipped here.
            if (name in self.files and name == path) or name.startswith(_ours()):
                continue
            if owners := _owners(name):
                self.packages |= owners
            elif _INSTALLED.search(name) or not name.startswith(_pythons()):
                known = name == path and os.path.isabs(name)
                self.files[name] = read[name] if name in read else file_digest(name) if known else None


_DELETED = " (deleted)"


@cache
def _ours() -> tuple[str, ...]:
    """Return the path prefixes of this project's files and of files that a run makes."""
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in (PACKAGE, kernel_root(), scratch.top()))


@cache
def _pythons() -> tuple[str, ...]:
    """Return the path prefixes of Python's files. Installed packages may lie below them."""
    folders = [os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")]
    executable = os.path.realpath(sys.executable)
    library = os.path.join(os.path.dirname(os.path.dirname(executable)), "lib", "libpython")
    return (*folders, executable, library)


def _source(path: Path) -> Path:
    """Return the source of a compiled module; other files unchanged."""
    source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    return source if path.parent.name == "__pycache__" and path.suffix == ".pyc" and source.is_file() else path


@cache
def _owners(path: str) -> dict[str, str]:
    """Return the installed packages that own a file → version."""
    if (packages := _INSTALLED.search(path)) is not None:
        return _of_top(packages[1].removesuffix(".libs"))  # the libraries that a wheel brings
    folders = (folder for folder in path_elsewhere() if path.startswith(f"{folder}{os.sep}"))
    tops = ((folder, Path(path).relative_to(folder).parts[0]) for folder in folders)
    return dict(installed_in(folder)[top] for folder, top in tops if top in installed_in(folder))


#: Lines of Python with an import.
_IMPORT = re.compile(r"(?m)(?:^|;)[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([^\n#;]+))")
#: Most bytes of a source that are searched for imports.
_MOST_SOURCE = 1 << 20


def _imported(source: Path) -> dict[str, str]:
    """Return the installed packages that a Python file imports anywhere → version.

    The text is searched, not parsed: it is not trusted, and a parser needs a hundred times its size in memory.
    """
    if source.suffix != ".py":
        return {}
    try:
        with open_regular(source) as file:
            text = file.read(_MOST_SOURCE).decode(errors="replace")
    except OSError:
        return {}
    tops = set[str]()
    for package, modules in _IMPORT.findall(text):
        tops |= (
            {package}
            if package
            else {module.strip().partition(" ")[0].partition(".")[0] for module in modules.split(",")}
        )
    found: dict[str, str] = {}
    for top in tops:
        found |= _of_top(top)
    return found


def _of_top(top: str) -> dict[str, str]:
    """Return the installed packages that provide a top-level module → version."""
    versions = {}
    for name in _packages().get(top, ()):
        with contextlib.suppress(metadata.PackageNotFoundError, KeyError):
            versions[name] = metadata.version(name)
    names = (installed_in(folder) for folder in path_elsewhere())
    return versions | dict(found[name] for found in names for name in (top, f"{top}.py") if name in found)


@cache
def _packages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for package in metadata.distributions():  # not packages_distributions: it fails if one package is invalid
        with contextlib.suppress(Exception):
            tops = {*(package.read_text("top_level.txt") or "").split()}
            for file in () if tops else package.files or ():
                if file.suffix == ".py":
                    tops.add(file.parts[0] if len(file.parts) > 1 else file.stem)
            if isinstance(package.name, str) and isinstance(package.version, str):
                for top in tops:
                    found.setdefault(top, []).append(package.name)
    return found
