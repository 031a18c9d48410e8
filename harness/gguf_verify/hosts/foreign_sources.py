"""Compilation of foreign sources: the only way in which a compiler gets to read one.

A foreign source may hang its compiler, crash it or take control of it. So each command that reads one runs in a
sandbox, and is killed with all its children when the time of the whole compilation is over; its output is read with
limits. `foreign_source` marks a source as foreign for all compilations within its context.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ..processes.boundary import compiler
from ..processes.sandbox import GIB, Confinement, Limits, machine_memory, of_kernel
from ..support.errors import EnvironmentFault

#: Most bytes that are read of a compiler's output.
MOST_BUILT = 1 << 28
#: Minimum memory of a compiler, whatever the kernel's limit, and maximum.
_LEAST_MEMORY, _MOST_MEMORY = 2 * GIB, 8 * GIB


def _limits() -> Limits:
    """Return the limits of a compiler and its children: a kernel's memory, within bounds."""
    memory = min(max(of_kernel().limits.memory, _LEAST_MEMORY), _MOST_MEMORY, machine_memory() * 3 // 4)
    return Limits(memory=memory, processes=64, file_size=MOST_BUILT, log=1 << 24, cpu=3600)


class ForeignSource:
    """A folder of foreign sources, and the time for all commands that compile it.

    Args:
        root: the folder. Compilers read it, and only write into temporary folders of the caller.
        seconds: the time limit.
        named: files elsewhere that the sources name by absolute paths.
    """

    def __init__(self, root: Path, seconds: float, named: tuple[Path, ...] = ()) -> None:
        self.root, self._seconds, self._named = root, seconds, named
        #: Absolute paths of the files outside the folder that compilers read, as they list them; or words.
        self.opened: set[str] = set()
        #: The files that nvcc listed in its last compilation.
        self.listed: tuple[str, ...] = ()
        self._deadline = time.monotonic() + seconds

    def note(self, files: Iterable[str]) -> None:
        """Note that compilers have read these files."""
        self.opened |= {path for path in map(os.path.abspath, files) if not Path(path).is_relative_to(self.root)}

    def note_unlisted(self, compiler: str) -> None:
        """Note that a compiler has read unknown files."""
        self.opened.add(f"what {compiler} read")

    @contextmanager
    def half(self) -> Iterator[None]:
        """Let the commands in this context take at most half of the time that is left."""
        whole, now = (self._deadline, self._seconds), time.monotonic()
        self._seconds = round((self._deadline - now) / 2, 1)
        self._deadline = now + (self._deadline - now) / 2
        try:
            yield
        finally:
            self._deadline, self._seconds = whole

    def run(self, command: Sequence[str], folder: Path, shown: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command that reads the source in a sandbox that only permits writes into a folder.

        It may read `shown`, even below the user's own folders. `stderr` of the result is the beginning of both output
        streams. Raises EnvironmentFault if the time is over, or it exceeds a limit.
        """
        from ..processes.child import Command

        confined = Confinement(_limits(), folder=folder, shown=(self.root, *self._named, *shown, *compiler(command[0])))
        process = Command(command, confined=confined)
        try:
            code = process.wait(max(0.0, self._deadline - time.monotonic()))
            if code is None:
                raise EnvironmentFault(f"the kernel's source did not compile within {self._seconds:g} s")
            if process.stopped_for:
                raise EnvironmentFault(f"the kernel's source did not compile: its compiler {process.stopped_for}")
            return subprocess.CompletedProcess(list(command), code, "", "\n".join(process.first_lines()))
        finally:
            process.close()


_NOW: ContextVar[ForeignSource | None] = ContextVar("foreign_source", default=None)


@contextmanager
def foreign_source(root: Path, seconds: float, named: tuple[Path, ...] = ()) -> Iterator[ForeignSource]:
    """Mark sources below `root` as foreign in this context; compiling them takes at most `seconds` in all.

    `named`: see `ForeignSource`.
    """
    source = ForeignSource(root, seconds, named)
    token = _NOW.set(source)
    try:
        yield source
    finally:
        _NOW.reset(token)


def as_foreign(root: Path) -> ForeignSource | None:
    """Return the foreign source of this folder; None if it is this project's own."""
    now = _NOW.get()
    return now if now is not None and now.root == root else None


def read_limited(path: Path, most: int = MOST_BUILT, cut: bool = False) -> bytes:
    """Read a regular file from an untrusted writer; with `cut`, only its beginning.

    Raises EnvironmentFault if there is none, or it is larger.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise EnvironmentFault(f"a compiler left no regular file as its {path.suffix or path.name}")
            content = file.read(most + (not cut))
    except OSError as error:
        raise EnvironmentFault(f"a compiler left no {path.suffix or path.name}: {error.strerror}") from None
    if len(content) > most:
        raise EnvironmentFault(f"a compiler made more than {most:,} bytes")
    return content
