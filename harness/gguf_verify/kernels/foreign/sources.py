"""Where a foreign kernel comes from, and how its process and its oracle's are started."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from ...gguf import printable
from ...processes.child import ChildProcess, Spawned
from ...support import scratch
from .child import OracleRunner, PythonRunner, serve, serve_oracle

#: Least time limit in seconds for importing a kernel in Python: importing PyTorch takes longer than most calls.
START_LIMIT = 60.0


class Source(ABC):
    """Where a kernel comes from."""

    name: str
    #: Whether it runs on the host of the run. If not, its own code decides where.
    on_host: bool = False
    #: Seconds for its first message, or the time limit of a call where that is longer.
    start_limit: float = START_LIMIT

    @abstractmethod
    def start(self, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        """Start its process, or its oracle's. The other arguments are those of `ChildProcess`."""

    def close(self) -> None:  # noqa: B027 - most leave nothing
        """Remove what it left on disk. It is not started again."""


class File(Source):
    """A file, run by a fresh Python.

    Args:
        asked: the first message to its process.
        oracle: the first message to its oracle's process.
        start_limit: seconds for its first message, or the time limit of a call where that is longer.
        close: called when it is not started again.
        on_host: see `Source`.
    """

    def __init__(
        self,
        name: str,
        asked: dict[str, Any],
        oracle: dict[str, Any],
        start_limit: float | None = None,
        close: Callable[[], None] = lambda: None,
        on_host: bool = False,
    ) -> None:
        self.name, self._asked, self._oracle, self._close, self.on_host = name, asked, oracle, close, on_host
        self.start_limit = START_LIMIT if start_limit is None else start_limit

    def close(self) -> None:
        self._close()

    def start(self, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        process = Spawned("gguf_verify.kernels.foreign", verbose=verbose, stall=stall)
        with contextlib.suppress(OSError):
            process.link.send_bytes(json.dumps(self._oracle if oracle else self._asked).encode())
        return process


class Object(Source):
    """An object of this process, which runs in a fork of it. A kernel that uses CUDA must be given as a file, because
    CUDA's state does not survive a fork."""

    def __init__(self, kernel: Any) -> None:
        self.name = printable(str(getattr(kernel, "__name__", type(kernel).__name__)), 64)
        self._kernel = kernel

    def start(self, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        def run(link: Connection) -> None:
            if oracle:
                serve_oracle(link, lambda: OracleRunner(self._kernel))
            else:
                serve(link, lambda: PythonRunner(self._kernel))

        return _Forked(run, verbose, stall)


class _Forked(ChildProcess):
    """A fork of this process that runs a function of its end of the socket."""

    def __init__(self, run: Callable[[Connection], None], verbose: bool, stall: float) -> None:
        self._run = run
        super().__init__(verbose, stall)

    def _start(self, theirs: socket.socket) -> None:
        output = None if self.log is None else self.log.fileno()

        def child() -> None:
            self._ours.close()
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            self._run(Connection(theirs.detach()))

        scratch.top()  # before the fork, which then uses the same
        self._process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode
