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


def main() -> None:
    link = Connection(int(sys.argv[1]))
    names = NAMES | {f.__name__: f for f in (connects, forks, prints, fills, holds, only_read)}
    names["take"] = Taken(link).take
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
