"""Shared memory between a host and its process: what could become a fatal signal is not mapped."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import pytest

from gguf_verify.hosts.process_child import SHARED_FROM, receive_bytes, send_bytes, send_shared, shared_memory
from gguf_verify.support.sealed import of_fixed_size

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
