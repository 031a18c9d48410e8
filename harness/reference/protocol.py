"""Messages between the harness and its llama.cpp process: a JSON header, then each array's bytes. No pickling."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def send(link: Connection, header: dict[str, Any], *arrays: Array) -> None:
    """Send a header and arrays. Raises OSError where the other side is gone."""
    described = [{"dtype": a.dtype.str, "shape": list(a.shape)} for a in arrays]
    link.send_bytes(json.dumps({**header, "arrays": described}).encode())
    for a in arrays:
        if a.size:
            link.send_bytes(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data)


def receive(link: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Receive a header and its arrays. Raises EOFError where the other side is gone."""
    header = json.loads(link.recv_bytes())
    arrays: list[Array] = []
    for described in header.pop("arrays"):
        out = np.empty(described["shape"], described["dtype"])
        if out.size:
            link.recv_bytes_into(out.reshape(-1).view(np.uint8).data)
        arrays.append(out)
    return header, arrays
