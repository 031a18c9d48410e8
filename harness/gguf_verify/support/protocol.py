"""Messages between this project's processes: a JSON header, then the bytes of each array. Nothing is pickled.

The header is one line. Arrays of at most `SMALL` bytes follow it in the same message; each larger one is a message of
its own.
"""

from __future__ import annotations

import json
import math
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SMALL = 1 << 14


def evenly(count: int, some: int) -> list[int]:
    """`some` numbers below `count`, evenly from the first to the last; all of them if there are no more."""
    some = min(count, some)
    gaps = max(1, some - 1)
    return [i * (count - 1) // gaps for i in range(some)]


def send(link: Connection, header: dict[str, Any], *arrays: Array) -> None:
    """Send a header and arrays. Raises OSError if the other side is gone."""
    described = [{"dtype": a.dtype.str, "shape": list(a.shape)} for a in arrays]
    message = [json.dumps({**header, "arrays": described}).encode(), b"\n"]
    link.send_bytes(b"".join(message + [np.ascontiguousarray(a).tobytes() for a in arrays if a.nbytes <= SMALL]))
    for a in arrays:
        if a.nbytes > SMALL:
            link.send_bytes(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data)


def receive(link: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Receive a header and its arrays. Raises EOFError if the other side is gone."""
    line, _, small = link.recv_bytes().partition(b"\n")
    header = json.loads(line)
    arrays: list[Array] = []
    at = 0
    for described in header.pop("arrays"):
        dtype, shape = np.dtype(described["dtype"]), described["shape"]
        size = math.prod(shape)
        if dtype.itemsize * size > SMALL:
            out = np.empty(shape, dtype)
            link.recv_bytes_into(out.reshape(-1).view(np.uint8).data)
        else:
            out = np.frombuffer(small, dtype, size, at).reshape(shape).copy() if size else np.empty(shape, dtype)
            at += out.nbytes
        arrays.append(out)
    return header, arrays
