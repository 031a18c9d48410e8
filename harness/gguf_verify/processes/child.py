"""A child process and the socket to it: starting, confinement, its end, and its last output.

Requests, time limits and the meaning of a process's death are up to the callers. This module is imported before NumPy,
so that a child can start early.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support import scratch
from ..support.paths import PACKAGE
from . import boundary, keeper, sandbox, syscalls
from .keeper import Log
from .sandbox import Confinement

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

#: Time limit in seconds for a keeper to end its processes, which takes milliseconds; then it is killed too.
_PATIENCE = 20.0
#: Time limit in seconds for waiting for the last output of a process.
_SETTLES = 2.0


class Kept(ABC):
    """A process, and a keeper that ends everything it started.

    Args:
        verbose: also print the process's output on standard error.
        confined: what the process may do; None: what we may.
    """

    def __init__(self, verbose: bool = False, confined: Confinement | None = None) -> None:
        self._closing = threading.Lock()
        self._verbose, self._confined = verbose, confined
        self._lifeline: int | None = None
        self._log: Log | None = None
        #: Our copy of the reading end of the output pipe: it shows whether unread output is waiting.
        self._printed: int | None = None
        #: The process's own folder, if it has one.
        self.folder: Path | None = None
        handle = os.memfd_create("gguf-verify-log", os.MFD_CLOEXEC)
        lifeline, theirs = None, None
        try:
            self._printed, theirs = os.pipe()
            os.ftruncate(handle, Log.SIZE)
            self._log = Log(handle)
            if confined is not None:
                self.folder = confined.folder or scratch.folder("own")
            lifeline, self._lifeline = os.pipe()
            self._pipe = self._printed, theirs
            self._start(lifeline, handle)
        except BaseException:
            self._release()
            raise
        finally:
            os.close(handle)
            for each in (lifeline, theirs):
                if each is not None:
                    os.close(each)

    @abstractmethod
    def _start(self, lifeline: int, log: int) -> None:
        """Start the process under a keeper with these descriptors."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The keeper's process id."""

    @abstractmethod
    def _kill_keeper(self) -> None: ...

    @abstractmethod
    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit code, or minus the number of the ending signal; None if it still runs after `seconds`."""

    def _spec(self, lifeline: int, log: int, kind: str) -> dict[str, Any]:
        """Return the keeper's specification. `kind` is the sandbox's."""
        spec: dict[str, Any] = {"lifeline": lifeline, "log": log, "echo": self._verbose, "printed": self._pipe}
        if self._confined is not None and self.folder is not None:
            spec |= sandbox.spec_of(self._confined, self.folder, kind)
        return spec

    @property
    def alive(self) -> bool:
        return self.wait(0) is None

    @property
    def stopped_for(self) -> str:
        """The limit that it exceeded and was killed for, as a verb phrase; "" if none."""
        with self._closing:
            return "" if self._log is None else self._log.reason

    def kill(self) -> None:
        """Kill the process and everything it started. They may take some milliseconds to end."""
        with self._closing:
            self._let_go()

    def _let_go(self) -> None:
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    def close(self, seconds: float | None = None) -> None:
        """Kill the process, wait up to `seconds` for its end, and remove its folder."""
        self.kill()
        if self.wait(_PATIENCE if seconds is None else min(seconds, _PATIENCE)) is None:
            self._kill_keeper()
            self.wait(seconds)
        self._release()

    def _release(self) -> None:
        with self._closing:
            self._let_go()
            log, self._log = self._log, None
            if log is not None:
                log.close()
            printed, self._printed = self._printed, None
            if printed is not None:
                os.close(printed)
        if self.folder is not None and (self._confined is None or self._confined.folder is None):
            scratch.remove_folder(self.folder)

    # One thread may end the process while another finds it dead and reads its last lines. A descriptor must not be used
    # or closed twice: its number may belong to another file by then.

    @property
    def printed(self) -> int:
        """Number of bytes printed so far."""
        with self._closing:
            return 0 if self._log is None else self._log.total

    def _settle(self) -> None:
        """Wait briefly until the keeper has read everything printed so far. The caller holds the lock."""
        end, empty, held = time.monotonic() + _SETTLES, 0, array.array("i", [0])
        while self._printed is not None and empty < 2 and time.monotonic() < end:
            fcntl.ioctl(self._printed, termios.FIONREAD, held)
            empty = 0 if held[0] else empty + 1
            time.sleep(0.002)

    def last_lines(self, nbytes: int, since: int = 0) -> list[str]:
        """Return the nonblank lines in the last `nbytes` bytes of output, without the first `since` bytes; none after
        `close`."""
        with self._closing:
            self._settle()
            return [] if self._log is None else _lines(self._log.last(nbytes, since))

    def first_lines(self) -> list[str]:
        """Return the nonblank lines in the first bytes of output; none after `close`."""
        with self._closing:
            return [] if self._log is None else _lines(self._log.first())


def _lines(raw: bytes) -> list[str]:
    return [line.strip() for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]


class ChildProcess(Kept):
    """A kept process and our end of the socket to it.

    Args:
        stall: seconds after which an interrupted message raises OSError; None waits forever.
        verbose, confined: as for `Kept`.
    """

    def __init__(self, verbose: bool = False, stall: float | None = None, confined: Confinement | None = None) -> None:
        self._ours, self._theirs = socket.socketpair()
        if stall is not None:
            seconds, rest = divmod(stall, 1)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(rest * 1e6)))
        with self._theirs:
            super().__init__(verbose, confined)

    @cached_property
    def link(self) -> Connection:
        """Our end of the socket."""
        from multiprocessing.connection import (
            Connection,
        )  # imported late, so that the process starts while the caller imports the rest

        return Connection(self._ours.detach())

    def hang_up(self) -> None:
        """Close our end of the socket."""
        with self._closing:
            self.link.close()

    def _release(self) -> None:
        # the process has ended by now, so a waiting thread wakes up
        self.hang_up()
        super()._release()


class _Program(Kept):
    """A command under a keeper."""

    _process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self._process.pid

    def _kill_keeper(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def wait(self, seconds: float | None = None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _run(
        self, command: Sequence[str], lifeline: int, log: int, handles: Sequence[int], environment: dict[str, str]
    ) -> None:
        """Start a command with these descriptors and additional variables."""
        kind, variables = "none", {**os.environ, **scratch.environment()}
        passed, program = [*handles, lifeline, log, *self._pipe], None
        if self._confined is not None and self.folder is not None:
            kind = sandbox.current().kind
            if kind != "none":
                variables = sandbox.environment(self.folder)
            if kind == "bubblewrap":
                asked = environment.get("PYTHONPATH", "").split(os.pathsep)
                confined = replace(self._confined, shown=(*self._confined.shown, *map(Path, filter(None, asked))))
                program = os.memfd_create("gguf-verify-filter")
                os.write(program, syscalls.filter_program(bool(boundary.devices_of(confined.devices))))
                os.lseek(program, 0, os.SEEK_SET)
                passed.append(program)
                command = [*boundary.command(confined, self.folder, program), *command]
        paths = [str(PACKAGE.parent), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
        spec = json.dumps(self._spec(lifeline, log, kind))
        output = _standard_error()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(keeper.__file__), spec, *command],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**variables, "PYTHONPATH": os.pathsep.join(paths), **environment},
            )
        finally:
            if program is not None:
                os.close(program)


class Command(_Program):
    """A command without a socket.

    Args:
        command: found on PATH.
        verbose, confined: as for `Kept`.
    """

    def __init__(self, command: Sequence[str], verbose: bool = False, confined: Confinement | None = None) -> None:
        self._command = tuple(command)
        super().__init__(verbose, confined)

    def _start(self, lifeline: int, log: int) -> None:
        self._run(self._command, lifeline, log, (), {})


class Spawned(_Program, ChildProcess):
    """The process `python -m MODULE ARGUMENTS… FD`, where FD is its end of the socket.

    Args:
        environment: variables in addition to ours, or to those of a confined process.
        before: a program and its arguments that run the command.
        handles: descriptors to pass on besides the socket, under the same numbers. They stay the caller's.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        verbose: bool = False,
        stall: float | None = None,
        before: Sequence[str] = (),
        confined: Confinement | None = None,
        handles: Sequence[int] = (),
    ) -> None:
        self._module, self._arguments, self._environment = module, arguments, environment or {}
        self._before, self._handles = tuple(before), tuple(handles)
        super().__init__(verbose, stall, confined)

    def _start(self, lifeline: int, log: int) -> None:
        handle = self._theirs.fileno()
        # -P: do not import from the working directory, which may come from anywhere
        command = [*self._before, boundary.interpreter(), "-P", "-m", self._module, *self._arguments, str(handle)]
        self._run(command, lifeline, log, [handle, *self._handles], self._environment)


