"""Questions to a process that is not trusted, and its answers: whatever it does, a caller gets one line.

A fault is a KernelFault. The process is then started again at the next call, so that what one call broke does not reach
the next.
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
from ...processes.child import ChildProcess, signal_name
from ...support import protocol
from ...support.errors import EnvironmentFault, KernelFault, KernelFinding, UsageError
from ...support.stages import counted

#: After so many calls that ran into the time limit nothing is called again, so that a run comes to its end.
_MOST_HANGS = 3
_MOST_MESSAGE = 1 << 14


class Conversation:
    """Questions to one process, and its answers.

    Args:
        who: who is to blame for a fault, in words: "the kernel".
        name: the kernel's name, for faults that end the run.
        start: starts the process.
        time_limit: seconds for an answer.
        start_limit: seconds for the first message, which the process sends unasked.
        fault: what is raised.
    """

    def __init__(
        self, who: str, name: str, start: Callable[[], ChildProcess], time_limit: float, start_limit: float,
        fault: type[KernelFault] = KernelFault,
    ) -> None:  # fmt: skip
        self.who, self._name, self._start, self._fault = who, name, start, fault
        self._time_limit, self._start_limit = time_limit, max(start_limit, time_limit)
        self.process: ChildProcess | None = None
        self.hangs = 0

    def begin(self) -> dict[str, Any]:
        """Start the process and return its first message. Raises UsageError, EnvironmentFault, KernelFault."""
        self.process = self._start()
        said = self._receive_message(self._start_limit, "start")
        for key, kind in (("environment", EnvironmentFault), ("usage", UsageError)):
            if key in said:
                self.stop()
                raise kind(f"kernel {self._name}: {printable(str(said[key]), 600)}")
        return said

    def ready(self) -> bool:
        """Whether it is still the process of the last call. If not, it is started again. Raises KernelFault."""
        if self.process is not None:
            return True
        if self.hangs >= _MOST_HANGS:
            raise self._fault(f"{self.who} was not run: it ran into the time limit {_MOST_HANGS} times before")
        try:
            self.begin()
        except (UsageError, EnvironmentFault) as error:
            raise self._fault(f"{self.who} could not be started again: {error}") from None
        return False

    @counted("foreign process")
    def ask(self, header: dict[str, Any], array: npt.NDArray[np.uint8]) -> dict[str, Any]:
        """Send a request and return the answer that it was done. Raises KernelFault; EnvironmentFault where this
        machine cannot do it, which only a product under a schedule may say."""
        assert self.process is not None
        try:
            protocol.send(self.process.link, header, array)
        except OSError:
            self._dead()
        said = self._receive_message(self._time_limit, "return")
        if "environment" in said:
            raise EnvironmentFault(printable(str(said["environment"]), 600))
        if "fault" in said:
            self.stop()
            words, finding = printable(str(said["fault"]), 600), said.get("finding")
            if self._fault is KernelFault and isinstance(finding, dict) and isinstance(finding.get("lines"), list):
                lines = tuple(printable(str(line), 100) for line in finding["lines"][:8])
                raise KernelFinding(printable(str(finding.get("kind")), 20), words, lines)
            fault = self._fault(words)
            fault.cause = printable(str(said.get("cause", "")), 300)
            raise fault
        if said.get("ok") is not True:
            self.garbage()
        return said

    def receive(self, out: npt.NDArray[Any]) -> None:
        """Receive the array of an answer. Raises KernelFault."""
        assert self.process is not None
        try:
            if self.process.link.recv_bytes_into(out.reshape(-1).view(np.uint8).data) != out.nbytes:
                self.garbage()
        except multiprocessing.ProcessError:
            self.garbage()
        except (EOFError, OSError):
            self._dead()

    def _receive_message(self, seconds: float, what: str) -> dict[str, Any]:
        """Receive one message. Raises KernelFault where none comes in time or it is not valid."""
        assert self.process is not None
        ready = select.poll()
        ready.register(self.process.link.fileno(), select.POLLIN)
        if not ready.poll(1000 * seconds):
            self.hangs += 1
            self.stop()
            raise self._fault(f"{self.who} did not {what} within {seconds:g} s")
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
        """End the process, whose answer is not valid. Raises KernelFault."""
        self.stop()
        raise self._fault(f"{self.who}'s process sent an answer that is not valid")

    def _dead(self) -> NoReturn:
        """Raises KernelFault, which says how the process ended."""
        assert self.process is not None
        code = self.process.wait(2.0)
        how = "its process stopped answering"
        if code is not None:
            died = signal_name(code)
            how = f"its process died of {died}" if died else f"its process ended with exit code {code}"
        lines = self.process.last_lines(4096)
        said = f"; its last line of output: {printable(lines[-1], 200)}" if lines else ""
        self.stop()
        raise self._fault(f"{self.who} crashed: {how}{said}")

    def stop(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.close(60.0)
