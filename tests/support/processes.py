"""What tests ask of other processes. Each may end between two looks at it: that is never an error here."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def _fields(pid: int) -> list[str]:
    """State, parent and what follows in a process's line, or nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether a process is there and runs: one that has ended and was not reaped does not."""
    fields = _fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def children(pid: int) -> list[int]:
    """The processes whose parent is this one."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [other for other in pids if _fields(other)[1:2] == [str(pid)]]


def descendants(pid: int) -> list[int]:
    """The processes below this one that have a parent among them, by one look at all processes: one for each of them
    would take longer than what tests wait for."""
    below: dict[str, list[int]] = {}
    for other in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        for parent in _fields(other)[1:2]:
            below.setdefault(parent, []).append(other)
    found = [pid]
    for each in found:
        found += below.get(str(each), [])
    return found[1:]


def any_works(pids: Callable[[], Iterable[int]], seconds: float = 0.05) -> bool:
    """Whether one of these processes takes so much processor time within a while, from when it was first seen: it is in
    the middle of its work. Others may be idle or end, and further ones may begin."""
    first: dict[int, int] = {}

    def one_does() -> bool:
        return any(
            _processor_ticks(pid) - first.setdefault(pid, _processor_ticks(pid)) >= seconds * os.sysconf("SC_CLK_TCK")
            for pid in pids()
        )

    return wait_until(one_does)


def works(pid: int) -> bool:
    """Whether one process takes a fifth of a second of processor time within a while."""
    return any_works(lambda: [pid], 0.2)


def _processor_ticks(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether a condition comes true within a while."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def gone(pids: Iterable[int]) -> bool:
    """Whether processes end within a while."""
    listed = list(pids)
    return wait_until(lambda: not any(map(alive, listed)))


def kept(keeper: int) -> int:
    """The process that a keeper keeps, once it runs a module of this project; the keeper itself where none comes."""
    found = [keeper]

    def innermost() -> bool:
        found[:] = [keeper]
        while below := children(found[0]):
            found[:] = below[:1]
        try:
            return b"\0-P\0" in Path(f"/proc/{found[0]}/cmdline").read_bytes()
        except OSError:
            return False

    return found[0] if wait_until(innermost) else keeper


def end_kept(keeper: int, number: int) -> None:
    """Send a deadly signal to the process that a keeper keeps, and wait until it has ended."""
    pid = kept(keeper)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    assert gone([pid])
