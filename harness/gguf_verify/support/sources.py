"""Digests of source files: a cached result is valid while all files that it was made from are unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from .files import note_input, open_regular

T = TypeVar("T")

#: What was made is kept only if the file was unchanged for this time (ns): timestamps have the granularity of the
#: kernel's clock.
_SETTLED_NS = 50_000_000
#: (path, function) → the file's state, and what the function made of its content.
_made: dict[tuple[str, Callable[[BufferedReader], Any]], tuple[tuple[int, ...], Any]] = {}


def file_digest(path: str | Path) -> str | None:
    """Return the SHA-256 of a regular file; None if it cannot be read. Computed again after the file was written to."""
    return made_of(path, _sha256)


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def made_of(path: str | Path, function: Callable[[BufferedReader], T]) -> T | None:
    """Return what a function makes of a regular file's content; None if it cannot be read. Made again after the file
    was written to. The function may raise OSError and ValueError, which then is None, too."""
    path = os.fspath(path)
    held = _made.get((path, function))
    try:
        if held is not None and held[0] == _state(now := os.stat(path)):
            note_input(path, now)
            found: T = held[1]
            return found
        with open_regular(path) as file:
            now = os.fstat(file.fileno())
            made = function(file)
    except (OSError, ValueError):
        return None
    if time.time_ns() - now.st_ctime_ns > _SETTLED_NS:
        _made[path, function] = _state(now), made
    return made


def _state(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns


def combined(files: Iterable[tuple[str, str | None]]) -> str:
    """Return one digest of files, given as pairs of a name and the file's digest."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def of_makefile(text: str) -> list[str]:
    """Return the prerequisites of the one rule that a compiler wrote (`-MD`); its target has no blank in its name."""
    _, _, listed = text.replace("\\\n", " ").partition(":")
    names = re.findall(r"(?:\\[ \t#]|\\|[^\\\s])+", listed)
    return [re.sub(r"\\([ \t#])", r"\1", name).replace("$$", "$") for name in names]
