"""Memory beside the socket between two processes, through which large arrays pass: a lane in each direction.

The socket's messages say where in a lane an array lies (`protocol`). A lane is a file in memory that this process makes
for a process that it starts and does not trust:

- Its size is sealed, so that neither side can cut or extend it. It takes no more memory than was ever written.
- This side maps nothing. It writes by `pwrite` and reads by `pread` into memory of its own: whatever the other side
  does to the file meanwhile, that is neither a signal here nor a change of an array that was checked. What a header
  claims is compared with the file's size before anything is read.
- The other side may map what it writes (`mapped`), so that a library there can put its results into place at once.

Where an array lies is the writer's decision alone: the first gap that is large enough, so that a lane takes as much
memory as the messages that were under way together, and no more. An array for which there is no room, or no memory,
goes through the socket.
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
    """An array is said to lie where the lane has no bytes."""


class Lane:
    """One direction.

    Args:
        handle: descriptor of the file, whose size is sealed (`sealed.of_fixed_size`). The lane closes it.
        mapped: `empty` gives places in the lane.
    """

    def __init__(self, handle: int, mapped: bool = False) -> None:
        self._handle, self.size = handle, os.fstat(handle).st_size
        #: Held where the descriptor is used: once it is closed, its number may belong to another file.
        self._using = threading.Lock()
        #: Places of each message that the other side may still read, and of the one that is being made.
        self._messages: deque[list[tuple[int, int]]] = deque([[]])
        self._bytes: npt.NDArray[np.uint8] | None = None
        if mapped:
            with contextlib.suppress(OSError, ValueError, OverflowError):  # a limit of address space
                self._bytes = np.frombuffer(mapped_here(handle, self.size), np.uint8)

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes for an array of the next message, uint8[nbytes]: in the lane, if there is room."""
        at = None if self._bytes is None else self._take(nbytes)
        return np.empty(nbytes, np.uint8) if self._bytes is None or at is None else self._bytes[at : at + nbytes]

    def put(self, array: Array) -> int | None:
        """Where the bytes of a contiguous array of the next message lie now; None where there is no room for them."""
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
        except OSError:  # no memory, a limit of the size of files, or closed: then the socket is, too
            return None
        return at

    def get(self, at: Any, out: Array) -> None:
        """Copy the bytes at a place, which may be anything, into an array. Raises OutsideLane; OSError where the
        lane was closed."""
        if type(at) is not int or not 0 <= at <= self.size - out.nbytes:
            raise OutsideLane
        self._whole(lambda left, start: os.preadv(self._handle, [left], start), out.reshape(-1).view(np.uint8).data, at)

    def sent(self) -> None:
        """The message is made: what comes belongs to the next one."""
        self._messages.append([])

    def taken(self) -> None:
        """The other side has taken the oldest message, so its places are free."""
        if len(self._messages) > 1:
            self._messages.popleft()

    def all_taken(self) -> None:
        """The other side has taken every message."""
        self._messages = deque([[]])

    def _take(self, nbytes: int) -> int | None:
        """The first gap of so many bytes."""
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
        """Read or write all of it, however much one call does. Raises OSError."""
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
    """Both directions, as one side sees them."""

    out: Lane
    back: Lane

    def close(self) -> None:
        self.out.close()
        self.back.close()
