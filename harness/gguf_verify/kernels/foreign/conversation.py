"""Talking with a process that is not trusted: whatever it does ends in one line.

A fault is a KernelFault; the process is then started again at the next call, so that what one broke does not reach it.
"""

from __future__ import annotations

import json
import multiprocessing
import select
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...gguf import printable
from ...support import protocol
from ...support.errors import EnvironmentFault, KernelFault, UsageError
from ...support.processes import ChildProcess, signal_name

#: Calls that ran into the time limit after which nothing is called again: a run must come to its end.
_MOST_HANGS = 3
_MOST_MESSAGE = 1 << 14


class Talk:
    """Questions and answers.

    Args:
        who: whom a fault is of, in words: "the kernel".
        name: of the kernel, for what ends the run.
        start: starts the process.
        time_limit: seconds for an answer.
        start_limit: for its first word.
    """

    def __init__(
        self, who: str, name: str, start: Callable[[], ChildProcess], time_limit: float, start_limit: float
    ) -> None:
        self.who, self._name, self._start = who, name, start
        self._time_limit, self._start_limit = time_limit, max(start_limit, time_limit)
        self.process: ChildProcess | None = None
        self.hangs = 0

    def begin(self) -> dict[str, Any]:
        """Start the process and hear its first word. Raises UsageError, EnvironmentFault, KernelFault."""
        self.process = self._start()
        said = self._hear(self._start_limit, "start")
        for key, kind in (("environment", EnvironmentFault), ("usage", UsageError)):
            if key in said:
                self.stop()
                raise kind(f"kernel {self._name}: {printable(str(said[key]), 600)}")
        return said

    def ready(self) -> bool:
        """Whether it still is the process of the last call; else it is started again. Raises KernelFault."""
        if self.process is not None:
            return True
        if self.hangs >= _MOST_HANGS:
            raise KernelFault(f"{self.who} was not run: it ran into the time limit {_MOST_HANGS} times before")
        try:
            self.begin()
        except (UsageError, EnvironmentFault) as error:
            raise KernelFault(f"{self.who} could not be started again: {error}") from None
        return False

    def ask(self, header: dict[str, Any], array: npt.NDArray[np.uint8]) -> dict[str, Any]:
        """Send a request and hear that it was done. Raises KernelFault."""
        assert self.process is not None
        try:
            protocol.send(self.process.link, header, array)
        except OSError:
            self._dead()
        said = self._hear(self._time_limit, "return")
        if "fault" in said:
            self.stop()
            raise KernelFault(printable(str(said["fault"]), 600))
        if said.get("ok") is not True:
            self.garbage()
        return said

    def receive(self, out: npt.NDArray[Any]) -> None:
        """The array of an answer. Raises KernelFault."""
        assert self.process is not None
        try:
            if self.process.link.recv_bytes_into(out.reshape(-1).view(np.uint8).data) != out.nbytes:
                self.garbage()
        except multiprocessing.ProcessError:
            self.garbage()
        except (EOFError, OSError):
            self._dead()

    def _hear(self, seconds: float, what: str) -> dict[str, Any]:
        """One message. Raises KernelFault where there is none in time or it is none of ours."""
        assert self.process is not None
        ready = select.poll()
        ready.register(self.process.link.fileno(), select.POLLIN)
        if not ready.poll(1000 * seconds):
            self.hangs += 1
            self.stop()
            raise KernelFault(f"{self.who} did not {what} within {seconds:g} s")
        try:
            said = json.loads(self.process.link.recv_bytes(_MOST_MESSAGE))
        except (EOFError, OSError):
            self._dead()
        except ValueError:
            self.garbage()
        if not isinstance(said, dict):
            self.garbage()
        return said

    def garbage(self) -> NoReturn:
        self.stop()
        raise KernelFault(f"{self.who}'s process answered what is no answer")

    def _dead(self) -> NoReturn:
        """Say how it ended."""
        assert self.process is not None
        code = self.process.wait(2.0)
        how = "its process stopped answering"
        if code is not None:
            died = signal_name(code)
            how = f"its process died of {died}" if died else f"its process ended with exit code {code}"
        lines = self.process.last_lines(4096)
        said = f"; it said: {printable(lines[-1], 200)}" if lines else ""
        self.stop()
        raise KernelFault(f"{self.who} crashed: {how}{said}")

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.close(60.0)
