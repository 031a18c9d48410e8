"""Files that processes have mapped, as the system lists them."""

from __future__ import annotations

import os
from pathlib import Path

from . import boundary

#: Marks processes whose mapped files the system does not show.
UNSEEN = "/proc/self/maps"
#: Prefixes of the names of mapped memory that is not a file in a folder.
_NO_FILES = ("/memfd:", "/dev/", "/SYSV", "/anon_hugepage", "/proc/", "/drm", "/i915")
#: More bytes than a process's line in /proc/PID/stat has.
_MOST_STAT = 4096


def mapped_files(pid: int) -> set[str]:
    """Return absolute paths of files mapped by the descendants of a process; `UNSEEN` for one that cannot be inspected.
    The system adds " (deleted)" to the name of a file that was removed or replaced.

    A process in another mount namespace has its own names for files; under bubblewrap they equal this machine's.
    """
    found, left, children = set[str](), [(pid, False)], _children()
    while left:
        parent, inside = left.pop()
        for each in children.get(parent, ()):
            try:
                # excludes bubblewrap itself, but not one that the process started
                within = inside or os.path.realpath(f"/proc/{each}/exe") != boundary.program()
                left.append((each, within))
                if within:
                    found |= _mapped(Path(f"/proc/{each}/maps").read_bytes())
            except PermissionError:
                found.add(UNSEEN)
            except OSError:
                continue  # it has ended
    return found


def _mapped(maps: bytes) -> set[str]:
    """Parse a list of mappings: address, rights, offset, device, inode, path."""
    # a library has several mappings, so that paths are decoded once; a path may contain other line endings than \n
    files = {
        (fields[5], b"x" in fields[1])
        for line in maps.split(b"\n")
        if b" /" in line and len(fields := line.split(None, 5)) == 6 and fields[4] != b"0" and fields[5][:1] == b"/"
    }
    found = set()
    for name, executable in files:
        path = os.fsdecode(name.replace(rb"\012", b"\n"))
        # a library may be in /dev/shm; non-executable files there are shared data
        if not path.startswith(_NO_FILES) or (path.startswith("/dev/shm/") and executable):
            found.add(path)
    return found


def _children() -> dict[int, list[int]]:
    """Return process → child processes, at one moment."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as stat:
                    parent = int(stat.read(_MOST_STAT).rpartition(b")")[2].split(None, 2)[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    return children
