"""gguf-py and llama.cpp as independent readers of the same file.

Both run in child processes. If a hostile file crashes a reader, that is a finding. If a reader hangs or exhausts its
memory, it is stopped, and its view of the file is reported as not compared. If our parser has refused the file, the
readers get only a short time: nothing that they find would make the file readable.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Self

from ..gguf.mapped import Mapped
from ..gguf.model import Model
from ..llama.reader_process import Load
from ..support.errors import EnvironmentFault, NoSuchFile
from ..support.text import printable
from .reader_child import ReaderChild
from .readings import LLAMA, Reading, to_load, with_loading

#: The other readers, in the order of all reports.
READERS = ("gguf-py", LLAMA)

#: Time limit of a reader for one file, in seconds.
TIME_LIMIT = 60.0
#: Least time limit for a file that our parser has refused, in seconds: a reader takes less than 0.1 s for an ordinary
#: file of 100 MB, and waiting much longer than our parser took gains nothing.
GRACE = 2.0
#: Memory limit of a reader for one file in bytes, besides the file's own size.
MEMORY = 2 << 30


class Readers:
    """gguf-py and llama.cpp, each in a process that serves many files, one after the other.

    Use it as a context manager: leaving it ends the processes, even while another thread reads. They start with the
    first file, and again after a file that broke them, or after the thread that started them has ended (the system then
    ends them).

    Args:
        time_limit: seconds for one file; a reader that takes longer counts as hung, and is stopped.
        memory: bytes that a reader may take for one file besides the file's size.
        names: of the readers, in order.
        build: the folder of llama.cpp's libraries; None: those of llama-cpp-python.
    """

    def __init__(
        self,
        time_limit: float = TIME_LIMIT,
        memory: int = MEMORY,
        names: Sequence[str] = READERS,
        build: Path | None = None,
    ) -> None:
        self._build = build
        self._names = tuple(names)
        self._time_limit = time_limit
        self._memory = memory
        self._children: dict[str, ReaderChild] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End both processes, whatever they are doing. They cannot be started again."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            while self._children:
                self._children.popitem()[1].close()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running readers."""
        return {name: child.pid for name, child in self._children.items()}

    def versions(self) -> dict[str, str]:
        """Return the version of each reader. Raises EnvironmentFault if one cannot be started."""
        return {child.name: child.version for child in self._start()}

    def read_model(self, model: Model) -> tuple[tuple[Reading, ...], ...]:
        """Read each part of a model with each reader; llama.cpp also loads a real model. Raises as `read`."""
        loading = to_load(model)
        files = [part.mapped for part in model.parts]
        first = with_loading(self._read(files, load=loading.load), loading)
        broken = next((r for r in first if r.reader == LLAMA and r.verdict == "broke"), None)
        if broken is not None and loading.load:  # the header alone may not crash it
            first = tuple(
                replace(r, loads=False, not_loaded=f"llama.cpp {broken.said}")
                if r.reader == LLAMA and r.verdict == "accepted"
                else r
                for r in self._read(files)
            )
        return first, *(self._read(files, which) for which in range(1, len(files)))

    def read(self, file: Path | str | Mapped, seconds: float | None = None) -> tuple[Reading, ...]:
        """Read a file, given as a path or open, with all readers at the same time; results in the order of `READERS`.

        Args:
            seconds: time limit, if lower than the readers' own.

        Crashes and refusals are part of the results. Raises EnvironmentFault if a reader cannot be started, ValueError
        after close().
        """
        if isinstance(file, Mapped):
            return self._read([file], seconds=seconds)
        try:
            opened = Mapped(Path(file))
        except (NoSuchFile, EnvironmentFault) as error:
            return tuple(Reading(name, "refused", printable(str(error), 200)) for name in self._names)
        with closing(opened):
            return self._read([opened], seconds=seconds)

    def _read(
        self, files: Sequence[Mapped], which: int = 0, load: Load = "", seconds: float | None = None
    ) -> tuple[Reading, ...]:
        """Read one file of a model; llama.cpp also loads `load`, without memory for the weights."""
        children = self._start()
        limit = self._time_limit if seconds is None else min(seconds, self._time_limit)
        try:
            for child in children:
                child.ask(files, which, self._memory, limit, load)
            readings = self._answers(children)
        except BaseException:
            self._end()  # a late answer would be taken for the answer to the next request
            raise
        with self._lock:
            for reading in readings:
                if reading.verdict in ("broke", "stopped") and reading.reader in self._children:
                    self._children.pop(reading.reader).close()
        return readings

    def _answers(self, children: Sequence[ReaderChild]) -> tuple[Reading, ...]:
        """Collect the answers as they come, so that no reader's time limit runs out while another is waited for."""
        waiting = list(children)
        readings = {}
        while waiting:
            links = [child.link for child in waiting]
            try:
                ready = wait(links)
            except OSError:  # closed meanwhile: each child's `answer` reports how it ended
                ready = list(links)
            for child in [child for child in waiting if child.link in ready]:
                waiting.remove(child)
                readings[child.name] = child.answer()
        return tuple(readings[name] for name in self._names)

    def _start(self) -> tuple[ReaderChild, ...]:
        """Return all children, started and ready."""
        with self._lock:
            if self._closed:
                raise ValueError("the readers are closed")
            for name in self._names:
                if name in self._children and not self._children[name].alive:
                    self._children.pop(name).close()
                if name not in self._children:
                    self._children[name] = ReaderChild(name, self._build)
            children = tuple(self._children[name] for name in self._names)
        try:
            for child in children:
                child.greet()
        except BaseException:
            self._end()
            raise
        return children
