"""The time of a command, and the memory of its process with all its children."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


def tree(pid: int) -> list[int]:
    """A process, its children, and theirs."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            out += tree(int(child))
    return out


def memory(pid: int) -> tuple[int, int]:
    """Bytes of a process's proportional set, which counts a shared page once, and the part of it that no file backs."""
    whole = anonymous = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "Pss":
            whole = int(value.split()[0]) * 1024
        elif key == "Pss_Anon":
            anonymous = int(value.split()[0]) * 1024
    return whole, anonymous


@dataclass(frozen=True)
class Measured:
    """A run: exit code, wall time in seconds, peak memory in bytes, and the peak of the memory that no file backs."""

    code: int
    seconds: float
    peak: int
    peak_anonymous: int


def measured(command: Sequence[str | Path], quiet: bool = False, watched: bool = True) -> Measured:
    """Run a command; if it is `watched`, look ten times a second at the memory of it and its children. Watching takes a
    few hundredths of the time of a run that lasts a second."""
    output = subprocess.DEVNULL if quiet else None
    # `gguf-verify measure` sets this for itself: the command gets what its user would give it
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    start = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=output, env=environment)
    peaks = [0, 0]

    def watch() -> None:
        while process.poll() is None:
            with contextlib.suppress(OSError):  # a process ended while it was looked at
                sums = [sum(each) for each in zip(*(memory(p) for p in tree(process.pid)), strict=True)]
                peaks[:] = [max(pair) for pair in zip(peaks, sums, strict=True)]
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    if watched:
        watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - start
    if watched:
        watcher.join()
    return Measured(code, seconds, *peaks)
