"""The files that processes have mapped, as the system lists them."""

from __future__ import annotations

import os
from pathlib import Path

from . import boundary

#: In place of files where the system does not say which they are.
UNSEEN = "/proc/self/maps"
#: How the names of mapped memory begin that is no file of a folder.
_NO_FILES = ("/memfd:", "/dev/", "/SYSV", "/anon_hugepage", "/proc/", "/drm", "/i915")


def mapped_files(pid: int) -> set[str]:
    """Absolute paths of the files that processes have mapped which a process started, directly or not; `UNSEEN` for
    one whose files may not be seen. The system adds " (deleted)" to the name of a file that was removed or replaced.

    A process that sees other folders than this one has the names that it knows them by; under bubblewrap they are this
    machine's, too.
    """
    found, left, children = set[str](), [(pid, False)], _children()
    while left:
        parent, inside = left.pop()
        for each in children.get(parent, ()):
            try:
                # bubblewrap itself, not one that the process started
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
    """The files of a list: address, rights, offset, device, inode, path."""
    found = set()
    for line in maps.split(b"\n"):  # a name may hold other ends of lines
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[4] != b"0" and fields[5].startswith(b"/"):
            path = os.fsdecode(fields[5].replace(rb"\012", b"\n"))
            # a library may lie in /dev/shm; what processes share there is no code
            if not path.startswith(_NO_FILES) or (path.startswith("/dev/shm/") and b"x" in fields[1]):
                found.add(path)
    return found


def _children() -> dict[int, list[int]]:
    """Process → those that it started, in one look."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    return children
