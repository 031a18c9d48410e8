"""Files that a process is given: as descriptors that are open, never as names of this machine.

The process has no name for anything of the user's, so a file need not lie where it can see. It links each one below
a folder of its own, `given/GROUP/NAME`, to its descriptor, for readers that want a path: files of one group, such as
the parts of a model, lie side by side under their own names. What is read is the file that was opened here, whatever
comes to bear its name.

A message says which files the process has from now on; the descriptors of those that it does not have yet follow it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ..support import scratch
from ..support.errors import EnvironmentFault
from . import boundary, guard, syscalls

#: The key of a message that says which files the process has, and the folder of their links.
GIVEN = "given"
#: Descriptors that are sent at once: Linux takes 253.
_AT_ONCE = 200
_WORD, _NAMED, _BELOW = re.compile(r"[^\s'\"]+"), re.compile(rf"{GIVEN}/([0-9]+)/"), re.compile(rf"/{GIVEN}/[0-9]+/")
#: Errors of a socket whose other side is gone.
_GONE = (errno.EPIPE, errno.ECONNRESET)


class OpenFile(Protocol):
    """A file that is open here.

    Args:
        path: as the user calls it.
        identity: another one where it is another file, or was changed.
    """

    path: Path
    identity: list[int]

    def fileno(self) -> int:
        """Its descriptor, which stays the caller's."""
        ...


class Given:
    """The files that a process has, as the one that gives them knows them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[str, ...], ...], int] = {}
        #: Of each group, where its files lie here.
        self._folders: list[str] = []
        self._held: set[str] = set()
        self._next: dict[str, OpenFile] | None = None

    def give(self, *groups: Sequence[OpenFile]) -> list[list[str]]:
        """The paths by which the process will know the files of each group, which lie in one folder here. The next
        message hands them over; the process lets go of all that it has from messages before. They must stay open
        until then."""
        self._next, paths = {}, []
        for group in groups:
            key = tuple((file.path.name, *map(str, file.identity)) for file in group)
            number = self._numbers.setdefault(key, len(self._folders))
            folder = os.path.dirname(os.path.abspath(group[0].path))
            self._folders[number : number + 1] = [folder]  # the same files may have got another place
            paths.append([f"{GIVEN}/{number}/{file.path.name}" for file in group])
            self._next |= dict(zip(paths[-1], group, strict=True))
        return paths

    def announced(self) -> dict[str, Any]:
        """What the next message says, beside the rest of it."""
        if self._next is None:
            return {}
        return {GIVEN: {"all": list(self._next), "new": [path for path in self._next if path not in self._held]}}

    def hand_over(self, link: Connection) -> None:
        """Send what belongs to a message that was sent. Raises OSError where the other side is gone, EnvironmentFault
        where the system does not let descriptors be sent."""
        given, self._next = self._next, None
        if given is None:
            return
        new = [file for path, file in given.items() if path not in self._held]
        self._held = set(given)
        if not new:
            return
        try:
            handles = [file.fileno() for file in new]
            with socket.socket(fileno=os.dup(link.fileno())) as ours:
                for at in range(0, len(handles), _AT_ONCE):
                    socket.send_fds(ours, [b"\0"], handles[at : at + _AT_ONCE])
        except OSError as error:
            if error.errno is None or error.errno in _GONE:
                raise
            why = os.strerror(error.errno)
            raise EnvironmentFault(f"files cannot be handed to another process: {why}; see ulimit -n") from None
        except ValueError as error:
            raise EnvironmentFault(f"files cannot be handed to another process: {error}") from None

    def forget(self) -> None:
        """Take the process for one that has no file, after it failed: it gets all of them again."""
        self._held.clear()

    def named(self, text: str) -> str:
        """A text of the process with the user's names of files in place of its own. Takes time linear in the text."""

        def of_user(found: re.Match[str]) -> str:
            number = int(found[1][:9])
            return self._folders[number].rstrip("/") + "/" if number < len(self._folders) else found[0]

        def of_word(found: re.Match[str]) -> str:
            word = found[0]
            if below := [each.start() for each in _BELOW.finditer(word)]:
                word = word[: word.index("/")] + word[below[-1] + 1 :]  # without the process's own folder
            return _NAMED.sub(of_user, word)

        return _WORD.sub(of_word, text)


def only_read() -> None:
    """Keep this process from changing the files that it will be given, unless it is not confined at all: it may open
    a descriptor's file again, and with the rights of its user, whatever it sees of the file system. So it must write
    below its own folder alone, and change no file's modes, owners and times.

    It must be called while there is one thread, and before anything is read that is not trusted.
    """
    if scratch.VARIABLE in os.environ:  # one that is confined does not have the variable
        return
    devices = boundary.devices_of(True)
    filtered = syscalls.filter_fault() is None
    guard.apply({
        "landlock": guard.landlock_abi() > 0, "reads": False, "devices": devices, "limits": {},
        "filter": syscalls.filter_program(bool(devices), boundary=False).hex() if filtered else "",
        "writable": [tempfile.gettempdir(), "/dev/shm", "/dev/null", "/dev/zero", "/dev/full"],
    })  # fmt: skip


class Taken:
    """The files that this process was given. It runs in a folder of its own from the first of them on, from which their
    paths lead."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._here = False
        self._handles: dict[str, int] = {}

    def take(self, message: Mapping[str, Any]) -> None:
        """Have the files that a message names, and no others; what it has, if it names none. Raises OSError."""
        given = message.get(GIVEN)
        if given is None:
            return
        self._enter()
        new = given["new"]
        received = self._received(len(new))
        for path in [path for path in self._handles if path in new or path not in given["all"]]:
            os.unlink(path)
            os.close(self._handles.pop(path))
        try:
            if len(received) != len(new):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            for path in new:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink(f"/proc/self/fd/{received[0]}", path)
                self._handles[path] = received.pop(0)
        finally:
            for handle in received:
                os.close(handle)

    def _enter(self) -> None:
        if self._here:
            return
        os.chdir(tempfile.mkdtemp(prefix=f"{GIVEN}-", dir=os.environ.get(scratch.VARIABLE)))
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):  # a model may have very many parts, and each is opened again
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._here = True

    def _received(self, count: int) -> list[int]:
        """The descriptors that follow a message: fewer where this process cannot have so many."""
        handles: list[int] = []
        with socket.socket(fileno=os.dup(self._link.fileno())) as ours:
            for at in range(0, count, _AT_ONCE):
                some = min(_AT_ONCE, count - at)
                mark, got, _, _ = socket.recv_fds(ours, 1, some, socket.MSG_CMSG_CLOEXEC)
                handles += got
                if not mark:
                    break  # the other side is gone
        return handles
