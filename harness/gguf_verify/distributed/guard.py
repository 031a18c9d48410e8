"""Ends Ray's processes where the run that started them was killed: `python -I -S guard.py`.

Its standard input is a pipe. The run writes a line that is in the environment of all these processes, and `DONE` once
it has ended Ray itself. Where the pipe is closed before that, the run is dead: Ray's own agents would notice that after
a minute. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

DONE = b"done"
#: Seconds in which all must be gone, and looks in which none is found, after which none is left.
_PATIENCE, _QUIET = 20.0, 5
#: Seconds between two looks, and for the guard to end.
_LOOK, _TO_END = 0.1, 10.0


@contextlib.contextmanager
def guarded(mark: str) -> Iterator[None]:
    """If this process is killed in this block, so are the processes that have `mark` in their environment."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0,
    )  # fmt: skip
    assert process.stdin is not None
    with process.stdin, contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{mark}\n".encode())
        try:
            yield
        finally:
            process.stdin.write(DONE)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TO_END)


def _kill(pid: int, mark: bytes) -> bool:
    """Whether a process has the line; then it is killed, and no other that got its number."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return True
        finally:
            os.close(handle)
    return False


def main() -> None:
    """Wait for the end of the run."""
    mark, _, done = sys.stdin.buffer.read().partition(b"\n")
    if mark and done != DONE:
        # Kill the processes of this user that have a line in their environment, and those that they start meanwhile.
        end, quiet = time.monotonic() + _PATIENCE, 0
        while quiet < _QUIET and time.monotonic() < end:
            others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
            found = [_kill(pid, mark) for pid in others]
            quiet = 0 if any(found) else quiet + 1
            time.sleep(_LOOK)


if __name__ == "__main__":
    main()
