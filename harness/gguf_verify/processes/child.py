"""A child process and the socket to it: how it starts, how it ended, what it printed last.

What the process is asked, how long it may take and what its death means is decided by those who use it. This module is
imported before NumPy is, so that a child can start early.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import IO, TYPE_CHECKING

from ..support import scratch
from ..support.paths import PACKAGE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class ChildProcess(ABC):
    """A process and our end of the socket to it.

    Args:
        verbose: what the process prints goes to standard error; otherwise it is kept for `last_lines`.
        stall: seconds after which a message that stops in the middle raises OSError; None waits for ever.
    """

    def __init__(self, verbose: bool = False, stall: float | None = None) -> None:
        self._closing = threading.Lock()
        self._ours, theirs = socket.socketpair()
        if stall is not None:
            seconds, rest = divmod(stall, 1)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(rest * 1e6)))
        self.log: IO[bytes] | None = None
        if not verbose:
            self.log = scratch.file("log")
        with theirs:
            self._start(theirs)

    @abstractmethod
    def _start(self, theirs: socket.socket) -> None:
        """Start the process with its end of the socket; it prints to `log`, if there is one."""

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def kill(self) -> None:
        """Kill the process, if it still runs."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None if it still runs after that time."""

    @cached_property
    def link(self) -> Connection:
        """Our end of the socket."""
        from multiprocessing.connection import Connection  # late: a process may start while the caller loads the rest

        return Connection(self._ours.detach())

    @property
    def alive(self) -> bool:
        return self.wait(0) is None

    def close(self, seconds: float | None = None) -> None:
        """Kill the process, wait so long for its end, and close the socket. The process comes first, so that a thread
        that waits for it wakes."""
        self.kill()
        self.wait(seconds)
        self.hang_up()
        if self.log is not None:
            with self._closing:
                self.log.close()

    # One thread may end the process while another finds it dead and asks for its last lines. A descriptor must not be
    # used or closed after it was closed: its number may belong to another file by then.

    def hang_up(self) -> None:
        """Close our end, once."""
        with self._closing:
            self.link.close()

    def last_lines(self, nbytes: int) -> list[str]:
        """The lines that are not blank in the last bytes that the process printed; none after `close`. The file's
        position stays where it is, since the process may go on printing."""
        with self._closing:
            if self.log is None or self.log.closed:
                return []
            size = os.fstat(self.log.fileno()).st_size
            raw = os.pread(self.log.fileno(), nbytes, max(0, size - nbytes)).decode("utf-8", "replace")
        return [line.strip() for line in raw.splitlines() if line.strip()]


class Spawned(ChildProcess):
    """The process `python -m MODULE ARGUMENTS… FD`, where FD is its end of the socket.

    Args:
        environment: variables that it gets beside ours and the one that names the run's scratch folder.
        before: a program and its arguments, which run that command.
    """

    def __init__(
        self, module: str, *arguments: str, environment: dict[str, str] | None = None, verbose: bool = False,
        stall: float | None = None, before: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._module, self._arguments, self._environment = module, arguments, environment or {}
        self._before = tuple(before)
        super().__init__(verbose, stall)

    def _start(self, theirs: socket.socket) -> None:
        package_parent = str(PACKAGE.parent)
        paths = [package_parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        output = sys.stderr if self.log is None else self.log
        self._process = subprocess.Popen(
            # -P: the folder where the command runs may come from anywhere, and must not be imported from
            [*self._before, sys.executable, "-P", "-m", self._module, *self._arguments, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,  # a signal to our group is ours: the child ends when we end, and not before
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **scratch.environment(), **self._environment},
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def wait(self, seconds: float | None = None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def signal_name(code: int) -> str | None:
    """The name of the signal that an exit code below zero stands for; None for other codes and unknown signals."""
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code < 0 else None
    return None
