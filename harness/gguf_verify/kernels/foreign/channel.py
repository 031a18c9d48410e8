"""Our end of a socket whose other end is not trusted. Messages are framed as `multiprocessing.connection` frames them.

A message has a limit of size, and an exchange a deadline that holds for sending and receiving together, however the
bytes trickle.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

_HEAD = struct.Struct("!i")
_AT_A_TIME = 1 << 16


class Late(Exception):
    """The deadline has passed."""


class Garbled(Exception):
    """What came is no message."""


class Channel:
    """Our end.

    Args:
        descriptor: the socket's. It stays the caller's, and no longer blocks.
        most: bytes of a message that is received.
    """

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor, self._most = descriptor, most
        self._held = b""
        self._polls = {event: select.poll() for event in (select.POLLIN, select.POLLOUT)}
        for event, ready in self._polls.items():
            ready.register(descriptor, event)
        os.set_blocking(descriptor, False)

    @property
    def quiet(self) -> bool:
        """Whether nothing has come that was not received."""
        return not self._held and not self._ready(select.POLLIN, time.monotonic())

    def send(self, message: bytes, deadline: float, handles: Sequence[int] = ()) -> None:
        """Send a message, and then descriptors, if there are any. Raises Late; OSError where the other side is gone."""
        left = memoryview(_HEAD.pack(len(message)) + message)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
        if not handles:
            return
        with socket.socket(fileno=os.dup(self._descriptor)) as ours:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))]
            while True:
                try:
                    ours.sendmsg([bytes([len(handles)])], rights)
                    return
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)

    def receive(self, deadline: float) -> bytes:
        """The next message. Raises Late, Garbled; EOFError and OSError where the other side is gone."""
        (size,) = _HEAD.unpack(self._bytes(_HEAD.size, deadline))
        if not 0 <= size <= self._most:
            raise Garbled
        return self._bytes(size, deadline)

    def _bytes(self, count: int, deadline: float) -> bytes:
        while len(self._held) < count:
            self._wait(select.POLLIN, deadline)
            try:
                come = os.read(self._descriptor, _AT_A_TIME)
            except BlockingIOError:
                continue
            if not come:
                raise EOFError
            self._held += come
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _wait(self, event: int, deadline: float) -> None:
        if not self._ready(event, deadline):
            raise Late

    def _ready(self, event: int, deadline: float) -> bool:
        """Whether the socket can be used in time; it can also where the other side is gone."""
        return bool(self._polls[event].poll(1000 * max(0.0, deadline - time.monotonic())))
