"""What a host is: a place where a kernel from `kernels/` is compiled and launched. Nothing else knows which one it is.

Outputs are poisoned before a launch and lie between two guards that are checked after it, so that an element the
kernel never wrote and a byte it wrote outside are both seen.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..results import HostInfo
from ..support.errors import KernelFault

#: A NaN that no arithmetic produces: an output element that still holds it was never written.
POISON = np.uint32(0x7FC0DEAD)
GUARD_BYTES = 4096
_GUARD_FILL = 0xA5

Grid = tuple[int, int, int]


@cache
def tree_hash(root: Path) -> str:
    """sha256 over every source file below `root`: part of each compiled kernel's cache key."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in {".cu", ".cuh", ".hpp"}:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def cache_dir() -> Path:
    """Where compiled kernels are kept: $XDG_CACHE_HOME/gguf-verify, else a temporary folder."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-verify"
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return base
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return Path(tempfile.mkdtemp(prefix="gguf-verify-"))


def cached_file(key: Sequence[str], suffix: str) -> Path:
    """The cache's path for a build of this key."""
    return cache_dir() / (hashlib.sha256("\0".join(key).encode()).hexdigest()[:32] + suffix)


def store(path: Path, content: bytes) -> None:
    """Write a cache entry so that another process sees it whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as f:
        f.write(content)
    Path(temporary).replace(path)


class Host(ABC):
    """Compiles and launches kernels. Buffers are the host's own objects; arrays go in and come out as NumPy."""

    name: str
    #: The GPU's compute capability, such as "90"; None where any kernel runs.
    sm: str | None = None
    #: How it came to be this host, for the report.
    chosen = "as asked for"

    @abstractmethod
    def info(self) -> HostInfo:
        """Device, compiler, versions, for the report."""

    def describe(self) -> str:
        """`info` in one line."""
        return self.info().words

    @abstractmethod
    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        """Compile `root/file` and return its kernel `entry`, for the architecture `target` where that is not the
        card's own ("90a"). Raises EnvironmentFault with the compiler's message."""

    @abstractmethod
    def upload(self, array: npt.NDArray[Any]) -> Any:
        """A buffer with the array's bytes, at a multiple of 16."""

    @abstractmethod
    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer that `upload` made, as they are now."""

    @abstractmethod
    def output(self, nbytes: int) -> Any:
        """A poisoned buffer of `nbytes` between guards."""

    @abstractmethod
    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        """Run to the end. Arguments are buffers or NumPy scalars; `shared` bytes of shared memory are the kernel's to
        lay out. One that `overlaps` may start before the launch before has ended, and waits for that itself. Raises
        KernelFault where the launch failed."""

    @abstractmethod
    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        """How many blocks of so many threads and bytes of shared memory run at a time. Raises KernelFault."""

    @abstractmethod
    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        """The whole output buffer, guards included."""

    def download(self, output: Any) -> npt.NDArray[np.uint8]:
        """The output's bytes. Raises KernelFault where a guard was overwritten."""
        whole = self._read(output)
        if touched := outside(whole):
            raise KernelFault(touched)
        return whole[GUARD_BYTES:-GUARD_BYTES]


def outside(whole: npt.NDArray[np.uint8]) -> str | None:
    """What was written into the guards of an output that `poisoned` made, in words; None where nothing was."""
    before, after = ((part != _GUARD_FILL).sum() for part in (whole[:GUARD_BYTES], whole[-GUARD_BYTES:]))
    if before or after:
        return f"the kernel wrote outside its output: {before} bytes before, {after} after"
    return None


def poisoned(nbytes: int) -> npt.NDArray[np.uint8]:
    """`nbytes` of poison between two guards."""
    whole = np.full(nbytes + 2 * GUARD_BYTES, _GUARD_FILL, np.uint8)
    inside = whole[GUARD_BYTES : GUARD_BYTES + nbytes]
    inside[: nbytes // 4 * 4].view(np.uint32)[:] = POISON
    return whole
