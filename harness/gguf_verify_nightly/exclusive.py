"""The lock and the signal handlers of a night: one process per configuration, and a signal ends all its children."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import EnvironmentFault, HarnessError
from gguf_verify.support.files import open_lock
from gguf_verify.support.text import printable

from .config import Config

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(HarnessError):
    """A signal ended the night; it can be resumed."""

    def __init__(self, number: int, reason: str = "interrupted; the same command resumes the night") -> None:
        super().__init__(reason)
        self.exit_code = 128 + number


@contextlib.contextmanager
def locked(config: Config) -> Iterator[None]:
    """Allow one night of a configuration and history at a time. The lock ends with the process, even if that is killed.

    Raises EnvironmentFault if another process has the lock.
    """
    path = config.history.with_name(f"{config.history.name}.{config.name}.lock")
    try:
        file = open_lock(path)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {printable(str(path), 200)}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = printable(file.read(20).strip(), 20)
            by = f", by process {pid}" if pid else ""
            raise EnvironmentFault(f'a night of "{config.name}" is already running{by}') from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def interruptible() -> Iterator[Processes]:
    """Provide `Processes` that are killed by a signal, which then raises Interrupted. Recorded cells stay recorded."""
    processes = Processes()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # this process is ending already
        processes.stop()
        raise Interrupted(number, f"interrupted by {signal.Signals(number).name}; the same command resumes the night")

    before = {}
    if threading.current_thread() is threading.main_thread():
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores one
        before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        processes.close()
