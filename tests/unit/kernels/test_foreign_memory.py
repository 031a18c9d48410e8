"""Memory that two processes map, and the socket between them, of which one side is not trusted."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts.memory import GUARD_BYTES, POISON
from gguf_verify.kernels.foreign import conversation
from gguf_verify.kernels.foreign.conversation import Channel, Conversation, Garbled, Late
from gguf_verify.kernels.foreign.judge import taken, unchanged
from gguf_verify.kernels.foreign.operands import MemoryFile, Operand, Wall, laid_out
from gguf_verify.support.errors import EnvironmentFault, KernelFault, KernelFinding
from tests.fuzz import mutations
from tests.fuzz.targets.answers import Scripted

WANTED = (
    Operand("weights", "input", "uint8", (7, 54)), Operand("output", "output", "float32", (5, 7)),
    Operand("codes", "scratch", "int8", (3, mmap.PAGESIZE)), Operand("none", "input", "float32", (0, 7)),
)  # fmt: skip


@pytest.mark.parametrize("least", [{}, {"weights": 2, "output": 4, "none": 8}])
@pytest.mark.parametrize("wall", ["before", "behind", "apart"])
def test_each_operand_has_pages_of_its_own(wall: Wall, least: dict[str, int]) -> None:
    placed, size = laid_out(WANTED, 3, wall, 2 * mmap.PAGESIZE, 0, least)
    end = 2 * mmap.PAGESIZE
    for operand in placed:
        first, last = operand.at - GUARD_BYTES, operand.at + operand.nbytes + GUARD_BYTES
        assert end <= first
        end = -(-last // mmap.PAGESIZE) * mmap.PAGESIZE
        mapped = operand.reach
        assert first <= mapped[0] <= operand.at
        assert operand.at + operand.nbytes <= mapped[1] <= last
        if wall == "behind":
            assert mapped[1] % mmap.PAGESIZE == 0
            assert mapped[1] - operand.at - operand.nbytes < 16
        elif wall == "before":
            assert operand.at == mapped[0]
            assert operand.at % mmap.PAGESIZE == 0
        else:
            assert mapped == (first, last)
    assert size == end
    assert [Operand.of_plain({**o.plain(), "shape": list(o.shape)}) for o in placed] == list(placed)


@pytest.mark.parametrize("alignment", [1, 2, 16, 64, 256])
def test_addresses_vary_by_no_more_than_is_promised(alignment: int) -> None:
    """Each bit of an address that is left open differs: the lowest one between the two runs of each call, others from
    call to call."""
    varied = 0
    for nbytes in (1, 255, 4096, 9000, 1 << 20):
        operand = Operand("x", "input", "uint8", (nbytes,), alignment=alignment)
        for key in range(20):
            (behind,), _ = laid_out([operand], 1, "behind", key=key)
            (apart,), _ = laid_out([operand], 1, "apart", key=key)
            assert behind.at % alignment == apart.at % alignment == 0
            assert (behind.at ^ apart.at) & alignment
            varied |= apart.at ^ laid_out([operand], 1, "apart", key=key + 1)[0][0].at
    assert varied & (mmap.PAGESIZE - 1) == mmap.PAGESIZE - 2 * alignment


def test_addresses_at_which_types_can_begin() -> None:
    """An unaligned operand lies at no multiple of 16, at each multiple of its type's alignment between; the others do
    not."""
    operands, found = [Operand(name, "input", "uint8", (90,)) for name in "wxy"], set()
    for key in range(400):
        w, x, y = (of.at % 16 for of in laid_out(operands, 1, "apart", 0, key, {"w": 2, "x": 4})[0])
        found |= {("w", w), ("x", x), ("y", y)}
    assert found == {*(("w", at) for at in range(2, 16, 2)), *(("x", at) for at in range(4, 16, 4)), ("y", 0)}


def test_strides() -> None:
    """Every second row of three, and of each all columns."""
    operand = Operand("output", "output", "float16", (3, 4), at=GUARD_BYTES, strides=(16, 2))
    assert operand.nbytes == 2 * 16 + 3 * 2 + 2
    memory = np.zeros(2 * GUARD_BYTES + operand.nbytes, np.uint8)
    operand.array_in(memory)[...] = 1
    assert memory[GUARD_BYTES:].view(np.float16)[:20].tolist() == [1] * 4 + [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4


def test_neither_side_can_change_the_size_of_memory() -> None:
    file = MemoryFile(100)
    for size in (0, 99, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(file.handle, size)
    file.close()
    with pytest.raises(EnvironmentFault, match="no shared memory of"):
        MemoryFile(1 << 62)


def test_what_is_judged_is_a_copy() -> None:
    (output,), size = laid_out([Operand("output", "output", "float32", (2, 3))], 0)
    memory = np.zeros(size, np.uint8)
    before = output.unwritten()
    output.begin_in(memory, before)
    made = taken(output, memory, before)
    assert (made.view(np.uint32) == POISON).all()
    output.array_in(memory)[...] = 1
    assert (made.view(np.uint32) == POISON).all()
    assert (taken(output, memory, before) == 1).all()
    memory[output.at + output.nbytes + GUARD_BYTES - 1] ^= 1
    with pytest.raises(KernelFinding, match="0 bytes before, 1 after"):
        taken(output, memory, before)


def test_inputs_are_compared_to_their_last_byte() -> None:
    given = np.random.default_rng(1).integers(0, 256, 600_001, np.uint8)
    unchanged("weights", given.copy(), given)
    for at in (0, 262_143, 262_144, 600_000):
        now = given.copy()
        now[at] ^= 1
        now[-1] ^= 2
        with pytest.raises(
            KernelFinding, match=f"weights: {'2 bytes' if at != 600_000 else '1 byte'}, the first at {at}$"
        ):
            unchanged("weights", now, given)


def test_a_message_has_a_limit_and_an_exchange_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours.fileno(), 10)
        theirs.sendall(b"\0\0\0\2ab\0\0\0\x0b")
        assert not channel.quiet
        assert channel.receive(time.monotonic() + 60) == b"ab"
        with pytest.raises(Garbled):
            channel.receive(time.monotonic() + 60)
        theirs.sendall(b"\0\0\0\5ab")
        with pytest.raises(Late):
            channel.receive(time.monotonic() + 0.1)
        with pytest.raises(Late):  # nobody reads
            channel.send(b" " * (1 << 24), time.monotonic() + 0.1)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            channel.receive(time.monotonic() + 60)


@pytest.mark.parametrize("said", [b"[" * 9000, b"\xff", b"", b"[]", b"1" * 9000, b"{", b'"ok"'])
def test_no_answer_raises_anything_else(said: bytes) -> None:
    start: Any = partial(Scripted, mutations.framed(said))
    talk = Conversation("the kernel", "k", start, 30.0, 30.0)
    with pytest.raises(KernelFault, match="the kernel's process sent an answer that is not valid"):
        talk.begin()
    assert talk.process is None


class Sleeping(Scripted):
    """Stands for a process that begins, and answers nothing."""

    def _talk(self) -> None:
        with self._theirs, contextlib.suppress(OSError):
            self._theirs.sendall(self._first)
            while self._theirs.recv(1 << 16):
                pass


def test_a_process_that_answers_no_last_question_is_ended_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these questions together have a limit below that of a call."""
    monkeypatch.setattr(conversation, "_LAST", 0.2)
    start: Any = partial(Sleeping, mutations.framed(b"{}"))
    talk = Conversation("the kernel", "k", start, 30.0, 30.0)
    talk.begin()
    faults = list[str]()

    def ask(_: Conversation) -> None:
        try:
            talk.ask({"do": "executed"})
        except KernelFault as error:
            faults.append(str(error))

    talk.ending, begun = ask, time.monotonic()
    talk.end()
    assert time.monotonic() - begun < 15
    assert faults == ["the kernel did not return within 0.2 s"]
    assert (talk.process, talk.hangs) == (None, 0)
    assert talk.budget().seconds == 30.0
