"""`python -m tests.support.attempts FD`: a process that tries what it is told, and says what came of it.

Each message is a Python expression; the answer is the `repr` of its value, or the name of the exception that it raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gguf_verify.processes.given import Taken, only_read

#: What expressions may use.
NAMES = {
    "Path": Path, "ctypes": ctypes, "os": os, "resource": resource, "signal": signal, "socket": socket,
    "subprocess": subprocess, "sys": sys, "time": time,
}  # fmt: skip


def connects(family: int, address: Any) -> str:
    """Connect to an address."""
    with socket.socket(family) as link:
        link.connect(address)
    return "connected"


def forks(n: int, seconds: float, sessions: bool = True) -> list[int]:
    """Start processes that sleep, each in a session of its own and deaf to requests to end; they end by themselves."""
    found = []
    for _ in range(n):
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                if sessions:
                    os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(seconds)
            os._exit(0)
        found.append(pid)
    return found


def prints(nbytes: int) -> int:
    """Print so much."""
    left = nbytes
    while left > 0:
        left -= os.write(1, b"x" * min(left, 1 << 16))
    return nbytes


def fills(folder: Path, nbytes: int, files: int) -> int:
    """Write so many files of so many bytes."""
    for i in range(files):
        (folder / str(i)).write_bytes(bytes(nbytes))
    return files


def holds(nbytes: int) -> str:
    """Take memory in small parts, and keep it."""
    kept: list[bytes] = []
    while len(kept) < nbytes >> 20:
        kept.append(b"x" * (1 << 20))
    time.sleep(600)
    return "held"


#: What `in_…` take: more than memory of 32 MiB and what else a group of it may hold.
_MUCH = 160 << 20


def in_files() -> int:
    """Take memory as files of each tmpfs, which are of a limited size."""
    for i in range(_MUCH >> 20):
        with contextlib.suppress(OSError), open(f"{('/tmp', '/dev/shm')[i % 2]}/{i}", "wb") as file:
            file.write(b"x" * (1 << 20))
    return _MUCH


def in_pipes() -> int:
    """Take memory as what waits in pipes."""
    return _fills_ends(lambda: os.pipe()[::-1])


def in_sockets() -> int:
    """Take memory as what waits in sockets."""
    return _fills_ends(lambda: tuple(end.detach() for end in socket.socketpair()))


def _fills_ends(make: Callable[[], tuple[int, ...]]) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    held = 0
    while held < _MUCH:
        end = make()[0]
        os.set_blocking(end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                held += os.write(end, bytes(1 << 16))
    return held


def main() -> None:
    link = Connection(int(sys.argv[1]))
    tries = (connects, forks, prints, fills, holds, in_files, in_pipes, in_sockets, only_read)
    names = NAMES | {f.__name__: f for f in tries} | {"take": Taken(link).take}
    with contextlib.suppress(EOFError, OSError):
        while True:
            try:
                said = repr(eval(link.recv_bytes().decode(), names))
            except (EOFError, ConnectionError):
                raise
            except BaseException as error:
                said = type(error).__name__
            link.send_bytes(said.encode())


if __name__ == "__main__":
    main()
