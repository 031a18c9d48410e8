"""Shared memory for large arrays between two processes, next to their socket: one lane in each direction.

Messages on the socket say where in a lane an array lies (`protocol`). A lane is a memory file that this process creates
for a child process that it does not trust:

- Its size is sealed: neither side can shrink or extend it. Pages take memory only once they are written.
- This side maps nothing. It uses `pwrite`, and `pread` into its own memory, so changes by the other side cause neither
  a signal here nor a change of an array that was already checked. Header fields are compared with the file's size
  before anything is read.
- The other side may map the lane it writes to (`mapped`), so that a library can write its results there directly.

The writer alone decides where an array lies: in the first gap that is large enough. So a lane takes only as much memory
as the messages in flight together. An array without room or memory in the lane goes through the socket.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .sealed import mapped_here

Array = npt.NDArray[Any]


class OutsideLane(ValueError):
    """A message gives a place that is outside the lane."""


class Lane:
    """One direction of the shared memory.

    Args:
        handle: descriptor of the file, whose size is sealed (`sealed.of_fixed_size`). The lane closes it.
        mapped: map the file, so that `empty` returns places in the lane.
    """

    def __init__(self, handle: int, mapped: bool = False) -> None:
        self._handle, self.size = handle, os.fstat(handle).st_size
        #: Held while the descriptor is used: after it is closed, its number may belong to another file.
        self._using = threading.Lock()
        #: Places of each message that the other side may still read, and of the message being built.
        self._messages: deque[list[tuple[int, int]]] = deque([[]])
        self._bytes: npt.NDArray[np.uint8] | None = None
        if mapped:
            with contextlib.suppress(OSError, ValueError, OverflowError):  # no address space left
                self._bytes = np.frombuffer(mapped_here(handle, self.size), np.uint8)

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return uninitialized bytes uint8[nbytes] for an array of the next message: in the lane, if there is room."""
        at = None if self._bytes is None else self._take(nbytes)
        return np.empty(nbytes, np.uint8) if self._bytes is None or at is None else self._bytes[at : at + nbytes]

    def put(self, array: Array) -> int | None:
        """Place a contiguous array of the next message in the lane; returns its offset, or None if there is no room."""
        if self._bytes is not None:
            own = int(array.ctypes.data - self._bytes.ctypes.data)
            if 0 <= own <= self.size - array.nbytes:
                return own
        at = self._take(array.nbytes)
        if at is None:
            return None
        flat = array.reshape(-1).view(np.uint8)
        if self._bytes is not None:
            self._bytes[at : at + flat.nbytes] = flat
            return at
        try:
            self._whole(lambda left, start: os.pwrite(self._handle, left, start), flat.data, at)
        except OSError:  # no memory, a file size limit, or closed (then so is the socket)
            return None
        return at

    def get(self, at: Any, out: Array) -> None:
        """Copy the bytes at an untrusted offset into an array. Raises OutsideLane; OSError if the lane is closed."""
        if type(at) is not int or not 0 <= at <= self.size - out.nbytes:
            raise OutsideLane
        self._whole(lambda left, start: os.preadv(self._handle, [left], start), out.reshape(-1).view(np.uint8).data, at)

    def sent(self) -> None:
        """End the current message: further arrays belong to the next one."""
        self._messages.append([])

    def taken(self) -> None:
        """Free the places of the oldest message: the other side has read it."""
        if len(self._messages) > 1:
            self._messages.popleft()

    def all_taken(self) -> None:
        """Free the places of all messages."""
        self._messages = deque([[]])

    def _take(self, nbytes: int) -> int | None:
        """Reserve the first gap of `nbytes` bytes; returns its offset, or None."""
        at = 0
        for start, stop in sorted(chain(*self._messages)):
            if start - at >= nbytes:
                break
            at = max(at, stop)
        if self.size - at < nbytes:
            return None
        self._messages[-1].append((at, at + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE))
        return at

    def _whole(self, some: Callable[[memoryview, int], int], left: memoryview, at: int) -> None:
        """Repeat `some` until all bytes are read or written. Raises OSError."""
        with self._using:
            while left:
                done = some(left, at)
                if not done:
                    raise OSError("the lane ends")
                left, at = left[done:], at + done

    def close(self) -> None:
        """Close the descriptor, once."""
        with self._using:
            handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class Lanes(NamedTuple):
    """Both directions, as seen from one side."""

    out: Lane
    back: Lane

    def close(self) -> None:
        self.out.close()
        self.back.close()
