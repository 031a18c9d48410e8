"""The private folder that holds all temporary files of a run and is removed with it.

It is created on first use, in TMPDIR. The process that created it owns it: it holds a lock on a file in it while it
runs, and removes the folder when it ends. Child processes use the same folder, given by `environment`. A run that was
killed leaves its folder behind, with the lock free: the next run removes it.

Nothing here imports NumPy or takes long, so that a child can start early.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import EnvironmentFault

#: Environment variable that passes the folder to a child.
VARIABLE = "GGUF_VERIFY_SCRATCH"
PREFIX = "gguf-verify-"
_LOCK = "lock"
#: Seconds after which an empty folder without a lock counts as abandoned: its creator died before making the lock.
_A_DAY = 86400.0
#: Attempts to remove a folder that a process, while ending, still writes to.
_MOST_TRIES = 20


class _Own:
    """A folder that this process created, and the descriptor that holds its lock."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self.lock, self.pid = path, lock, os.getpid()


_own: _Own | None = None
_joined: Path | None = None
_making = threading.Lock()


def top() -> Path:
    """Return the folder, mode 0700. Raises EnvironmentFault if none can be created."""
    global _own
    with _making:
        if _own is not None and os.path.isdir(_own.path):
            return _own.path
        given = _joined or Path(os.environ.get(VARIABLE) or "/nonexistent")
        if _is_private(given):
            return given
        try:
            _own = _made()
        except OSError as error:
            raise EnvironmentFault(f"cannot create a temporary folder: {error.strerror or error}; set TMPDIR") from None
        return _own.path


def join(path: Path) -> None:
    """Use another process's folder, which that process removes; for processes that get no environment variable."""
    global _joined
    _joined = path


def environment() -> dict[str, str]:
    """Return the environment variable that makes a child use this folder."""
    return {VARIABLE: str(top())}


def folder(name: str) -> Path:
    """Create a private folder whose name begins with `name`. It is removed with the run, or by `remove_folder`."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=top()))


def shared(name: str) -> Path:
    """Return the private folder of exactly this name, which all processes of the run share."""
    path = top() / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextlib.contextmanager
def temporary(name: str) -> Iterator[Path]:
    """Create a private folder for the block, and remove it at the end."""
    path = folder(name)
    try:
        yield path
    finally:
        remove_folder(path)


def file(name: str) -> IO[bytes]:
    """Create a temporary file without a name."""
    return tempfile.TemporaryFile(prefix=f"{name}-", dir=top())


def remove() -> None:
    """Remove the folder if this process created it; the next use creates another one."""
    global _own
    own = _own
    if own is None or own.pid != os.getpid():  # a forked child inherits its parent's record
        return
    _own = None
    remove_folder(own.path)
    with contextlib.suppress(OSError):
        os.close(own.lock)


def remove_folder(path: Path) -> None:
    """Remove a folder and its content, whatever depths, modes and links a hostile process created in it."""
    with contextlib.suppress(OSError):
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _remove(path, held)
        finally:
            os.close(held)


def _remove(path: Path, held: int) -> None:
    for _ in range(_MOST_TRIES):
        _clear(held, keep=_LOCK)  # the lock last: without it, the folder would look like a new one
        with contextlib.suppress(OSError):
            os.unlink(_LOCK, dir_fd=held)
        try:
            return os.rmdir(path)
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(0.01)
    return None


def _is_private(path: Path) -> bool:
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def _made() -> _Own:
    parent = tempfile.gettempdir()
    remove_stale(Path(parent))
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    new = path / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(path / _LOCK)  # renamed when locked, so it is never seen unlocked
    atexit.register(remove)
    return _Own(path, lock)


# ---- leftovers of killed runs ----------------------------------------------------------------------------------------


def remove_stale(parent: Path) -> None:
    """Remove folders of this user's killed runs: those whose lock is free."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_stale(Path(entry.path))


def _remove_if_stale(path: Path) -> None:
    if not _is_private(path):
        return
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=held)
        except FileNotFoundError:
            if time.time() - os.fstat(held).st_mtime > _A_DAY:
                os.rmdir(path)  # only if it is empty
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path, held)
        finally:
            os.close(lock)
    finally:
        os.close(held)


# ---- removal ---------------------------------------------------------------------------------------------------------


def _clear(top: int, keep: str = "") -> None:
    """Remove everything in a folder except one name; what cannot be removed stays.

    A subfolder's own subfolders are moved up before they are opened, so that no depth, long path or link matters.
    """
    progress = True
    while progress:
        progress = False
        for name, is_folder in _listed(top):
            if name != keep:
                progress |= _flatten(top, name) if is_folder else _unlinked(top, name)


def _listed(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _unlinked(folder: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
        return True
    return False


def _flatten(top: int, name: str) -> bool:
    """Move the subfolders of a folder of `top` up to `top`, then remove its files and the folder itself.

    Returns whether anything was moved or removed.
    """
    progress = False
    with contextlib.suppress(OSError):
        _allow(top, name)
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        try:
            for inner, is_folder in _listed(held):
                if not is_folder:
                    progress |= _unlinked(held, inner)
                    continue
                with contextlib.suppress(OSError):
                    _allow(held, inner)  # moving a folder changes its "..", so it must be writable
                    os.rename(inner, f"{PREFIX}{secrets.token_hex(8)}", src_dir_fd=held, dst_dir_fd=top)
                    progress = True
        finally:
            os.close(held)
        os.rmdir(name, dir_fd=top)
        return True
    return progress


def _allow(folder: int, name: str) -> None:
    """Make a folder listable and writable for us. Raises OSError."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        with contextlib.suppress(OSError):  # os.chmod by name would follow a link put in its place
            os.chmod(f"/proc/self/fd/{held}", 0o700)
    finally:
        os.close(held)
