"""A process of kernels whose memory a kernel has written over: what it answers then is the
kernel's fault, in one line."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts.base import Blocks
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.process_child import SHARED_FROM, receive_bytes, send_bytes, send_shared, shared_memory
from gguf_verify.hosts.process_host import ProcessHost
from gguf_verify.support import protocol
from gguf_verify.support.errors import KernelFault, KernelFinding
from gguf_verify.support.sealed import of_fixed_size


class Garbling:
    """In place of the process: a thread that answers every request that is answered with the same message."""

    def __init__(self, header: dict[str, Any], arrays: list[Any]) -> None:
        ours, theirs = socket.socketpair()
        self.link, self._theirs = Connection(ours.detach()), Connection(theirs.detach())
        self._message = header, arrays
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, EOFError), self._theirs:
            while True:
                asked, _ = protocol.receive(self._theirs)
                if asked["ask"] not in ("upload", "output"):
                    protocol.send(self._theirs, self._message[0], *self._message[1])

    def close(self, seconds: float = 0.0) -> None:
        self.link.close()
        self._thread.join()


def answered(do: Callable[[ProcessHost], object], header: dict[str, Any], *arrays: Any) -> object:
    host = ProcessHost(CpuHost(1), 5.0)
    host.close()
    process = host._process = Garbling(header, list(arrays))  # type: ignore[assignment]
    try:
        return do(host)
    finally:
        process.close()


def download(host: ProcessHost) -> object:
    return host.download(host.output(8))


def resident(host: ProcessHost) -> object:
    kernel = host._new({"ask": "upload"}, 0)
    kernel.process = host._process
    return host.resident(kernel, 32, 0)


def alone(host: ProcessHost) -> object:
    kernel = host._new({"ask": "upload"}, 0)
    kernel.process = host._process
    return host.launch_alone([Blocks(kernel, (1, 1, 1), (1, 1, 1), [], 0, (0,))])


@pytest.mark.parametrize(("do", "header", "arrays"), [
    pytest.param(download, {}, [np.zeros(8, np.uint8)], id="nothing"),
    pytest.param(download, {"ok": True}, [], id="no bytes"),
    pytest.param(download, {"ok": True}, [np.zeros(9, np.uint8)], id="other bytes"),
    pytest.param(download, {"kernel": 7}, [], id="a fault that is a number"),
    pytest.param(download, {"kernel": "x", "finding": "a finding of its own"}, [], id="an unknown finding"),
    pytest.param(download, {"environment": ["x"]}, [], id="a list of faults"),
    pytest.param(resident, {"ok": "many"}, [], id="a number in words"),
    pytest.param(resident, {"ok": -1}, [], id="a number below zero"),
    pytest.param(resident, {"ok": {"a": 1}}, [], id="a table"),
    pytest.param(alone, {"ok": 3}, [np.zeros(24, np.uint8)], id="fewer words than it says"),
    pytest.param(alone, {"ok": 3}, [], id="no words"),
])  # fmt: skip
def test_an_answer_that_is_not_valid(do: Any, header: dict[str, Any], arrays: list[Any]) -> None:
    with pytest.raises(KernelFault, match="crashed: its process sent an answer that is not valid") as caught:
        answered(do, header, *arrays)
    assert str(caught.value).isprintable()


def test_an_answer_that_is_valid() -> None:
    assert bytes(np.asarray(answered(download, {"ok": True}, np.arange(8, dtype=np.uint8)))) == bytes(range(8))
    assert answered(resident, {"ok": 7}) == 7
    with pytest.raises(KernelFinding, match=r"^wrote\\x1b past it$") as caught:
        answered(download, {"kernel": "wrote\x1b past it", "finding": "outside"})
    assert caught.value.kind == "outside"


# ---- process child ---------------------------------------------------------------------------------------------------
# Shared memory between a host and its process: what could become a fatal signal is not mapped.


Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = (Connection(side.detach()) for side in socket.socketpair())
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("nbytes", [1, SHARED_FROM - 1, SHARED_FROM, 3 * SHARED_FROM + 1])
def test_bytes_come_as_they_were_sent(ends: Ends, nbytes: int) -> None:
    sent = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    send_bytes(ends[0], {"a": 1}, sent)
    header, got = receive_bytes(ends[1])
    assert header == {"a": 1}
    assert got is not None
    assert got.tobytes() == sent.tobytes()


@pytest.mark.parametrize("nbytes", [0, SHARED_FROM - 1, SHARED_FROM + 1, 1 << 50])
def test_another_size_than_was_said(ends: Ends, nbytes: int) -> None:
    handle, _ = shared_memory(SHARED_FROM)
    send_shared(ends[0], {}, handle, nbytes)
    os.close(handle)
    with pytest.raises(OSError, match="announced"):
        receive_bytes(ends[1])


def test_memory_that_can_be_cut(ends: Ends) -> None:
    handle = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, SHARED_FROM)
    send_shared(ends[0], {}, handle, SHARED_FROM)
    os.close(handle)
    with pytest.raises(OSError, match="announced"):
        receive_bytes(ends[1])


def test_nobody_cuts_it() -> None:
    handle, memory = shared_memory(SHARED_FROM)
    with pytest.raises(PermissionError):
        os.ftruncate(handle, 0)
    assert not memory.any()
    os.close(handle)
    os.close(of_fixed_size(1))
