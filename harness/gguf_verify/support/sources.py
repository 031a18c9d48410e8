"""Digests of source files: a cached result is valid while all files that it was made from are unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from .files import note_input, open_regular

#: A digest is cached only if the file was unchanged for this time (ns): timestamps have the kernel clock's granularity.
_SETTLED_NS = 50_000_000
_digests: dict[str, tuple[tuple[int, ...], str]] = {}


def file_digest(path: str | Path) -> str | None:
    """Return the SHA-256 of a regular file; None if it cannot be read. Computed again after the file was written to."""
    path = os.fspath(path)
    held = _digests.get(path)
    try:
        if held is not None and held[0] == _state(now := os.stat(path)):
            note_input(path, now)
            return held[1]
        with open_regular(path) as file:
            now = os.fstat(file.fileno())
            made = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None
    if time.time_ns() - now.st_ctime_ns > _SETTLED_NS:
        _digests[path] = _state(now), made
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
