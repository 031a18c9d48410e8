"""Sources of foreign kernels, and how the processes of a kernel and of its oracle are started."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...processes.boundary import path_elsewhere
from ...processes.child import ChildProcess, Forked, Spawned
from ...processes.sandbox import Sandbox, current, of_fork, of_kernel
from ...support.errors import KernelFault
from ...support.text import printable
from .child import OracleRunner, serve
from .conversation import Conversation
from .copies import Copies
from .opened import Opened
from .python_kernel import runner_of

#: Most seconds for importing a kernel in Python: importing PyTorch takes longer than most calls.
START_LIMIT = 60.0


class Source(ABC):
    """A source of a kernel."""

    name: str
    #: Whether it runs on the host of the run. If not, its own code chooses the device.
    on_host: bool = False
    #: Most seconds for its first message; see `Conversation`.
    start_limit: float = START_LIMIT

    #: Description of code that is not compiled here.
    code: tuple[str, ...] = ()

    @cached_property
    def opened(self) -> Opened:
        """The files that its processes opened."""
        return Opened()

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of its process."""
        return current()

    @abstractmethod
    def start(self, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        """Start its process, or that of its oracle. The other arguments are those of `ChildProcess`."""

    def reporting(self) -> Source | None:
        """Return the same source, whose code reports its comparisons (`reporting`); None if it cannot. It shares this
        one's files, and is not closed."""
        return None

    @property
    def folder(self) -> Path:
        """The folder of a kernel in Python. Raises KeyError of another one."""
        raise KeyError

    def converse(
        self, who: str, time_limit: float, verbose: bool, fault: type[KernelFault] = KernelFault, oracle: bool = False
    ) -> Conversation:
        """Return a conversation with a process of it, or with its oracle's. The arguments are those of `Conversation`
        and `start`.
        """

        def start() -> ChildProcess:
            # A process that stops in the middle of a message must not block this one.
            return self.start(verbose, max(time_limit, 1.0), oracle)

        return Conversation(who, self.name, start, time_limit, self.start_limit, fault, self.opened)

    def close(self) -> None:  # noqa: B027 - most leave nothing
        """Remove its files from disk. It cannot be started again."""


class File(Source):
    """A file, run by a fresh Python.

    Args:
        asked: the first message to its process.
        oracle: FILE.py and NAME of its oracle, if it has one.
        start_limit: see `Source`.
        close: called when it is not started again.
        on_host: see `Source`.
        named: its files besides its oracle. In the sandbox its processes see copies of their folders.
        shown: folders of the run that its process reads.
        code: see `Source`.
    """

    def __init__(
        self,
        name: str,
        asked: dict[str, Any],
        oracle: tuple[Path, str] | None = None,
        start_limit: float | None = None,
        close: Callable[[], None] = lambda: None,
        on_host: bool = False,
        shown: tuple[Path, ...] = (),
        code: tuple[str, ...] = (),
        named: tuple[Path, ...] = (),
    ) -> None:
        self._shown, self.code, self._named = shown, code, named if oracle is None else (*named, oracle[0])
        self.name, self._asked, self._oracle, self._close, self.on_host = name, asked, oracle, close, on_host
        self.start_limit = START_LIMIT if start_limit is None else start_limit

    @cached_property
    def _copies(self) -> Copies | None:
        """Copies of its files, if its processes can see them in place of the originals."""
        if not self._named:
            return None
        if current().kind != "bubblewrap":
            self.opened.watch_folders(self._named)
            return None
        copies = Copies(self._named, path_elsewhere())
        self.opened.watch(copies)
        return copies

    def reporting(self) -> File | None:
        if "path" not in self._asked:
            return None
        _ = self.opened, self._copies  # made before, both are shared
        found = copy.copy(self)
        found._asked = {**self._asked, "compares": True}
        return found

    @property
    def folder(self) -> Path:
        return Path(self._asked["path"]).parent

    def close(self) -> None:
        self.opened.close()
        if (copies := self.__dict__.get("_copies")) is not None:
            copies.close()
        self._close()

    def start(self, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        confined = of_kernel(self._shown)
        if self._copies is not None:
            confined = of_kernel((*self._shown, *self._copies.shown), self._copies.folders)
        process = Spawned("gguf_verify.kernels.foreign", verbose=verbose, stall=stall, confined=confined)
        asked = self._asked
        if oracle and self._oracle is not None:
            asked = {"path": os.path.abspath(self._oracle[0]), "name": self._oracle[1], "oracle": True}
        with contextlib.suppress(OSError):
            process.link.send_bytes(json.dumps(asked).encode())
        return process


class Object(Source):
    """An object of this process, which runs in a fork.

    A kernel that uses CUDA must be given as a file, because CUDA's state does not survive a fork.
    """

    def __init__(self, kernel: Any) -> None:
        self.name = printable(str(getattr(kernel, "__name__", type(kernel).__name__)), 64)
        self._kernel = kernel

    @property
    def sandbox(self) -> Sandbox:
        return of_fork()

    def start(self, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        def run(link: Connection) -> None:
            gc.freeze()  # collecting an inherited object could unmap memory at an address that this process reuses
            serve(link, lambda: OracleRunner(self._kernel) if oracle else runner_of(self._kernel))

        return Forked(run, verbose, stall, of_kernel())
