"""Attacks by ending, or not ending, at the wrong moment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from ._attack import Targets, attack, lasting

_EVERY = ("call", "pack", "import", "oracle")
_SAID = "the parent's side of the conversation: the end of the process is a fault in one line"


@attack(_SAID, r"", alone=True, exits=(1, 2), moments=_EVERY)
def leaves_silently(t: Targets) -> None:
    """It ends with exit code 0 before its answer."""
    os._exit(0)


@attack(_SAID, r"", alone=True, exits=(1, 2), moments=_EVERY)
def exits(t: Targets) -> None:
    """It raises SystemExit of 0."""
    sys.exit(0)


@attack("a deadline", r"", alone=True, exits=(1, 2), moments=_EVERY, limit=1.0, seconds=45.0)
def hangs(t: Targets) -> None:
    """It never returns, and ignores every signal that it can."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ctypes.CDLL(None).signal(number, 1)
    lasting()


@attack(_SAID, r"", alone=True, exits=(1, 2))
def overflows_its_stack(t: Targets) -> None:
    """It calls itself without end, in C."""
    callback = ctypes.CFUNCTYPE(None)
    sys.setrecursionlimit(1 << 30)
    ctypes.CDLL(None).getenv.restype = ctypes.c_char_p

    def down() -> None:
        callback(down)()

    down()


@attack("a deadline", r"", alone=True, limit=1.0, seconds=45.0)
def swallows_crashes(t: Targets) -> None:
    """It handles its own access to no memory by going back to it."""
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGSEGV, 1)
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
    libc.signal(signal.SIGSEGV, handler)
    threading.Thread(target=time.sleep, args=(0.1,)).start()
    ctypes.string_at(0)


@attack(_SAID, r"", alone=True, exits=(1, 2))
def raises_what_cannot_be_shown(t: Targets) -> None:
    """It raises an exception whose text, type and representation raise."""

    class Hidden(BaseException):
        def __str__(self) -> str:
            raise Hidden

        __repr__ = __str__

    Hidden.__name__ = "\x1b[2J\n" * 1000
    raise Hidden


@attack("the judge is another process than the kernel's", r"", alone=True, exits=(1, 2, 3))
def replaces_the_judge(t: Targets) -> None:
    """It replaces, in its own process, every function that compares, so that nothing seems wrong."""
    import numpy as np

    for name, module in list(sys.modules.items()):
        if name.startswith("gguf_verify"):
            for what in ("unchanged", "same_bits", "outside", "poisoned", "judge", "raised"):
                if hasattr(module, what):
                    setattr(module, what, lambda *_, **__: None)
    np.array_equal = lambda *_, **__: True
