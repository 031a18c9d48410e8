"""The one private folder that holds every temporary file of a run, and that ends with the run.

It is made on first use, in TMPDIR. The process that made it owns it, holds a lock on a file in it for as long as it
lives, and removes it when it ends. Processes that it starts use the same one: they are told by `environment`. A run
that was killed leaves its folder, whose lock is free then: the next run removes it.

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

#: Tells a child of its parent's folder.
VARIABLE = "GGUF_VERIFY_SCRATCH"
PREFIX = "gguf-verify-"
_LOCK = "lock"
#: Seconds after which an empty folder without a lock is one whose maker died before it made the lock.
_A_DAY = 86400.0
#: What a process that is ending still writes may have to be removed once more.
_MOST_TRIES = 20


class _Own:
    """A folder that this process made, and the descriptor that holds its lock."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self.lock, self.pid = path, lock, os.getpid()


_own: _Own | None = None
_joined: Path | None = None
_making = threading.Lock()


def top() -> Path:
    """The folder, mode 0700. Raises EnvironmentFault where none can be made."""
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
            raise EnvironmentFault(f"no temporary folder can be made: {error.strerror or error}; set TMPDIR") from None
        return _own.path


def join(path: Path) -> None:
    """Use the folder of another process, which removes it: for processes that no variable can be given."""
    global _joined
    _joined = path


def environment() -> dict[str, str]:
    """The variable that makes a child use this folder."""
    return {VARIABLE: str(top())}


def folder(name: str) -> Path:
    """A new private folder, whose name begins with `name`. It is removed with the run, or by `remove_folder`."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=top()))


def shared(name: str) -> Path:
    """The private folder of exactly this name, which every process of the run finds."""
    path = top() / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextlib.contextmanager
def temporary(name: str) -> Iterator[Path]:
    """A new private folder, which is removed at the end."""
    path = folder(name)
    try:
        yield path
    finally:
        remove_folder(path)


def file(name: str) -> IO[bytes]:
    """A file that no name leads to."""
    return tempfile.TemporaryFile(prefix=f"{name}-", dir=top())


def remove() -> None:
    """Remove the folder, if this process made it; the next use makes another one."""
    global _own
    own = _own
    if own is None or own.pid != os.getpid():  # a fork has the record of its parent
        return
    _own = None
    remove_folder(own.path)
    with contextlib.suppress(OSError):
        os.close(own.lock)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that it holds, whatever depths, modes and links a hostile process has given that."""
    with contextlib.suppress(OSError):
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _remove(path, held)
        finally:
            os.close(held)


def _remove(path: Path, held: int) -> None:
    for _ in range(_MOST_TRIES):
        _clear(held, keep=_LOCK)  # the lock comes last, so that nobody takes a half removed folder for a new one
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
    new.rename(path / _LOCK)  # so nobody ever finds it free while we live
    atexit.register(remove)
    return _Own(path, lock)


# ---- what killed runs left -------------------------------------------------------------------------------------------


def remove_stale(parent: Path) -> None:
    """Remove the folders of this user's runs that were killed: nobody holds their locks."""
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
    """Remove all that a folder holds but one name. A folder within a folder is moved up before it is opened, so that
    no depth, no long path and no link matters. What cannot be removed stays."""
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
    """Move the folders in a folder of `top` up to `top`, remove its files, and then the folder itself. Returns whether
    anything was moved or removed."""
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
                    _allow(held, inner)  # a folder that is moved must be writable, for its ".."
                    os.rename(inner, f"{PREFIX}{secrets.token_hex(8)}", src_dir_fd=held, dst_dir_fd=top)
                    progress = True
        finally:
            os.close(held)
        os.rmdir(name, dir_fd=top)
        return True
    return progress


def _allow(folder: int, name: str) -> None:
    """Make a folder one that we may list and change. Raises OSError."""
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        with contextlib.suppress(OSError):  # os.chmod of a name would follow a link that took its place
            os.chmod(f"/proc/self/fd/{held}", 0o700)
    finally:
        os.close(held)
