"""Calls that a foreign process makes in memory of this one, which judges what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.errors import KernelFault
from .conversation import Budget, Conversation
from .judge import guarded, same_bits, taken, unchanged
from .operands import MemoryFile, Operand, Wall, laid_out

Bytes = npt.NDArray[np.uint8]
Arrays = dict[str, npt.NDArray[Any]]

#: A memory file is used again for a call that needs at least this part of it, or where it is small.
_PART, _SMALL = 4, 1 << 24


@dataclass(frozen=True)
class Given:
    """An operand of a call as the verifier makes it.

    Args:
        operand: it has no place yet.
        content: uint8[nbytes] of an input, and of what else holds something before the call; None: nothing has written
            it. It stays as it is.
        read: what is made of an output's array before it is compared and returned.
    """

    operand: Operand
    content: Bytes | None = None
    read: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda made: made


class Products:
    """What one process holds and makes, for a kernel under any schedule."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        #: What the process holds for many calls: whose it is, where it lies, and the caller's copies of the bytes.
        self._held: tuple[object, Wall, tuple[Operand, ...], MemoryFile, Sequence[Given]] | None = None
        self._room: MemoryFile | None = None

    def holds(self, whose: object, wall: Wall) -> bool:
        """Whether the process, which is started where there is none, holds what was loaded for this. Raises
        KernelFault."""
        same = self._conversation.ready()
        return same and self._held is not None and self._held[0] is whose and self._held[1] == wall

    def load(self, whose: object, wall: Wall, inputs: Sequence[Given], more: Mapping[str, Any]) -> None:
        """Have the process take inputs, such as weights, for many calls.

        Args:
            whose: for `holds`.
            more: of the question.

        Raises KernelFault.
        """
        if self._held is not None:
            held, self._held = self._held[3], None
            self._conversation.forget(held)
            held.close()
        wanted = [given.operand for given in inputs]
        _, size = laid_out(wanted, 0, wall)
        file = MemoryFile(size)
        operands, _ = laid_out(wanted, file.number, wall)
        for operand, given in zip(operands, inputs, strict=True):
            _begin(operand, given, file.bytes, 0)
        question = {"do": "load", **more, "operands": [operand.plain() for operand in operands]}
        self._conversation.ask(question, [file])
        self._held = whose, wall, operands, file, inputs

    def call(
        self, operands: Sequence[Given], more: Mapping[str, Any], scheduled: bool, repeats: bool
    ) -> tuple[Arrays, dict[str, Any]]:  # fmt: skip
        """The outputs of a call by their names, and what the process said. It is made twice, each time from fresh
        memory, unless it is `scheduled`.

        Args:
            operands: beside those that were loaded.
            more: of the question.
            repeats: whether both times must give the same bits.

        Raises KernelFault; if `scheduled`, EnvironmentFault.
        """
        budget = self._conversation.budget()
        try:
            made, said = self._once(operands, more, scheduled, 0, budget)
            if not scheduled:
                first = made
                made, said = self._once(operands, more, scheduled, 1, budget)
                for name in made if repeats else ():
                    same_bits(first[name], made[name])
            return made, said
        except KernelFault:
            self._conversation.stop()  # what one call broke must not reach the next
            raise

    def _once(
        self, given: Sequence[Given], more: Mapping[str, Any], scheduled: bool, turn: int, budget: Budget
    ) -> tuple[Arrays, dict[str, Any]]:
        held = self._held
        wanted = [one.operand for one in given]
        _, size = laid_out(wanted, 0)
        file = self._file(size if scheduled else 2 * size)
        placed, _ = laid_out(wanted, file.number, start=turn * size)
        before = [_begin(operand, one, file.bytes, turn) for operand, one in zip(placed, given, strict=True)]
        named = (*held[2], *placed) if scheduled and held is not None else placed
        question = {"do": "run", **more, "operands": [operand.plain() for operand in named]}
        files = [file] if held is None else [held[3], file]
        said = self._conversation.ask(question, files, budget, may_lack=scheduled)
        out: Arrays = {}
        for operand, content, one in zip(placed, before, given, strict=True):
            if operand.role == "output":
                out[operand.name] = one.read(taken(operand, file.bytes, content))
            elif operand.role == "scratch":
                guarded(operand, file.bytes)
            else:
                unchanged(operand.name, operand.bytes_in(file.bytes), content)
        if held is not None:
            for operand, one in zip(held[2], held[4], strict=True):
                assert one.content is not None
                unchanged(operand.name, operand.bytes_in(held[3].bytes), one.content)
        return out, said

    def _file(self, size: int) -> MemoryFile:
        """Room for the operands of a call, beside what was loaded."""
        room = self._room
        if room is None or room.nbytes < size or room.nbytes > max(_SMALL, _PART * size):
            if room is not None:
                self._conversation.forget(room)
                room.close()
            self._room = MemoryFile(size)
        assert self._room is not None
        return self._room

    def end(self) -> None:
        """End the process, and free the memory."""
        self._conversation.stop()
        self.close()

    def close(self) -> None:
        """Free the memory."""
        if self._held is not None:
            self._held[3].close()
        if self._room is not None:
            self._room.close()
        self._held = self._room = None


def _begin(operand: Operand, given: Given, memory: Bytes, turn: int) -> Bytes:
    """Write what an operand holds before a call, and return it."""
    content = operand.unwritten(turn) if given.content is None else given.content
    operand.begin_in(memory, content)
    return content


__all__ = ["Given", "Products"]
