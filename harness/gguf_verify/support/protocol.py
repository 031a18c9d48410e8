"""Messages between this project's processes: a JSON header, then the bytes of each array. Nothing is pickled.

The header is one line. Arrays of at most `SMALL` bytes follow it in the same message; each larger one is a message of
its own, or lies in a lane (`lanes`) if the two sides have one. Messages are framed as in
`multiprocessing.connection.Connection`: 4 bytes of length, or -1 and 8 bytes.

The other side may be controlled by a hostile file or kernel, so its messages are parsed like untrusted files: plain
number types only, sizes checked before allocation, and one deadline for a whole message.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from .lanes import Lane, OutsideLane
from .numbers import CODES, number_type

Array = npt.NDArray[Any]

SMALL = 1 << 14
#: Size limit of a header. The largest belongs to an evaluation: it lists the weights that a graph used.
MAX_HEADER = 8 << 20
#: Limits on the arrays of a message and on their dimensions.
MAX_ARRAYS, MAX_DIMENSIONS = 32, 8
_LENGTH, _LONG = struct.Struct("!i"), struct.Struct("!Q")
#: Bytes allocated at a time while a message arrives.
_AT_ONCE = 1 << 20


class ProtocolError(Exception):
    """A message is invalid. The rest of the stream cannot be read."""


def evenly(count: int, some: int) -> list[int]:
    """Return `some` indices below `count`, evenly spaced from the first to the last; all if there are fewer."""
    some = min(count, some)
    gaps = max(1, some - 1)
    return [i * (count - 1) // gaps for i in range(some)]


def most_bytes() -> int:
    """Return the default size limit for the arrays of a message, in bytes: a quarter of the memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def send(link: Connection, header: dict[str, Any], *arrays: Array, lane: Lane | None = None) -> None:
    """Send a header and arrays, large ones through a lane if there is one with room. Raises OSError if the other side
    is gone."""
    described: list[dict[str, Any]] = []
    small, large = [], []
    for given in arrays:
        described.append({"dtype": given.dtype.str, "shape": list(given.shape)})
        array = np.ascontiguousarray(given)
        at = None if lane is None or array.nbytes <= SMALL else lane.put(array)
        if at is not None:
            described[-1]["at"] = at
        elif array.nbytes <= SMALL:
            small.append(array.tobytes())
        else:
            large.append(array)
    if lane is not None:
        lane.sent()
    link.send_bytes(b"".join([json.dumps({**header, "arrays": described}).encode(), b"\n", *small]))
    for array in large:
        link.send_bytes(array.reshape(-1).view(np.uint8).data)


def receive(
    link: Connection, limit: int | None = None, seconds: float | None = None, lane: Lane | None = None
) -> tuple[dict[str, Any], list[Array]]:
    """Receive a header and its arrays.

    Args:
        limit: size limit of all arrays together, in bytes; by default `most_bytes`.
        seconds: deadline for the whole message; None waits forever.
        lane: where the other side puts large arrays. They are copied, so later writes there change nothing.

    Raises EOFError or OSError if the other side is gone, TimeoutError if the message is incomplete at the deadline,
    and ProtocolError if it is invalid.
    """
    source = _Source(link.fileno(), seconds)
    line, _, small = source.message(MAX_HEADER + MAX_ARRAYS * SMALL).partition(b"\n")
    if len(line) > MAX_HEADER:
        raise ProtocolError("the header is too long")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("the header is not JSON") from None
    described = header.pop("arrays", None) if isinstance(header, dict) else None
    if not isinstance(described, list) or len(described) > MAX_ARRAYS:
        raise ProtocolError("the header does not list its arrays")
    kinds = [_described(one) for one in described]
    if sum(nbytes for _, _, nbytes in kinds) > (most_bytes() if limit is None else limit):
        raise ProtocolError("the arrays are too large")
    arrays: list[Array] = []
    at = 0
    for (dtype, shape, nbytes), one in zip(kinds, described, strict=True):
        if nbytes > SMALL:
            try:
                out = np.empty(shape, dtype)
            except (MemoryError, ValueError):
                raise ProtocolError("the arrays are too large") from None
            if "at" in one:
                _from_lane(lane, one["at"], out)
            else:
                source.array(out)
        elif at + nbytes > len(small):
            raise ProtocolError("an array is truncated")
        else:
            out = np.frombuffer(small[at : at + nbytes], dtype).reshape(shape).copy()
            at += nbytes
        arrays.append(out)
    if at != len(small):
        raise ProtocolError("bytes follow the arrays")
    return header, arrays


def _described(one: Any) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and size in bytes of an array. Raises ProtocolError."""
    try:
        dtype = number_type(one.get("dtype") if isinstance(one, dict) else None, CODES)
    except ValueError:
        raise ProtocolError("an array is not of a plain type") from None
    shape = one.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise ProtocolError("an array has no shape")
    # max(1, n): a zero dimension would hide an overflow of the others
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(max(1, n) for n in shape) >> 48:
        raise ProtocolError("an array has no valid shape")
    return dtype, tuple(shape), dtype.itemsize * math.prod(shape)


def _from_lane(lane: Lane | None, at: Any, out: Array) -> None:
    """Fill an array from the lane. Raises ProtocolError."""
    if lane is None:
        raise ProtocolError("an array lies in a lane, but there is no lane")
    try:
        lane.get(at, out)
    except OutsideLane:
        raise ProtocolError("an array lies outside the lane") from None


class _Source:
    """Bytes of a connection, with a deadline."""

    def __init__(self, fd: int, seconds: float | None) -> None:
        self._fd = fd
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def message(self, limit: int) -> bytes:
        """Return the next message. Raises ProtocolError if it is longer than `limit`."""
        size = self._size()
        if size > limit:
            raise ProtocolError("the message is too long")
        out = bytearray()
        while len(out) < size:
            piece = bytearray(min(_AT_ONCE, size - len(out)))
            self._fill(memoryview(piece))
            out += piece
        return bytes(out)

    def array(self, out: Array) -> None:
        """Fill an array with the next message. Raises ProtocolError if the sizes differ."""
        if self._size() != out.nbytes:
            raise ProtocolError("an array's size does not match its shape")
        self._fill(out.reshape(-1).view(np.uint8).data)

    def _size(self) -> int:
        size = int(_LENGTH.unpack(self._some(_LENGTH.size))[0])
        if size == -1:
            size = int(_LONG.unpack(self._some(_LONG.size))[0])
        if size < 0:
            raise ProtocolError("a message has no valid length")
        return size

    def _some(self, size: int) -> bytes:
        out = bytearray(size)
        self._fill(memoryview(out))
        return bytes(out)

    def _fill(self, out: memoryview) -> None:
        at = 0
        while at < len(out):
            if self._deadline is not None:
                left = self._deadline - time.monotonic()
                if left <= 0 or not self._poll.poll(1000 * left):
                    raise TimeoutError
            got = os.readv(self._fd, [out[at:]])
            if not got:
                raise EOFError
            at += got
