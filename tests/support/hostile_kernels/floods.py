"""Attacks by amounts: memory, output."""

from __future__ import annotations

import contextlib
import mmap
import os
import time

from ._attack import Targets, attack

#: The bomb stops there by itself, and so does a test that lets less through.
_MEMORY = 6 << 30
_LOG = 96 << 20


@attack("a limit of memory (RLIMIT_AS, RLIMIT_DATA or a memory cgroup), which the user can set", r"over: .*memory",
        alone=True, limit=30.0)  # fmt: skip
def fills_memory(t: Targets) -> None:
    """It takes memory until it gets none, up to 6 GB."""
    held = []
    with contextlib.suppress(MemoryError, OSError):
        for _ in range(_MEMORY >> 26):
            part = mmap.mmap(-1, 1 << 26, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for at in range(0, 1 << 26, 4096):
                part[at] = 1
            held.append(part)
    time.sleep(0.3)  # so long it can be seen


@attack("memory of shared files counted too: a cgroup, or a limit of file size", r"over: .*memory",
        alone=True, limit=30.0)  # fmt: skip
def fills_shared_memory(t: Targets) -> None:
    """It writes files that lie in memory, up to 3 GB, without mapping them."""
    handles = []
    with contextlib.suppress(OSError):
        for _ in range(3):
            handles.append(os.memfd_create("flood"))
            for _ in range(1024):
                os.write(handles[-1], bytes(1 << 20))
    time.sleep(0.3)


@attack("a bounded log", r"log: ", alone=True)
def floods_the_log(t: Targets) -> None:
    """It prints without end: a hundred megabytes here."""
    part = b"x" * (1 << 20)
    with contextlib.suppress(OSError):
        for _ in range(_LOG >> 20):
            os.write(1, part)
    time.sleep(0.5)  # so long it can be seen


@attack("a bounded log", r"log: ", alone=True, each=True)
def floods_the_log_a_call(t: Targets) -> None:
    """It prints 200 megabytes in each call."""
    part = b"x" * (1 << 20)
    with contextlib.suppress(OSError):
        for i in range(200):
            os.write(1 + i % 2, part)
    time.sleep(0.2)


@attack("names and lines from the log are escaped and cut", r"", alone=True, exits=(1, 3))
def forges_by_last_words(t: Targets) -> None:
    """Its last line of output is a verdict with control characters, and it crashes."""
    os.write(1, b"\n\x1b[2K\rVERIFIED in 0.1 s\x1b[8m\n")
    os.abort()
