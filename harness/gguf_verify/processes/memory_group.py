"""A limit of memory that the system keeps, where it lets this user make control groups.

What a process takes otherwise than as memory of its own, such as files of a tmpfs, pipes and buffers of sockets, counts
in a group as well. Only the standard library is used.

Sources: cgroups(7); Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

_MOUNTED, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Page tables and the like, beside what is limited.
_OVERHEAD = 64 << 20
#: Seconds for the last process of a group to be gone.
_PATIENCE = 2.0


class MemoryGroup:
    """A control group that limits memory.

    Args:
        folder: the group.
        counter: the file in which the system counts the processes that it killed there.
    """

    def __init__(self, folder: Path, counter: str) -> None:
        self._folder, self._counter = folder, folder / counter

    def enter(self) -> None:
        """Move this process into the group, with all that it will start. Raises OSError."""
        (self._folder / "cgroup.procs").write_text("0")

    @property
    def exceeded(self) -> bool:
        """Whether the system killed a process of the group for memory."""
        with contextlib.suppress(OSError):
            found = re.search(r"(?m)^oom_kill (\d+)", self._counter.read_text())
            return found is not None and found[1] != "0"
        return False

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                return self._folder.rmdir()
            except FileNotFoundError:
                return None
            except OSError:
                time.sleep(0.01)
        return None


def make(limit: int) -> MemoryGroup | None:
    """A group of at most so many bytes; None where none can be made."""
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                limits = {"memory.limit_in_bytes": limit + _OVERHEAD, "memory.memsw.limit_in_bytes": limit + _OVERHEAD}
                return _made(_MOUNTED / "memory" / path.lstrip("/"), limits, "memory.oom_control")
            if number == "0":
                # a group that holds processes cannot hold groups with limits, so it lies beside ours
                limits = {"memory.max": limit + _OVERHEAD, "memory.swap.max": 0, "memory.oom.group": 1}
                if (made := _made((_MOUNTED / path.lstrip("/")).parent, limits, "memory.events")) is not None:
                    return made
    return None


def _made(parent: Path, limits: dict[str, int], counter: str) -> MemoryGroup | None:
    """The first of the limits must hold; not every system has the others."""
    folder = parent / f"gguf-verify-{os.getpid()}"
    required = next(iter(limits))
    with contextlib.suppress(OSError):
        folder.rmdir()  # that of a killed process of the same number
    try:
        folder.mkdir()
    except OSError:
        return None
    for name, value in limits.items():
        try:
            if not (folder / name).exists():  # the file system would make it, were it no control group
                raise FileNotFoundError(name)
            (folder / name).write_text(str(value))
        except OSError:
            if name == required:
                MemoryGroup(folder, counter).remove()
                return None
    return MemoryGroup(folder, counter)
