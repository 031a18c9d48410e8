"""Ctrl-C, SIGTERM and SIGHUP end a command as an exception does, once, so that what was found can be reported."""

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
#: A second Ctrl-C ends the process at once, but not one that comes with the first: a shell and `timeout` may both send
#: the signal, and a process that is ending must not be killed for that.
_TOGETHER = 1.0
#: Signals that stay ignored: those that a user has ignored (nohup, a shell's background job, a daemon without a
#: terminal), and two that Python ignores itself. `subprocess` restores these two for what it starts.
_STAY_IGNORED = {
    *_SIGNALS, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ,
}  # fmt: skip


def as_started_alone() -> None:
    """Undo what the caller of the command line left to it: ignored signals, of which SIGCHLD keeps a process from
    waiting for its children, and blocked ones. One that came while it was blocked is handled as any other."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in signal.valid_signals() - _STAY_IGNORED:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Interrupted and SIGINT KeyboardInterrupt in the main thread, the first that comes. A
    signal that is ignored (nohup, a shell's background job) stays so."""
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
    """A signal raises nothing here, where a result that is known is delivered. A second one, later, ends the process at
    once, as ever: whoever reads may never do so."""
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
    """What the signal that came raises; None where none did. An import that it ended may have made an ImportError of
    it: NumPy's compiled modules do so of any exception."""
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
        """The handler of all signals."""
        if os.getpid() != self.pid:  # a fork, which has set no handlers of its own yet
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
            os._exit(EXIT_INTERRUPTED[name])  # the processes that were started end with their parent

    def unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Where the exception was raised in a callback or a destructor, which cannot pass it on, it is raised again."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self.hook(what)
            return
        self.first = None
        number = getattr(signal, what.exc_value.signal) if isinstance(what.exc_value, Interrupted) else signal.SIGINT
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


_state: _State | None = None
