"""Memory beside the socket: arrays come as they were sent, places under way are not used again, and nothing that the
other side does to the file is more than an error."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_verify.support.lanes import Array, Lane
from gguf_verify.support.protocol import SMALL, ProtocolError, receive, send
from gguf_verify.support.sealed import has_fixed_size, of_fixed_size

SIZE = 1 << 20
LARGE = np.arange(SMALL, dtype=np.float32).reshape(2, -1)


@pytest.fixture
def handle() -> Iterator[int]:
    fd = of_fixed_size(SIZE)
    yield fd
    os.close(fd)


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = (Connection(side.detach()) for side in socket.socketpair())
    with ours, theirs:
        yield ours, theirs


class Kept:
    """Stands for a connection, and keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send_bytes(self, message: Any) -> None:
        self.messages.append(bytes(message))


@pytest.mark.parametrize("mapped", [False, True])
def test_large_arrays_pass_beside_the_socket(
    handle: int, ends: tuple[Connection, Connection], mapped: bool
) -> None:  # fmt: skip
    """More than a socket holds, so that this would wait for ever if they went through it; the small one does."""
    theirs, ours = Lane(handle, mapped), Lane(handle)
    sent: list[Array] = [
        np.full(100_000, 7, np.uint8),
        np.ones(3, np.float64),
        LARGE,
        LARGE.T,
        np.zeros((0, 5), np.int32),
    ]
    for _ in range(3):  # the places of the first messages are used again, by the third
        send(ends[1], {"a": 1}, *sent, lane=theirs)
        header, got = receive(ends[0], seconds=60.0, lane=ours)
        assert header == {"a": 1}
        for mine, given_one in zip(got, sent, strict=True):
            assert (mine.dtype, mine.shape, mine.tobytes()) == (given_one.dtype, given_one.shape, given_one.tobytes())
            assert mine.flags.writeable
        theirs.taken()


def test_arrays_in_place_are_not_copied(handle: int) -> None:
    lane = Lane(handle, mapped=True)
    first, second = lane.empty(50_000), lane.empty(50_000).view(np.float32)
    first[:], second[:] = 3, 5
    kept = Kept()
    send(kept, {}, first, second, lane=lane)  # type: ignore[arg-type]
    first[:] = 4  # it is read where it is
    places = [one["at"] for one in json.loads(kept.messages[0])["arrays"]]
    out = np.empty(50_000, np.uint8)
    Lane(handle).get(places[0], out)
    assert (out == 4).all()
    Lane(handle).get(places[1], out)
    assert (out.view(np.float32) == 5).all()


def test_a_lane_that_was_closed(ends: tuple[Connection, Connection], tmp_path: Path) -> None:
    """Its descriptor's number may be another file's by then, into which nothing is written."""
    fd = of_fixed_size(SIZE)
    lane = Lane(fd)
    with (tmp_path / "file").open("wb+") as other:
        lane.close()
        lane.close()
        os.dup2(other.fileno(), fd)
        try:
            assert lane.put(LARGE) is None
            with pytest.raises(OSError, match="Bad file descriptor"):
                lane.get(0, np.empty(1, np.uint8))
            assert (tmp_path / "file").stat().st_size == 0
        finally:
            os.close(fd)


def test_received_arrays_stay_as_checked(handle: int, ends: tuple[Connection, Connection]) -> None:
    theirs = Lane(handle, mapped=True)
    place = theirs.empty(LARGE.nbytes)
    place[:] = LARGE.reshape(-1).view(np.uint8)
    send(ends[1], {}, place, lane=theirs)
    _, (got,) = receive(ends[0], lane=Lane(handle))
    place[:] = 0
    assert got.tobytes() == LARGE.tobytes()


def test_its_size_is_fixed(handle: int) -> None:
    assert has_fixed_size(handle)
    for size in (0, SIZE - 1, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(handle, size)


def framed(at: object, nbytes: int = LARGE.nbytes) -> Kept:
    kept = Kept()
    one = {"dtype": "|u1", "shape": [nbytes], "at": at}
    kept.messages.append(json.dumps({"arrays": [one]}).encode() + b"\n")
    return kept


@pytest.mark.parametrize(("at", "nbytes"), [
    (-1, LARGE.nbytes), (SIZE, LARGE.nbytes), (SIZE - LARGE.nbytes + 1, LARGE.nbytes), (1 << 63, LARGE.nbytes),
    (10**30, LARGE.nbytes), (None, LARGE.nbytes), ("0", LARGE.nbytes), (0.0, LARGE.nbytes), (True, LARGE.nbytes),
    ([0], LARGE.nbytes), (0, SIZE + 1), (0, 1 << 40),
])  # fmt: skip
def test_places_that_are_none(handle: int, ends: tuple[Connection, Connection], at: object, nbytes: int) -> None:
    for message in framed(at, nbytes).messages:
        ends[1].send_bytes(message)
    with pytest.raises(ProtocolError):
        receive(ends[0], seconds=60.0, lane=Lane(handle))


def test_a_place_in_no_lane(ends: tuple[Connection, Connection]) -> None:
    ends[1].send_bytes(framed(0).messages[0])
    with pytest.raises(ProtocolError):
        receive(ends[0], seconds=60.0)


@pytest.mark.parametrize("mapped", [False, True])
def test_without_room_it_goes_through_the_socket(handle: int, mapped: bool) -> None:
    lane, kept = Lane(handle, mapped), Kept()
    half = np.zeros(SIZE // 2, np.uint8)
    for expected in (1, 1, 2, 1):
        kept.messages.clear()
        send(kept, {}, half, lane=lane)  # type: ignore[arg-type]
        assert len(kept.messages) == expected
        if expected == 2:
            lane.taken()
            assert lane.empty(100).ctypes.data  # a place of a later message
            lane.all_taken()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(1, SIZE // 3), min_size=1, max_size=3)), max_size=30))
def test_places_under_way_are_not_given_again(steps: list[list[int] | None]) -> None:
    """None: the other side has taken the oldest message; else the sizes of a message's arrays."""
    fd = of_fixed_size(SIZE)
    try:
        lane, reader, value = Lane(fd), Lane(fd), 0
        under_way: list[list[tuple[int, int, int]]] = []
        for step in steps:
            if step is None:
                lane.taken()
                under_way[:1] = []
                continue
            message = []
            for nbytes in step:
                value = (value + 1) % 251
                at = lane.put(np.full(nbytes, value, np.uint8))
                message += [(at, nbytes, value)] if at is not None else []
            lane.sent()
            under_way.append(message)
            for at, nbytes, held in (one for each in under_way for one in each):
                out = np.empty(nbytes, np.uint8)
                reader.get(at, out)
                assert (out == held).all()
    finally:
        os.close(fd)


def test_it_takes_the_memory_of_what_is_under_way() -> None:
    """However large it is and however many messages pass, it uses the memory of two of them."""
    fd = of_fixed_size(1 << 34)
    try:
        lane = Lane(fd)
        for _ in range(200):
            assert lane.put(np.ones(100_000, np.uint8)) is not None
            lane.sent()
            if len(lane._messages) > 2:
                lane.taken()
        assert os.fstat(fd).st_blocks * 512 <= 3 * 102_400
    finally:
        os.close(fd)
