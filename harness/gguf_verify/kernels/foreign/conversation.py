"""Questions to an untrusted process, and its answers. Any misbehaviour becomes one line.

A fault is a KernelFault. The process is then restarted at the next call, so that what one call broke does not affect
the next.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, get_args

from ...processes.child import ChildProcess, signal_name
from ...support.errors import (
    EnvironmentFault,
    FindingKind,
    KernelFault,
    KernelFinding,
    NotRun,
    NotTried,
    TraceFrame,
    UsageError,
)
from ...support.stages import counted
from ...support.text import printable, visible
from .faults import MOST_FRAMES
from .opened import Opened
from .operands import MemoryFile

#: After this many calls that exceeded the time limit, no more calls are made, so that the run ends.
_MOST_HANGS = 3
#: Least time limit in seconds for a start, which imports NumPy in a sandbox even for a kernel with short calls.
LEAST_START = 20.0
_MOST_MESSAGE = 1 << 14
#: Seconds for all of the last questions to a process, which need no call of the kernel.
_LAST = 10.0
_HEAD = struct.Struct("!i")
_AT_A_TIME = 1 << 16
#: Kinds of findings that a process may report, which this process cannot check itself: `KernelFinding`.
_SEEN_THERE = get_args(FindingKind)


class Late(Exception):
    """The deadline has passed."""


class Garbled(Exception):
    """The peer sent no valid message."""


class Channel:
    """The trusted end of a socket to an untrusted peer. Messages are framed as in `multiprocessing.connection`.

    A message has a size limit. The deadline of an exchange covers sending and receiving together, however slowly the
    bytes arrive.

    Args:
        descriptor: the socket, owned by the caller. It is made non-blocking.
        most: most bytes of a received message.
    """

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor, self._most = descriptor, most
        self._held = b""
        self._polls = {event: select.poll() for event in (select.POLLIN, select.POLLOUT)}
        for event, ready in self._polls.items():
            ready.register(descriptor, event)
        os.set_blocking(descriptor, False)

    @property
    def quiet(self) -> bool:
        """Whether no unread bytes have arrived."""
        return not self._held and not self._ready(select.POLLIN, time.monotonic())

    def send(self, message: bytes, deadline: float, handles: Sequence[int] = ()) -> None:
        """Send a message, followed by descriptors, if any. Raises Late; OSError if the peer is gone."""
        left = memoryview(_HEAD.pack(len(message)) + message)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
        if not handles:
            return
        with socket.socket(fileno=os.dup(self._descriptor)) as ours:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))]
            while True:
                try:
                    ours.sendmsg([bytes([len(handles)])], rights)
                    return
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)

    def receive(self, deadline: float) -> bytes:
        """Receive the next message. Raises Late, Garbled; EOFError and OSError if the peer is gone."""
        (size,) = _HEAD.unpack(self._bytes(_HEAD.size, deadline))
        if not 0 <= size <= self._most:
            raise Garbled
        return self._bytes(size, deadline)

    def _bytes(self, count: int, deadline: float) -> bytes:
        while len(self._held) < count:
            self._wait(select.POLLIN, deadline)
            try:
                come = os.read(self._descriptor, _AT_A_TIME)
            except BlockingIOError:
                continue
            if not come:
                raise EOFError
            self._held += come
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _wait(self, event: int, deadline: float) -> None:
        if not self._ready(event, deadline):
            raise Late

    def _ready(self, event: int, deadline: float) -> bool:
        """Return whether the socket is ready before the deadline; it also is if the peer is gone."""
        return bool(self._polls[event].poll(1000 * max(0.0, deadline - time.monotonic())))


class Budget:
    """The time that one call may take, over all of its exchanges with a process.

    Args:
        seconds: for a call with two runs; calls with more runs get proportionally more.
    """

    def __init__(self, seconds: float, runs: int = 2) -> None:
        self.seconds, self._left = seconds, seconds * max(1.0, runs / 2)

    @contextmanager
    def spent(self) -> Iterator[float]:
        """Count the time spent inside; yield the deadline by the monotonic clock."""
        start = time.monotonic()
        try:
            yield start + self._left
        finally:
            self._left -= time.monotonic() - start


def _trace(said: object) -> tuple[TraceFrame, ...]:
    """Return the frames of an exception that a process reports; invalid ones are skipped."""
    frames = said[-MOST_FRAMES:] if isinstance(said, list) else []
    return tuple(
        TraceFrame(visible(str(f[0]), 200), visible(str(f[1]), 100), f[2] is True)
        for f in frames
        if isinstance(f, list) and len(f) == 3
    )


def _ask_nothing(_: Conversation) -> None:
    pass


class Conversation:
    """Questions to one process, and its answers.

    Args:
        who: the party at fault, in words: "the kernel".
        name: the kernel's name, for faults that end the run.
        start: starts the process.
        time_limit: seconds for a call.
        start_limit: most seconds for the first message, which the process sends unprompted: ten times the time limit,
            if that is from 20 s to these; the time limit itself if that is longer.
        fault: the exception to raise.
        opened: records the files that its processes map.
    """

    def __init__(
        self,
        who: str,
        name: str,
        start: Callable[[], ChildProcess],
        time_limit: float,
        start_limit: float,
        fault: type[KernelFault] = KernelFault,
        opened: Opened | None = None,
    ) -> None:
        self.who, self._name, self._start, self._fault = who, name, start, fault
        self._opened = Opened() if opened is None else opened
        self._time_limit = time_limit
        self._start_limit = max(time_limit, min(start_limit, max(LEAST_START, 10 * time_limit)))
        self.process: ChildProcess | None = None
        #: Asks a new process its first questions; and one that is to be ended, and still answers, its last ones.
        self.begun: Callable[[Conversation], object] = _ask_nothing
        self.ending: Callable[[Conversation], object] = _ask_nothing
        #: Calls that exceeded the time limit, and the rows and columns of those that were products.
        self.hangs = 0
        self._hung: dict[tuple[int, ...], str] = {}
        self._channel: Channel | None = None
        #: The time for the last questions, while they are asked.
        self._last: Budget | None = None
        #: Number of questions so far; an answer repeats the number of its question.
        self._asked = 0
        #: Whether a question of the running process has no answer because this process was interrupted.
        self._interrupted = False
        #: Memory files that the process has, and those of them that it no longer needs.
        self._known: set[int] = set()
        self._forgotten: list[int] = []

    def begin(self) -> dict[str, Any]:
        """Start the process and return its first message. Raises UsageError, EnvironmentFault, KernelFault."""
        self.process = self._start()
        self._channel = Channel(self.process.link.fileno(), _MOST_MESSAGE)
        self._known, self._forgotten, self._interrupted = set(), [], False
        said = self._exchange(Budget(self._start_limit), "start")
        for key, kind in (("environment", EnvironmentFault), ("usage", UsageError)):
            if key in said:
                self.stop()
                raise kind(f"kernel {self._name}: {printable(str(said[key]), 600)}")
        self.look()
        self.begun(self)
        return said

    def look(self) -> None:
        """Note the files that the process has mapped now."""
        if self.process is not None:
            self._opened.look(self.process)

    def ready(self) -> bool:
        """Return whether the process of the last call still runs. If not, restart it. Raises KernelFault."""
        if self.process is not None:
            return True
        if self.hangs >= _MOST_HANGS:
            at = f" (at {'; '.join(self._hung.values())})" if self._hung else ""
            raise NotRun(f"{self.who} was not run: it exceeded the time limit {_MOST_HANGS} times before{at}")
        try:
            self.begin()
        except (UsageError, EnvironmentFault) as error:
            raise self._fault(f"{self.who} could not be started again: {error}") from None
        return False

    def budget(self, runs: int = 2) -> Budget:
        """Return the time budget of a call with this many runs."""
        return self._last or Budget(self._time_limit, runs)

    def forget(self, file: MemoryFile) -> None:
        """Note that the process no longer needs this file."""
        if file.number in self._known:
            self._known.remove(file.number)
            self._forgotten.append(file.number)

    @counted("foreign process")
    def ask(
        self,
        question: dict[str, Any],
        files: Sequence[MemoryFile] = (),
        budget: Budget | None = None,
        may_lack: bool = False,
    ) -> dict[str, Any]:
        """Send a question and return its answer.

        Args:
            files: the memory files that the question refers to.
            budget: that of the call; None: the question is a call on its own.
            may_lack: whether the process may answer that this machine cannot do it.

        Raises KernelFault; with `may_lack`, EnvironmentFault. NotRun if a product with as many rows and columns
        exceeded the time limit before, except under a schedule.
        """
        assert self._channel is not None
        shape = () if "schedule" in question else tuple(question.get("shape", ()))
        if shape[1:] in self._hung:
            raise NotRun(f"{self.who} was not run: it exceeded the time limit at {self._hung[shape[1:]]} before")
        if self._interrupted:
            self.stop()
            raise self._fault(f"{self.who} was interrupted in an earlier call")
        if not self._channel.quiet:  # a message without a question
            self.garbage()
        self._asked += 1
        new = [file for file in files if file.number not in self._known]
        known = {"files": [file.number for file in new], "forget": self._forgotten}
        message = json.dumps({**question, **known, "of": self._asked}).encode()
        self._known.update(file.number for file in new)
        self._forgotten = []
        try:
            said = self._exchange(budget or self.budget(), "return", message, [file.handle for file in new])
        except KernelFault as error:
            if error.late and shape:
                self._hung[shape[1:]] = ", ".join(f"{name}={size}" for name, size in zip("MNK", shape, strict=True))
            raise
        if said.get("of") != self._asked:
            self.garbage()
        if "environment" in said and may_lack:
            kind = NotTried if said.get("not_tried") is True else EnvironmentFault
            raise kind(printable(str(said["environment"]), 600))
        if "fault" in said:
            if said.get("not_run") is True:
                raise NotRun(printable(str(said["fault"]), 600))
            self.end()
            words, finding = visible(str(said["fault"]), 600), said.get("finding")
            if not isinstance(finding, dict) or self._fault is not KernelFault:
                finding = {}
            if finding.get("kind") in _SEEN_THERE and isinstance(finding.get("lines"), list):
                lines = tuple(printable(str(line), 100) for line in finding["lines"][:8])
                raise KernelFinding(finding["kind"], words, lines)
            fault = self._fault(words)
            fault.cause = visible(str(said.get("cause", "")), 300)
            fault.trace = _trace(said.get("trace"))
            raise fault
        if said.get("ok") is not True:
            self.garbage()
        return said

    def _exchange(
        self, budget: Budget, what: str, message: bytes | None = None, handles: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Send a message, if there is one, and receive one.

        Raises KernelFault if none arrives in time or it is invalid.
        """
        assert self._channel is not None
        try:
            with budget.spent() as deadline:
                if message is not None:
                    self._channel.send(message, deadline, handles)
                said = json.loads(self._channel.receive(deadline))
        except Late:
            self.hangs += 1
            self.stop()
            fault = self._fault(f"{self.who} did not {what} within {budget.seconds:g} s")
            fault.late = True
            raise fault from None
        except (EOFError, OSError):
            self._dead()
        except (Garbled, ValueError, RecursionError):
            self.garbage()
        except KeyboardInterrupt:  # its answer may still come
            self._interrupted = True
            raise
        if not isinstance(said, dict):
            self.garbage()
        return said

    def garbage(self) -> NoReturn:
        """End the process after an invalid answer. Raises KernelFault."""
        self.stop()
        raise self._fault(f"{self.who}'s process sent an answer that is not valid")

    def _dead(self) -> NoReturn:
        """Raise KernelFault with a description of how the process ended."""
        assert self.process is not None
        code = self.process.wait(2.0)
        how, cause = "its process stopped answering", ""
        if stopped_for := self.process.stopped_for:
            how = f"its process was killed, since it {stopped_for}"
        elif code is not None:
            died = signal_name(code)
            cause = died or ""
            how = f"its process died of {died}" if died else f"its process ended with exit code {code}"
        lines = self.process.last_lines(4096)
        said = f"; its last line of output: {printable(lines[-1], 200)}" if lines else ""
        self.stop()
        fault = self._fault(f"{self.who} crashed: {how}{said}")
        fault.cause = cause
        raise fault

    def end(self) -> None:
        """Ask the process its last questions, if it still answers, and end it."""
        ending, self.ending, hangs = self.ending, _ask_nothing, self.hangs
        self._last = Budget(min(_LAST, self._time_limit))
        try:
            if self.process is not None:
                ending(self)
        finally:
            self.ending, self.hangs, self._last = ending, hangs, None
            self.stop()

    def stop(self) -> None:
        """End the process."""
        self.look()
        process, self.process, self._channel = self.process, None, None
        if process is not None:
            process.close(60.0)