class Forked(ChildProcess):
    """A fork of this process that runs a function with its end of the socket, and holds none of our other descriptors.

    bubblewrap can only start programs, so a fork is confined only by the accident guard.
    """

    def __init__(
        self, run: Callable[[Connection], None], verbose: bool, stall: float, confined: Confinement | None = None
    ) -> None:
        self._run = run
        super().__init__(verbose, stall, confined)

    def _start(self, lifeline: int, log: int) -> None:
        import multiprocessing
        from multiprocessing.connection import Connection

        kind = "none" if self._confined is None else sandbox.of_fork().kind
        spec = self._spec(lifeline, log, kind) | {"fork": True}
        variables = None if kind == "none" or self.folder is None else sandbox.environment(self.folder)

        def run() -> None:
            handle = self._theirs.detach()
            _blank_all_but({handle})
            if variables is not None:
                os.environ.clear()
                os.environ.update(variables)
            self._run(Connection(handle))

        def keep() -> None:
            os.setsid()
            _blank_all_but({self._theirs.fileno(), lifeline, log, *self._pipe})
            keeper.prepare()
            keeper.end_as(keeper.keep(run, spec))

        self._process: BaseProcess = multiprocessing.get_context("fork").Process(target=keep, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def _kill_keeper(self) -> None:
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode


def _standard_error() -> int:
    """Return the descriptor of standard error; /dev/null's if standard error is no file, as in a notebook."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL


def _blank_all_but(kept: set[int]) -> None:
    """Point every descriptor but these and the standard ones to /dev/null.

    They are not closed: an object that owns one may close its number later, when it belongs to another file.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in map(int, os.listdir("/proc/self/fd")):
        if each > 2 and each != null and each not in kept:
            with contextlib.suppress(OSError):
                os.dup2(null, each, inheritable=False)
    os.close(null)


def signal_name(code: int) -> str | None:
    """Return the name of the signal of a negative exit code; None for other codes and unknown signals."""
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code < 0 else None
    return None
