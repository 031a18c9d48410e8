"""The cache of builds and other files that are made once: where it is, and how an entry is written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def tree_hash(root: Path) -> str:
    """sha256 over every source file of kernels below `root`: part of the key of each compiled kernel."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in {".cu", ".cuh", ".hpp"}:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def cache_dir() -> Path:
    """The cache's folder: $XDG_CACHE_HOME/gguf-verify, or a temporary one if that cannot be written, or if compiled
    kernels cannot be run from there and can be from a temporary one."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-verify"
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            if runs_code(base) or not runs_code(Path(tempfile.gettempdir())):
                return base
    return Path(tempfile.mkdtemp(prefix="gguf-verify-"))


def runs_code(folder: Path) -> bool:
    """Whether the file system of a folder lets libraries be loaded from it: it is not mounted `noexec`."""
    if not hasattr(os, "statvfs"):  # Windows
        return True
    return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 8)


def cached_file(key: Sequence[str], suffix: str) -> Path:
    """The path of the entry with this key; the file need not exist yet."""
    return cache_dir() / (hashlib.sha256("\0".join(key).encode()).hexdigest()[:32] + suffix)


def store(path: Path, content: bytes) -> None:
    """Write an entry such that another process sees all of it or nothing."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as f:
        f.write(content)
    Path(temporary).replace(path)


__all__ = ["cache_dir", "cached_file", "runs_code", "store", "tree_hash"]
