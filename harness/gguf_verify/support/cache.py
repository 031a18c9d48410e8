"""The cache of builds: its folder, its entries and its size limit.

An entry is two files. The index file is named after the key and holds the SHA-256 of the content; the content file is
named after that digest. Content is read once, through a descriptor, and compared with the digest: callers get bytes,
never a path, whose target could change before it is used. Nothing is read from a folder that another user could have
written to.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from . import scratch
from .errors import UsageError, say
from .files import replaced
from .folders import fault_of_folder
from .text import printable

#: Environment variable with the size limit of the cache: bytes, or with K, M or G, units of 1024.
SIZE_VARIABLE = "GGUF_VERIFY_CACHE_SIZE"
DEFAULT_SIZE = 1 << 30
_BUILDS = "builds"
_INDEX = ".index"
#: Prefix of files being written. One older than a day was left by a killed process.
_PART = ".part-"
_A_DAY = 86400.0
#: A file takes whole pages of its file system.
_PAGE = 4096
#: Size limit of one entry in bytes.
_LARGEST = 1 << 30
#: The cache is checked at the first entry that a process writes, and again after this fraction of the limit.
_SHARE = 16
#: Entries and temporary files of versions before 0.1, which lay beside the folder of builds.
_OLD = re.compile(r"[0-9a-f]{32}\.(so|o|json|hpp|hpp\.gch|cubin)|tmp[a-z0-9_]{8}")

_log = logging.getLogger("gguf_verify.cache")

#: Folders whose disk was full when this process wrote there.
_full: set[Path] = set()


@cache
def tree_hash(root: Path) -> str:
    """Return the SHA-256 over all kernel source files below `root`; it is part of each compiled kernel's key."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in {".cu", ".cuh", ".hpp"}:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


