"""Ctrl-C and SIGTERM end a command as an exception does, once, so that what was found can be reported."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from ..support.errors import EXIT_INTERRUPTED, Interrupted

#: A second Ctrl-C ends the process at once, but not one that comes with the first: a shell and `timeout` may both send
#: the signal, and a process that is ending must not be killed for that.
_TOGETHER = 1.0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM raises Interrupted and SIGINT KeyboardInterrupt in the main thread, the first that comes. A signal that
    is ignored (nohup, a shell's background job) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    state = _State()
    heeded = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, state.take) for number in heeded}
    hook, sys.unraisablehook = sys.unraisablehook, state.unraisable
    state.hook = hook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


class _State:
    def __init__(self) -> None:
        self.first: float | None = None
        self.hook = sys.unraisablehook

    def take(self, number: int, _frame: FrameType | None) -> None:
        """The handler of both signals."""
        if self.first is None:
            self.first = time.monotonic()
            raise KeyboardInterrupt if number == signal.SIGINT else Interrupted(signal.Signals(number).name)
        if number == signal.SIGINT and time.monotonic() - self.first > _TOGETHER:
            os._exit(EXIT_INTERRUPTED["SIGINT"])  # the processes that were started end with their parent

    def unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Where the exception was raised in a callback or a destructor, which cannot pass it on, it is raised again."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self.hook(what)
            return
        self.first = None
        number = signal.SIGTERM if isinstance(what.exc_value, Interrupted) else signal.SIGINT
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
