"""Messages between this project's processes, from one that has been taken over."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.support import protocol
from gguf_verify.support.errors import HarnessError
from tests.fuzz import mutations
from tests.fuzz.target import Target

#: The documented errors of `receive`, and its class for an invalid message.
ERRORS: tuple[type[BaseException], ...] = (
    EOFError, OSError, HarnessError, getattr(protocol, "ProtocolError", HarnessError),
)  # fmt: skip
#: A time limit that is never reached, where `receive` takes one.
WITHIN: dict[str, Any] = {"seconds": 60.0} if "seconds" in signature(protocol.receive).parameters else {}
#: The largest array that a seed holds; one of more than `protocol.SMALL` bytes is a message of its own.
LARGE = protocol.SMALL + 8


class _Kept:
    """Stands for a connection, and keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send_bytes(self, message: Any) -> None:
        self.messages.append(bytes(message))


def message(header: dict[str, Any], *arrays: np.ndarray) -> bytes:
    """The bytes that `send` writes."""
    kept = _Kept()
    protocol.send(kept, header, *arrays)  # type: ignore[arg-type]
    return mutations.framed(*kept.messages)


def seeds() -> Iterator[bytes]:
    """Messages without arrays, with small and large ones, of every type that is sent; and such that lie."""
    yield message({"call": "x", "said": "\x1b[31m"})
    for dtype in ("u1", "i1", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "?"):
        yield message({"call": "x"}, np.arange(6).astype(dtype).reshape(2, 3))
    yield message({}, np.zeros(0, np.float32), np.zeros((3, 0), np.uint8), np.ones((), np.float32))
    yield message({"n": 1}, np.zeros(LARGE, np.uint8), np.ones(3, np.float32))
    descriptions: tuple[Any, ...] = (
        [{"dtype": "O", "shape": [1]}], [{"dtype": "<f4", "shape": [1 << 60]}], [{"dtype": "<f4", "shape": [-1]}],
        [{"dtype": "S5", "shape": [1]}], [{"dtype": "f4,f4", "shape": [1]}], [{"dtype": "<f4"}], {}, None, [1],
        [{"dtype": "<f4", "shape": [1.5]}], [{"dtype": "u1", "shape": [1] * 70}],
        [{"dtype": "u1", "shape": [0, 1 << 62, 1 << 62]}], [{"dtype": 7, "shape": 1}],
        [{"dtype": "|u1", "shape": [LARGE], "at": 0}], [{"dtype": "|u1", "shape": [1], "at": -1}],
    )  # fmt: skip
    for described in descriptions:
        yield mutations.framed(json.dumps({"arrays": described}).encode() + b"\n" + bytes(8))
    for line in (b"{", b"[]", b"null", b"", b'{"a": 1}', b'{"arrays": []}', b"[" * 5000, b"\xff", b"1" * 5000):
        yield mutations.framed(line + b"\n")
    yield struct.pack("!i", -1) + struct.pack("!Q", 1 << 62)
    yield struct.pack("!i", (1 << 31) - 1) + b"x"
    yield message({"a": 1}, np.zeros(LARGE, np.uint8))[:-1]


def check(folder: Path, data: bytes) -> None:
    """A received message holds no more bytes than were sent, and only numbers that were sent."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        theirs.setblocking(False)
        link = Connection(ours.detach())
        with link:
            sent = theirs.send(data) if data else 0
            assert sent == len(data)
            theirs.shutdown(socket.SHUT_RDWR)
            try:
                while True:
                    header, arrays = protocol.receive(link)
                    assert isinstance(header, dict)
                    assert sum(a.nbytes for a in arrays) <= len(data)
                    assert all(a.dtype.kind in "iufb" and a.flags.writeable for a in arrays)
                    check_again(header, arrays)
            except ERRORS:
                pass


def check_again(header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    """A received message can be sent on, and is received unchanged."""
    ours, theirs = (Connection(side.detach()) for side in socket.socketpair())
    with ours, theirs:
        protocol.send(ours, header, *arrays)
        other, others = protocol.receive(theirs, **WITHIN)
        assert json.dumps(other) == json.dumps(header)
        for mine, given in zip(arrays, others, strict=True):
            assert (mine.dtype, mine.shape, mine.tobytes()) == (given.dtype, given.shape, given.tobytes())
    for count in (len(arrays), len(header)):
        assert all(0 <= i < count for i in protocol.evenly(count, 3))


TARGET = Target(
    "protocol", "bytes on the socket to a process of this project", seeds, check, mutations.of_frames, share=2,
    inputs=1000, largest=1 << 15, covered=("gguf_verify.support.protocol",),
)  # fmt: skip
