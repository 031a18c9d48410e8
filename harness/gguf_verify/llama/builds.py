"""Builds of llama.cpp: a folder with its shared libraries, or one library that exports everything. The default is that
of llama-cpp-python.

A folder may be an unpacked release, a distribution's package or npm's `@node-llama-cpp/…`. Backends may be linked into
libggml, or be separate libraries beside it, one per kind of processor, which ggml finds and loads. Some bindings ship a
single library, such as PyPI's `xllamacpp`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..support.errors import UsageError
from ..support.text import printable

#: Limits of the search for libllama below the given folder: number of folders and files, and depth.
_MOST_LOOKED_AT, _DEPTH = 20_000, 5


@dataclass(frozen=True)
class Build:
    """A build.

    Args:
        path: the folder with libllama, libggml and libggml-base, or the one library that exports all of them.
    """

    path: Path

    def library(self, name: str) -> Path | None:
        """Return the library `lib{name}`, with any suffix; among several names of one, the soname that others load it
        by (`.so.0`). None if there is none. A single library is returned for every name."""
        if not self.path.is_dir():
            return self.path
        pattern = re.compile(rf"lib{re.escape(name)}(\.[A-Za-z][\w.]*)?\.so((\.\d+)*)")
        found = {p: m for p in sorted(self.path.iterdir()) if (m := pattern.fullmatch(p.name)) and p.is_file()}
        ranked = sorted(found, key=lambda p: (found[p][2].count(".") != 1, len(p.name), p.name))
        return ranked[0] if ranked else None

    def libraries(self) -> list[Path]:
        """Return its shared libraries, including those of its backends. Raises OSError."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(p for p in self.path.iterdir() if ".so" in p.suffixes and p.is_file())


def find(given: Path) -> Build | str:
    """Find the build in or below a folder, or the one library that is given or that the folder holds; returns one line
    that says why if there is none."""
    if ".so" in given.suffixes and given.is_file():
        return Build(given.resolve())
    if not given.is_dir():
        return f"{given} is neither a folder nor a shared library (.so)"
    folders: set[Path] = set()
    looked = 0
    for folder, below, files in os.walk(given):
        looked += len(files) + len(below)
        if looked > _MOST_LOOKED_AT:
            return f"{given} holds too many files to search for libllama: give the folder that contains it"
        if len(Path(folder).relative_to(given).parts) >= _DEPTH:
            below.clear()
        if any(re.fullmatch(r"libllama(\.[A-Za-z][\w.]*)?\.so(\.\d+)*", name) for name in files):
            folders.add(Path(folder))
    if not folders:
        alone = [
            path for path in given.glob("*.so") if path.is_file()
        ]  # a package of Python bindings, such as xllamacpp
        return Build(alone[0].resolve()) if len(alone) == 1 else f"{given} holds no libllama.so"
    if len(folders) > 1:
        shown = ", ".join(sorted(str(f.relative_to(given)) for f in folders)[:4])
        return f"{given} holds several builds of llama.cpp: give one of {shown}"
    build = Build(folders.pop().resolve())
    missing = [f"lib{name}" for name in ("llama", "ggml", "ggml-base") if build.library(name) is None]
    return f"{build.path} holds no {', '.join(missing)}" if missing else build


def path_of(given: str) -> Path | None:
    """Return the path of the build given by `--llama`; None for "". Raises UsageError."""
    if not given:
        return None
    found = find(Path(given))
    if isinstance(found, str):
        raise UsageError(printable(found, 400), "llama-build")
    return found.path


_chosen: Build | None = None


def choose(path: Path) -> None:
    """Select the build for this process, before any of its libraries is loaded."""
    global _chosen
    _chosen = Build(path)


def chosen() -> Build | None:
    """Return the selected build; None for llama-cpp-python's."""
    return _chosen
