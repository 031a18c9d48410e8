"""The answers of a foreign kernel's process."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.kernels.foreign.conversation import Conversation
from gguf_verify.support.errors import EnvironmentFault, KernelFault, KernelFinding, UsageError
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line


class Scripted:
    """Stands for a `ChildProcess`: sends one message at once, and the rest after a request."""

    pid, alive, stopped_for, folder = -1, False, "", None  # no process: those of 0 are all of this machine

    def __init__(self, data: bytes) -> None:
        first = mutations.frames(data)[:1]
        size = len(mutations.framed(*first)) if data[:4] == mutations.framed(*first)[:4] else len(data)
        self._first, self._rest = data[:size], data[size:]
        ours, self._theirs = socket.socketpair()
        self.link = Connection(ours.detach())
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        with self._theirs, contextlib.suppress(OSError):
            self._theirs.sendall(self._first)
            if self._rest and self._theirs.recv(1 << 16):
                self._theirs.sendall(self._rest)
            self._theirs.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float | None = None) -> int | None:
        return 0

    def last_lines(self, nbytes: int) -> list[str]:
        return ["its last line \x1b[31m"]

    def close(self, seconds: float | None = None) -> None:
        self.kill()
        self._thread.join()
        self.link.close()


def seeds() -> Iterator[bytes]:
    """A first message and an answer; every kind of answer; and messages that are no answer."""
    hello = {"formats": ["Q4_0"], "semantics": "q8_1"}
    answers: tuple[Any, ...] = (
        {"ok": True, "of": 1}, {"ok": True}, {"environment": "no such\ncard"}, {"fault": "it raised \x1b[31m", "of": 1},
        {"fault": "a race", "of": 1, "finding": {"kind": "race", "lines": ["k.cu:3", 7]}, "cause": "k.py:2"},
        {"fault": {}, "finding": [], "cause": None}, [], None, 1, "ok",
    )  # fmt: skip
    for answer in answers:
        yield mutations.framed(json.dumps(hello).encode(), json.dumps(answer).encode())
    firsts: tuple[Any, ...] = (
        {"usage": "it declares nothing"}, {"environment": {"a": 1}}, [], "", {"ok": "\udc80"},
    )  # fmt: skip
    for first in firsts:
        yield mutations.framed(json.dumps(first).encode())
    for raw in (b"", b"\xff", b"[" * 9000, b'{"fault": ' + b'"x' * 5000, b"1" * 5000):
        yield mutations.framed(json.dumps(hello).encode(), raw)
        yield mutations.framed(raw)
    yield struct.pack("!i", -1) + struct.pack("!Q", 1 << 62)
    yield struct.pack("!i", (1 << 31) - 1) + b"x"


def check_fault(fault: KernelFault) -> None:
    """The text beside the line is printable, too."""
    assert fault.cause.isprintable()
    if isinstance(fault, KernelFinding):
        assert all(line.isprintable() for line in (fault.kind, *fault.lines))


def check(folder: Path, data: bytes) -> None:
    """Whatever is answered is a short line, and no pass but for `ok`."""
    start: Any = partial(Scripted, data)
    talk = Conversation("the kernel", "k", start, 30.0, 30.0)
    nothing: Any = np.zeros(0, np.uint8)
    try:
        with refused_in_one_line(KernelFault, UsageError, EnvironmentFault, most=1000):
            try:
                said = talk.begin()
                assert isinstance(said, dict)
                said = talk.ask({"call": "product"}, nothing)
                assert said["ok"] is True
            except KernelFault as error:
                check_fault(error)
                raise
    finally:
        talk.stop()
    assert talk.hangs == 0


TARGET = Target(
    "answers", "what a foreign kernel's process says", seeds, check, mutations.of_frames, inputs=80, largest=1 << 15
)
