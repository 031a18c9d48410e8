"""A process of the harness's own making: its socket, how it ended, its last words, its end. Light to import.

What it is asked, how long it may take and what is made of its death is for those who talk with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from functools import cached_property
from typing import IO, TYPE_CHECKING

from ..support.paths import PACKAGE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class ChildProcess(ABC):
    """A process and our end of the socket to it.

    Args:
        verbose: let what it prints through to standard error; else it is kept, for its last words.
        stall: seconds after which a message that stops in the middle ends in OSError; None waits.
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
            self.log = tempfile.TemporaryFile(prefix="gguf-verify-")  # noqa: SIM115 - lives with us
        with theirs:
            self._start(theirs)

    @abstractmethod
    def _start(self, theirs: socket.socket) -> None:
        """Start it with its end of the socket; it prints to `log`, where there is one."""

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def kill(self) -> None:
        """At once, if it still runs."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, minus the number of the signal that ended it; None where it still runs after the time."""

    @cached_property
    def link(self) -> Connection:
        """Our end."""
        from multiprocessing.connection import Connection  # late: a process may start while the caller loads the rest

        return Connection(self._ours.detach())

    @property
    def alive(self) -> bool:
        return self.wait(0) is None

    def close(self, seconds: float | None = None) -> None:
        """End it, whatever it is doing, and wait so long for that; first the process, so that a thread that waits for
        it is woken."""
        self.kill()
        self.wait(seconds)
        self.hang_up()
        if self.log is not None:
            with self._closing:
                self.log.close()

    # One thread may end the process while another finds it dead and asks for its last words: a descriptor that is used
    # or closed after it was closed may be somebody else's by then.

    def hang_up(self) -> None:
        """Close our end, once."""
        with self._closing:
            self.link.close()

    def last_lines(self, nbytes: int) -> list[str]:
        """Those that are not blank of the last bytes that it printed, none once it was closed; what it may go on to
        print is not moved."""
        with self._closing:
            if self.log is None or self.log.closed:
                return []
            size = os.fstat(self.log.fileno()).st_size
            raw = os.pread(self.log.fileno(), nbytes, max(0, size - nbytes)).decode("utf-8", "replace")
        return [line.strip() for line in raw.splitlines() if line.strip()]


class Spawned(ChildProcess):
    """`python -m MODULE ARGUMENTS… FD`, FD being its end of the socket.

    Args:
        environment: variables beside ours.
    """

    def __init__(
        self, module: str, *arguments: str, environment: dict[str, str] | None = None, verbose: bool = False,
        stall: float | None = None,
    ) -> None:  # fmt: skip
        self._module, self._arguments, self._environment = module, arguments, environment or {}
        super().__init__(verbose, stall)

    def _start(self, theirs: socket.socket) -> None:
        package_parent = str(PACKAGE.parent)
        paths = [package_parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        output = sys.stderr if self.log is None else self.log
        self._process = subprocess.Popen(
            # -P: the folder where the command runs may come from anywhere, and must not be imported from
            [sys.executable, "-P", "-m", self._module, *self._arguments, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self._environment},
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
    """The name of the signal of an exit code below zero, None where it is of none or of one without a name."""
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code < 0 else None
    return None
