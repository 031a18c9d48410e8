"""Digests of a file: that of the whole, computed on one core, and those of its pieces, computed on several.

Reports state the digest of the whole. The digests of the pieces tell in a fraction of the time whether a file is
unchanged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from ..support.command_line import cores
from ..support.threads import each

#: Bytes of a piece, and of one read.
PIECE, _BUFFER = 1 << 26, 1 << 22
#: Bytes of one read where Python threads wait for each other, since other threads may hold the interpreter lock.
_LARGE_BUFFER = 1 << 24
#: Bytes of one read where one thread does everything: they fit in its cache.
_SMALL_BUFFER = 1 << 18
#: Number of bytes to read ahead from the disk.
_ASKED_FOR = 1 << 24


@dataclass(frozen=True)
class Digests:
    """The SHA-256 of a file, in hex, and of each `PIECE` bytes of it."""

    whole: str
    pieces: tuple[bytes, ...]


def digests(fd: int, wanted: Callable[[], bool] = lambda: True) -> Digests:
    """Return both kinds of digests of the same bytes, reading each byte once, as a stream. Raises OSError.

    Args:
        wanted: called repeatedly; once it returns False, reading stops, and the result is useless.
    """
    whole, pieces, at = hashlib.sha256(), list[bytes](), 0
    piece, size = hashlib.sha256(), min(_LARGE_BUFFER, max(1, os.fstat(fd).st_size))
    now, later = bytearray(size), bytearray(size)
    got = os.preadv(fd, [now], 0)
    while got and wanted():
        view, behind = memoryview(now)[:got], at + got
        if not at % _ASKED_FOR:
            os.posix_fadvise(fd, behind, _ASKED_FOR, os.POSIX_FADV_WILLNEED)
        room = memoryview(later)[: min(size, PIECE - behind % PIECE)]  # no buffer spans two pieces

        def read(room: memoryview = room, behind: int = behind) -> int:
            return os.preadv(fd, [room], behind)

        def hash_whole(view: memoryview = view) -> None:
            whole.update(view)

        def hash_piece(view: memoryview = view, piece: hashlib._Hash = piece) -> None:
            piece.update(view)

        tasks: list[Callable[[], int | None]] = [hash_whole, hash_piece, read]
        got = each(lambda task: task(), tasks, 3 if size == _LARGE_BUFFER else 1)[2] or 0
        if not behind % PIECE:
            pieces.append(piece.digest())
            piece = hashlib.sha256()
        now, later, at = later, now, behind
    if at % PIECE:
        pieces.append(piece.digest())
    return Digests(whole.hexdigest(), tuple(pieces))


def whole_of(fd: int) -> str:
    """Return the digest of the whole file. Raises OSError."""
    whole, buffer, at = hashlib.sha256(), bytearray(_SMALL_BUFFER), 0
    while got := os.preadv(fd, [buffer], at):
        if not at % _ASKED_FOR:  # the disk reads ahead while this is hashed
            os.posix_fadvise(fd, at + _ASKED_FOR, _ASKED_FOR, os.POSIX_FADV_WILLNEED)
        whole.update(memoryview(buffer)[:got])
        at += got
    return whole.hexdigest()


def pieces_of(fd: int) -> tuple[bytes, ...]:
    """Return the digests of the pieces, computing several at a time. Raises OSError."""

    def one(start: int) -> bytes:
        digest, buffer, at = hashlib.sha256(), bytearray(min(_BUFFER, size - start)), start
        while at < start + PIECE and (got := os.preadv(fd, [memoryview(buffer)[: start + PIECE - at]], at)):
            digest.update(memoryview(buffer)[:got])
            at += got
        return digest.digest()

    size = os.fstat(fd).st_size
    return tuple(each(one, range(0, size, PIECE), cores()))
