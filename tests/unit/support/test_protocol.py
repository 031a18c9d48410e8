"""Messages from a process that may have been taken over: whatever comes is one kind of error, and allocates little."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.support import protocol
from gguf_verify.support.protocol import MAX_HEADER, SMALL, ProtocolError, receive


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def framed(message: bytes) -> bytes:
    return struct.pack("!i", len(message)) + message


def given_bytes(raw: bytes) -> tuple[dict[str, Any], list[Any]]:
    """The result of `receive` for these bytes, after which the other side is gone."""
    ours, theirs = socket.socketpair()
    link = Connection(ours.detach())
    writer = threading.Thread(target=_write, args=(theirs, raw))
    writer.start()
    try:
        return receive(link, 1 << 20, 60.0)
    finally:
        link.close()
        writer.join()


def _write(sock: socket.socket, raw: bytes) -> None:
    with sock, contextlib.suppress(OSError):  # the reader may stop early
        sock.sendall(raw)


def header(*arrays: object, **more: object) -> bytes:
    return json.dumps({"result": {}, **more, "arrays": list(arrays)}).encode() + b"\n"


ONE = {"dtype": "<f4", "shape": [1]}
BAD: dict[str, bytes] = {
    "no JSON": framed(b"\xff{\n"),
    "nothing": framed(b""),
    "not a number of bytes": struct.pack("!i", -2),
    "a length of 2^63": struct.pack("!iQ", -1, 1 << 63),
    "a length of 2^62": struct.pack("!iQ", -1, 1 << 62),
    "a length of 2 GB": struct.pack("!i", (1 << 31) - 1),
    "deep": framed(b"[" * 1_000_000 + b"\n"),
    "a long number": framed(b'{"arrays": [], "n": ' + b"9" * 100_000 + b"}\n"),
    "a list": framed(b"[]\n"),
    "a number": framed(b"7\n"),
    "no arrays": framed(b"{}\n"),
    "arrays that are no list": framed(b'{"arrays": {}}\n'),
    "too many arrays": framed(header(*[{"dtype": "<f4", "shape": [0]}] * 1000)),
    "an array of nothing": framed(header(None)),
    "objects": framed(header({"dtype": "|O", "shape": [1]}) + bytes(8)),
    "text": framed(header({"dtype": "<U1000000", "shape": [1]})),
    "void": framed(header({"dtype": "|V8", "shape": [1]}) + bytes(8)),
    "a record": framed(header({"dtype": "f4,f4", "shape": [1]}) + bytes(8)),
    "a record in a list": framed(header({"dtype": [["a", "<f4"]], "shape": [1]}) + bytes(4)),
    "big-endian": framed(header({"dtype": ">f4", "shape": [1]}) + bytes(4)),
    "times": framed(header({"dtype": "<M8[s]", "shape": [1]}) + bytes(8)),
    "no dtype": framed(header({"shape": [1]})),
    "no shape": framed(header({"dtype": "<f4"})),
    "a shape that is a number": framed(header({"dtype": "<f4", "shape": 4})),
    "a shape of text": framed(header({"dtype": "<f4", "shape": ["1"]}) + bytes(4)),
    "a shape of floats": framed(header({"dtype": "<f4", "shape": [1.0]}) + bytes(4)),
    "a shape of truths": framed(header({"dtype": "<f4", "shape": [True]}) + bytes(4)),
    "a shape below zero": framed(header({"dtype": "<f4", "shape": [-1]}) + bytes(4)),
    "two below zero": framed(header({"dtype": "<f4", "shape": [-1, -1]}) + bytes(4)),
    "nine dimensions": framed(header({"dtype": "<f4", "shape": [1] * 9}) + bytes(4)),
    "a huge shape": framed(header({"dtype": "<f4", "shape": [1 << 40]})),
    "a huge shape with a zero": framed(header({"dtype": "<f4", "shape": [0, 1 << 60, 1 << 60]})),
    "a shape that wraps": framed(header({"dtype": "<f4", "shape": [1 << 32, 1 << 32]})),
    "more than was allowed": framed(header({"dtype": "<f4", "shape": [1 << 17]}, {"dtype": "<f4", "shape": [1 << 18]})),
    "a small array that is cut off": framed(header(ONE) + bytes(3)),
    "bytes after the last array": framed(header(ONE) + bytes(5)),
    "a large array of another size": framed(header({"dtype": "|u1", "shape": [SMALL + 1]})) + framed(bytes(SMALL)),
    "a large array that claims more": framed(header({"dtype": "|u1", "shape": [SMALL + 1]}))
    + struct.pack("!i", 1 << 30),
    "a header without an end": framed(b"x" * (MAX_HEADER + 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_invalid_messages(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            given_bytes(BAD[name])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


CUT = framed(header(ONE, {"dtype": "|u1", "shape": [SMALL + 1]}) + bytes(4)) + framed(bytes(SMALL + 1))


@pytest.mark.parametrize("at", [0, 3, 4, 20, len(CUT) - SMALL - 3, len(CUT) - 1])
def test_a_message_that_is_cut_off(at: int) -> None:
    with pytest.raises(EOFError):
        given_bytes(CUT[:at])


def test_one_deadline_for_a_whole_message(ends: tuple[Connection, Connection]) -> None:
    """A side that sends a byte now and then is not given more time by each of them."""
    ours, theirs = ends
    over = threading.Event()

    def drip() -> None:
        os.write(theirs.fileno(), struct.pack("!i", 1000))
        while not over.wait(0.02):
            os.write(theirs.fileno(), b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            receive(ours, seconds=0.5)
        assert 0.5 <= time.monotonic() - start < 15  # all of it takes 20 s
    finally:
        over.set()
        thread.join()


def test_nothing_comes(ends: tuple[Connection, Connection]) -> None:
    with pytest.raises(TimeoutError):
        receive(ends[0], seconds=0.1)
    ends[1].close()
    with pytest.raises(EOFError):
        receive(ends[0], seconds=60.0)


def test_the_limit_is_a_part_of_the_memory() -> None:
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0.2 * memory < protocol.most_bytes() < 0.27 * memory
