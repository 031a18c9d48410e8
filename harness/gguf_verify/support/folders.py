"""Check that a folder is private to this user: no one else can have written its content or replaced it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .text import printable

#: Limit of folders and links on the path to a folder.
_MOST = 256


def fault_of_folder(path: Path) -> str | None:
    """Say why the content of a folder cannot be trusted; None if it can.

    The folder must belong to this user, and no one else may write to it. Each folder and symbolic link on the path to
    it must belong to this user or to root; others may write to such a folder only if its sticky bit is set, which
    keeps them from renaming files of other users. Raises OSError if the folder cannot be inspected.
    """
    about = os.stat(path)
    if about.st_uid != os.geteuid():
        return f"{printable(str(path), 200)} belongs to another user"
    if others := _who_may_write(about):
        return f"{printable(str(path), 200)} can be written by {others}"
    left = list(Path(os.path.abspath(path)).parts[1:])
    here = "/"
    for _ in range(_MOST):
        if why := _fault_on_the_way(here):
            return why
        if not left:
            return None
        name = left.pop(0)
        if name == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, name)
        one = os.lstat(step)
        if stat.S_ISLNK(one.st_mode):
            if not _trusted(one.st_uid):
                return f"{printable(step, 200)}, a link on the way to it, belongs to another user"
            target = Path(os.readlink(step))
            here = "/" if target.is_absolute() else here
            left = [part for part in target.parts if part != "/"] + left
            continue
        here = step
    return f"{printable(str(path), 200)} is behind too many links"


def _fault_on_the_way(folder: str) -> str | None:
    about = os.lstat(folder)
    if not _trusted(about.st_uid):
        return f"{printable(folder, 200)}, which holds it, belongs to another user"
    if about.st_mode & stat.S_ISVTX:
        return None
    others = _who_may_write(about)
    return f"{printable(folder, 200)}, which holds it, can be written by {others}" if others else None


def _trusted(uid: int) -> bool:
    """Whether an owner is trusted: this user; root, who can do anything anyway; or, in a user namespace, the overflow
    user, who stands for all users outside it."""
    return uid in (0, os.geteuid()) or (uid == _outside() and not _sees_all_users())


def _outside() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 0


def _sees_all_users() -> bool:
    try:
        first = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return True
    return first[:2] == ["0", "0"] and int(first[2]) >= 2**32 - 1


def _who_may_write(about: os.stat_result) -> str | None:
    """Return who else may write: "everybody", or a group with other members than this user; None if no one."""
    if about.st_mode & stat.S_IWOTH:
        return "everybody"
    if about.st_mode & stat.S_IWGRP and not _own_group(about.st_gid):
        return f"group {about.st_gid}"
    return None


def _own_group(gid: int) -> bool:
    """Whether a group is a user private group: named after this user, with this user as its only member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
