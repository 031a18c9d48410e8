"""A socket to an untrusted peer. Messages are framed as in `multiprocessing.connection`.

A message has a size limit. The deadline of an exchange covers sending and receiving together, however slowly the bytes
arrive.
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
    """The peer sent no valid message."""


class Channel:
    """The trusted end of the socket.

    Args:
        descriptor: the socket, owned by the caller. It is made non-blocking.
        most: most bytes of a received message.
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
        """Whether no unread bytes have arrived."""
        return not self._held and not self._ready(select.POLLIN, time.monotonic())

    def send(self, message: bytes, deadline: float, handles: Sequence[int] = ()) -> None:
        """Send a message, followed by descriptors, if any. Raises Late; OSError if the peer is gone."""
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
        """Receive the next message. Raises Late, Garbled; EOFError and OSError if the peer is gone."""
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
        """Return whether the socket is ready before the deadline; it also is if the peer is gone."""
        return bool(self._polls[event].poll(1000 * max(0.0, deadline - time.monotonic())))