# ---- location --------------------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Return the cache's folder: $XDG_CACHE_HOME/gguf-verify, private to this user.

    If that folder cannot be used, prints why, once, and returns a temporary folder that is removed with the run.
    Raises UsageError if the size limit is invalid.
    """
    folder = _kept(os.environ.get("XDG_CACHE_HOME") or None, os.environ.get("HOME"), os.geteuid())
    return folder if folder is not None and folder not in _full and size_limit() else scratch.shared("cache")


@cache
def _kept(cache_home: str | None, _home: str | None, _user: int) -> Path | None:
    """Return the persistent folder, or None. The arguments are everything the result depends on, for the cache."""
    try:
        base = Path(cache_home) if cache_home else Path.home() / ".cache"
        return _private(base, base / "gguf-verify")
    except OSError as error:
        why = f"{printable(str(base / 'gguf-verify'), 200)} cannot be written: {error.strerror or error}"
    except RuntimeError:
        why = "this user has no home"
    except _Unfit as error:
        why = str(error)
    _say_unused(why)
    return None


def _say_unused(why: str) -> None:
    if not os.environ.get(scratch.VARIABLE):  # the parent process has printed it already
        say(f"the cache of compiled kernels is not used: {why}; a private temporary folder is used instead")


class _Unfit(Exception):
    """A folder that other users could have written to."""


def _private(base: Path, path: Path) -> Path:
    """Create a private folder. Raises OSError, _Unfit."""
    base.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    if why := fault_of_folder(path):
        raise _Unfit(why)
    path.chmod(0o700)
    with tempfile.TemporaryFile(dir=path):
        return path.resolve()


def size_limit() -> int:
    """Return the size limit of the builds in bytes. Raises UsageError."""
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text:
        return DEFAULT_SIZE
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)", text)
    if found is None:
        raise UsageError(f"{SIZE_VARIABLE} must be a number of bytes, or one with K, M or G, not {text[:40]!a}")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def runs_code(folder: Path) -> bool:
    """Whether libraries can be loaded from a folder: its file system is not mounted `noexec`."""
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


# ---- entries ---------------------------------------------------------------------------------------------------------


def taken(key: Sequence[str], suffix: str) -> bytes | None:
    """Return the content that `kept` stored under this key; None if there is none or it was changed."""
    try:
        index = _index(key, suffix)
    except OSError:
        return None
    found = _read(index)
    if found is None:
        return None
    digest = found.decode("ascii", "replace")
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        _log.info("%s is damaged: the entry is built again", index)
        return None
    return content_of(digest, suffix)


def content_of(digest: str, suffix: str) -> bytes | None:
    """Return the content with this SHA-256 if the cache still has it intact, otherwise None."""
    path = index_folder() / f"{digest}{suffix}"
    content = _read(path)
    if content is not None and hashlib.sha256(content).hexdigest() != digest:
        _log.info("%s is damaged or was replaced: it is built again", path)
        return None
    return content


def kept(key: Sequence[str], suffix: str, content: bytes) -> bytes:
    """Store content under a key, and return it.

    On a full disk the temporary folder takes the cache's place; if that cannot be written either, nothing is stored.
    """
    with contextlib.suppress(OSError):
        try:
            _keep(key, suffix, content)
        except OSError as error:
            folder = cache_dir()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or folder in _full:
                raise
            _full.add(folder)
            _say_unused(f"{printable(str(folder), 200)} cannot be written: {error.strerror}")
            _keep(key, suffix, content)
    return content


def _keep(key: Sequence[str], suffix: str, content: bytes) -> None:
    folder = index_folder()
    digest = hashlib.sha256(content).hexdigest()
    for path, written in ((folder / f"{digest}{suffix}", content), (_index(key, suffix), digest.encode())):
        with replaced(path, _PART) as file:
            file.write(written)
    _keep_small(folder, len(content))


def forget(key: Sequence[str], suffix: str) -> None:
    """Remove an entry."""
    with contextlib.suppress(OSError):
        _index(key, suffix).unlink(missing_ok=True)


def index_folder() -> Path:
    """Return the folder of the entries. Raises OSError."""
    folder = cache_dir() / _BUILDS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _index(key: Sequence[str], suffix: str) -> Path:
    return index_folder() / f"{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:32]}{suffix}{_INDEX}"


def _read(path: Path) -> bytes | None:
    """Return the content of a file that only this user can write, and mark it as used now; None if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.info("%s cannot be opened (%s): it is built again", path, error.strerror)
        return None
    try:
        about = os.fstat(fd)
        ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
        if not ours or about.st_size > _LARGEST:
            _log.info("%s is not private to this user: it is built again", path)
            return None
        with contextlib.suppress(OSError):
            os.utime(fd)
        with open(fd, "rb", closefd=False) as file:
            return file.read(about.st_size)
    finally:
        os.close(fd)


# ---- size ------------------------------------------------------------------------------------------------------------

#: Folder → bytes that this process has written there since it last checked the folder's size.
_written: dict[Path, int] = {}


def _keep_small(folder: Path, nbytes: int) -> None:
    limit = size_limit() or DEFAULT_SIZE  # a temporary folder has a limit, too
    if folder in _written:
        _written[folder] += nbytes
        if _written[folder] <= limit // _SHARE:
            return
    _written[folder] = 0
    evict(folder, limit)


def evict(folder: Path, limit: int) -> None:
    """Remove the least recently used entries until the rest fit into `limit` bytes, and leftovers of killed writers.

    Other processes may read, write and evict at the same time: a process that has opened an entry keeps its bytes.
    """
    now = time.time()
    entries: list[tuple[float, int, str]] = []
    _each(folder, lambda path, about: entries.append((about.st_mtime, -(-about.st_size // _PAGE) * _PAGE, path)))
    total = sum(size for _, size, _ in entries)
    for used, size, path in sorted(entries):
        part = os.path.basename(path).startswith(_PART)
        if (now - used > _A_DAY) if part else total > limit:
            total -= size
            with contextlib.suppress(OSError):
                os.unlink(path)

    def old(path: str, about: os.stat_result) -> None:
        if _OLD.fullmatch(os.path.basename(path)) and now - about.st_mtime > _A_DAY:
            with contextlib.suppress(OSError):
                os.unlink(path)

    _each(folder.parent, old)


def _each(folder: Path, look: Callable[[str, os.stat_result], object]) -> None:
    """Call `look` on every file of a folder; files that vanish meanwhile are skipped."""
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(about.st_mode):
                    look(entry.path, about)
