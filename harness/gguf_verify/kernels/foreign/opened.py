"""The files that a foreign kernel is made of, as they were opened: what the system's loader mapped into its processes,
and what its compilers read.

The list of mapped files is the system's (`/proc/PID/maps`), read from outside of the process, which could lie. A
library that was opened and closed again between two looks is not seen, nor is a file that the kernel reads itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib import metadata

from ...processes.child import Kept
from ...processes.mapped import UNSEEN, mapped_files
from ...support import scratch
from ...support.paths import PACKAGE, kernel_root
from ...support.sources import file_digest
from .copies import Copies

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")


class Opened:
    """Files that were opened, and what identifies them.

    What belongs to Python or to this project is not among them: reports have their versions. A file that is made
    during the run, such as the compiled kernel, is not one either.
    """

    def __init__(self) -> None:
        #: Absolute path → sha256 when it was first seen; None where it cannot be read, or was replaced meanwhile. Words
        #: stand for files that are not known.
        self.files: dict[str, str | None] = {}
        #: What is opened in place of the kernel's own files.
        self.copies: Copies | None = None
        #: Installed packages → version, where one holds an opened file.
        self.packages: dict[str, str] = {}

    def look(self, process: Kept) -> None:
        """Take the files that a process, and those that it started, have mapped now."""
        copied = () if self.copies is None else self.copies.folders
        own = tuple(f"{folder}{os.sep}" for folder in (process.folder, *copied) if folder is not None)
        self.take(path for path in mapped_files(process.pid) if not path.startswith(own))
        if self.copies is not None:
            self.files |= self.copies.opened()

    def take(self, paths: Iterable[str]) -> None:
        """Take these files; a name that ends in " (deleted)" is that of one that was replaced."""
        for path in paths:
            name = path.removesuffix(_DELETED)
            if name in self.files or name.startswith(_ours()):
                continue
            if owners := _owners(name):
                self.packages |= owners
            elif _INSTALLED.search(name) or not name.startswith(_pythons()):
                self.files[name] = file_digest(name) if name == path and os.path.isabs(name) else None


_DELETED = " (deleted)"


@cache
def _ours() -> tuple[str, ...]:
    """How the names of files begin that are this project's, or that a run makes."""
    return tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in (PACKAGE, kernel_root(), scratch.top()))


@cache
def _pythons() -> tuple[str, ...]:
    """How the names of files begin that are Python's. Installed packages may lie below."""
    folders = [os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")]
    executable = os.path.realpath(sys.executable)
    library = os.path.join(os.path.dirname(os.path.dirname(executable)), "lib", "libpython")
    return (*folders, executable, library)


def _owners(path: str) -> dict[str, str]:
    """The installed packages that a file is of → version."""
    found = _INSTALLED.search(path)
    if found is None:
        return {}
    top = found[1].removesuffix(".libs")  # the libraries that a wheel brings
    versions = {}
    for name in _packages().get(top, ()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@cache
def _packages() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


__all__ = ["UNSEEN", "Opened"]
