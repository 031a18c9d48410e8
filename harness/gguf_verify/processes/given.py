"""Files passed to a process as open descriptors, never as paths of this machine.

The process has no path to any of the user's files, so a file need not be visible to it. For readers that need a path,
it links each file below its own folder, as `given/GROUP/NAME`, to the descriptor. Files of one group, such as the parts
of a model, lie in one folder under their own names. The file that was opened here is read, even if another file gets
its name later.

A message lists the files that the process has from now on; the descriptors of new ones follow it.
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

#: Key in a message that lists the process's files, and name of the folder of their links.
GIVEN = "given"
#: Number of descriptors sent at once; Linux allows 253.
_AT_ONCE = 200
_WORD, _NAMED, _BELOW = re.compile(r"[^\s'\"]+"), re.compile(rf"{GIVEN}/([0-9]+)/"), re.compile(rf"/{GIVEN}/[0-9]+/")
#: errno values of a socket whose other side is gone.
_GONE = (errno.EPIPE, errno.ECONNRESET)


class OpenFile(Protocol):
    """A file that is open here.

    Args:
        path: the user's path of it.
        identity: changes if the file is another one or was changed.
    """

    path: Path
    identity: list[int]

    def fileno(self) -> int:
        """Return its descriptor, which stays the caller's."""
        ...


class Given:
    """The sender's record of the files that a process has."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[str, ...], ...], int] = {}
        #: Group → folder of its files here.
        self._folders: list[str] = []
        self._held: set[str] = set()
        self._next: dict[str, OpenFile] | None = None

    def give(self, *groups: Sequence[OpenFile]) -> list[list[str]]:
        """Return the process's paths for the files of each group; the files of a group lie in one folder here.

        The next message passes them on, and replaces all files of earlier messages. They must stay open until then.
        """
        self._next, paths = {}, []
        for group in groups:
            key = tuple((file.path.name, *map(str, file.identity)) for file in group)
            number = self._numbers.setdefault(key, len(self._folders))
            folder = os.path.dirname(os.path.abspath(group[0].path))
            self._folders[number : number + 1] = [folder]  # the same files may have moved
            paths.append([f"{GIVEN}/{number}/{file.path.name}" for file in group])
            self._next |= dict(zip(paths[-1], group, strict=True))
        return paths

    def announced(self) -> dict[str, Any]:
        """Return the fields to add to the next message."""
        if self._next is None:
            return {}
        return {GIVEN: {"all": list(self._next), "new": [path for path in self._next if path not in self._held]}}

    def hand_over(self, link: Connection) -> None:
        """Send the descriptors of the message that was just sent. Raises OSError if the other side is gone,
        EnvironmentFault if the system does not allow sending descriptors."""
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
            raise EnvironmentFault(f"cannot pass files to another process: {why}; see ulimit -n") from None
        except ValueError as error:
            raise EnvironmentFault(f"cannot pass files to another process: {error}") from None

    def forget(self) -> None:
        """Assume after a failure that the process has no files: it gets all of them again."""
        self._held.clear()

    def named(self, text: str) -> str:
        """Replace the process's file names in its text by the user's. Takes time linear in the text."""

        def of_user(found: re.Match[str]) -> str:
            number = int(found[1][:9])
            return self._folders[number].rstrip("/") + "/" if number < len(self._folders) else found[0]

        def of_word(found: re.Match[str]) -> str:
            word = found[0]
            if below := [each.start() for each in _BELOW.finditer(word)]:
                word = word[: word.index("/")] + word[below[-1] + 1 :]  # drop the process's own folder
            return _NAMED.sub(of_user, word)

        return _WORD.sub(of_word, text)


def only_read() -> None:
    """Keep this process from changing the files that it will be given, unless it is fully unconfined.

    A process can reopen a descriptor's file with the rights of its user, whatever it sees of the file system. So it may
    write only below its own folder, and change no file's modes, owners and times. Call this while there is only one
    thread, and before reading anything untrusted.
    """
    if scratch.VARIABLE in os.environ:  # only an unconfined process has this variable
        return
    devices = boundary.devices_of(True)
    filtered = syscalls.filter_fault() is None
    guard.apply(
        {
            "landlock": guard.landlock_abi() > 0,
            "reads": False,
            "devices": devices,
            "limits": {},
            "filter": syscalls.filter_program(bool(devices), boundary=False).hex() if filtered else "",
            "writable": [tempfile.gettempdir(), "/dev/shm", "/dev/null", "/dev/zero", "/dev/full"],
        }
    )


class Taken:
    """The receiver's record of its files. With the first file, the process changes to a folder of its own, to which the
    files' paths are relative."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._here = False
        self._handles: dict[str, int] = {}

    def take(self, message: Mapping[str, Any]) -> None:
        """Receive the files listed in a message, and drop all others; no change if it lists none. Raises OSError."""
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
        with contextlib.suppress(OSError, ValueError):  # a model may have many parts, and each is opened again
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._here = True

    def _received(self, count: int) -> list[int]:
        """Receive the descriptors after a message; fewer if this process cannot hold that many."""
        handles: list[int] = []
        with socket.socket(fileno=os.dup(self._link.fileno())) as ours:
            for at in range(0, count, _AT_ONCE):
                some = min(_AT_ONCE, count - at)
                mark, got, _, _ = socket.recv_fds(ours, 1, some, socket.MSG_CMSG_CLOEXEC)
                handles += got
                if not mark:
                    break  # the other side is gone
        return handles
