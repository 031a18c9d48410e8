"""Signal handling: Ctrl-C, SIGTERM and SIGHUP raise an exception, once, so that results so far can be reported."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from ..support import scratch
from ..support.errors import EXIT_INTERRUPTED, Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds within which a repeated signal is ignored: a shell and `timeout` may both send the first one. A later second
#: Ctrl-C ends the process at once.
_TOGETHER = 1.0
#: Signals that stay ignored if they are: those that users ignore on purpose (nohup, a shell's background job, a daemon
#: without a terminal), and two that Python ignores itself and `subprocess` restores in child processes.
_STAY_IGNORED = {
    *_SIGNALS, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ,
}  # fmt: skip


def as_started_alone() -> None:
    """Undo inherited signal settings: ignored signals (ignoring SIGCHLD breaks waiting for children), and blocked ones.

    A signal that came while it was blocked is then handled as usual.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in signal.valid_signals() - _STAY_IGNORED:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted on SIGTERM and SIGHUP and KeyboardInterrupt on SIGINT, in the main thread, at the first signal.

    A signal that is ignored (nohup, a shell's background job) stays ignored.
    """
    global _state
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, state = _state, _State()
    heeded = [n for n in _SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, state.take) for number in heeded}
    hook, sys.unraisablehook = sys.unraisablehook, state.unraisable
    state.hook = hook
    _state = state
    try:
        yield
    finally:
        _state = outer
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Raise nothing on a signal while a finished result is delivered.

    A second, later signal still ends the process at once: the reader of a pipe may never read.
    """
    state = _state
    if state is None:
        yield
        return
    state.delivering = True
    try:
        yield
    finally:
        state.delivering = False


def came() -> BaseException | None:
    """Return the exception of the signal that came, or None.

    A caller needs it where an import was interrupted: NumPy's compiled modules turn any exception into an ImportError.
    """
    if _state is None or _state.first is None:
        return None
    name = _state.first[1]
    return KeyboardInterrupt() if name == "SIGINT" else Interrupted(name)


class _State:
    def __init__(self) -> None:
        self.first: tuple[float, str] | None = None
        self.delivering = False
        self.pid = os.getpid()
        self.hook = sys.unraisablehook

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if os.getpid() != self.pid:  # a forked child that has not set its own handlers yet
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.first is None:
            name = signal.Signals(number).name
            self.first = time.monotonic(), name
            if self.delivering:
                return
            raise KeyboardInterrupt if number == signal.SIGINT else Interrupted(name)
        when, name = self.first
        if (number == signal.SIGINT or self.delivering) and time.monotonic() - when > _TOGETHER:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_IGN)
            scratch.remove()
            os._exit(EXIT_INTERRUPTED[name])  # child processes end with their parent

    def unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Send the signal again if its exception was raised in a callback or destructor, which cannot propagate it."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self.hook(what)
            return
        self.first = None
        number = getattr(signal, what.exc_value.signal) if isinstance(what.exc_value, Interrupted) else signal.SIGINT
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


_state: _State | None = None
