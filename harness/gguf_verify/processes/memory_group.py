"""A memory limit enforced by the system, if it lets this user make control groups.

A group also counts memory that is not a process's own, such as files of a tmpfs, pipes and socket buffers. Uses only
the standard library.

Sources: cgroups(7); Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

_MOUNTED, _OWN = "/sys/fs/cgroup", "/proc/self/cgroup"
#: Bytes added to the limit for page tables and the like.
_OVERHEAD = 64 << 20
#: Time limit in seconds for the last process of a group to be gone.
_PATIENCE = 2.0


class MemoryGroup:
    """A control group that limits memory.

    Args:
        folder: the group's folder.
        counter: name of the file with the system's count of processes killed in the group.
    """

    def __init__(self, folder: str, counter: str) -> None:
        self._folder, self._counter = folder, f"{folder}/{counter}"

    def enter(self) -> None:
        """Move this process, and all that it will start, into the group. Raises OSError."""
        _write(f"{self._folder}/cgroup.procs", "0")

    @property
    def exceeded(self) -> bool:
        """Whether the system killed a process of the group for its memory."""
        with contextlib.suppress(OSError):
            found = re.search(r"(?m)^oom_kill (\d+)", _read(self._counter))
            return found is not None and found[1] != "0"
        return False

    def remove(self) -> None:
        """Remove the group after its processes have ended."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                return os.rmdir(self._folder)
            except FileNotFoundError:
                return None
            except OSError:
                time.sleep(0.01)
        return None


def make(limit: int) -> MemoryGroup | None:
    """Make a group with a limit in bytes; None if none can be made."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read(_OWN).splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                limits = {"memory.limit_in_bytes": limit + _OVERHEAD, "memory.memsw.limit_in_bytes": limit + _OVERHEAD}
                return _made(os.path.join(_MOUNTED, "memory", path.lstrip("/")), limits, "memory.oom_control")
            if number == "0":
                # a group with processes cannot contain groups with limits, so make it beside ours
                limits = {"memory.max": limit + _OVERHEAD, "memory.swap.max": 0, "memory.oom.group": 1}
                ours = os.path.join(_MOUNTED, path.strip("/")).rstrip("/")
                if (made := _made(os.path.dirname(ours), limits, "memory.events")) is not None:
                    return made
    return None


def _made(parent: str, limits: dict[str, int], counter: str) -> MemoryGroup | None:
    """Make a group. The first limit must take effect; not every system has the others."""
    folder = f"{parent}/gguf-verify-{os.getpid()}"
    required = next(iter(limits))
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # left by a killed process with the same id
    try:
        os.mkdir(folder)
    except OSError:
        return None
    for name, value in limits.items():
        try:
            if not os.path.exists(f"{folder}/{name}"):  # in an ordinary folder, writing would create it
                raise FileNotFoundError(name)
            _write(f"{folder}/{name}", str(value))
        except OSError:
            if name == required:
                MemoryGroup(folder, counter).remove()
                return None
    return MemoryGroup(folder, counter)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
