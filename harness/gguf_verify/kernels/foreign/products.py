"""Calls that a foreign process makes in memory of this one, which judges what became of it."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...support.errors import KernelFault, NotRun, NotTried
from .conversation import Budget, Conversation
from .judge import FIXED, MOVED, guarded, same_bits, taken, unchanged, written_again
from .operands import MemoryFile, Operand, Wall, laid_out

Bytes = npt.NDArray[np.uint8]
Arrays = dict[str, npt.NDArray[Any]]

#: A memory file is used again for a call that needs at least this part of it, or where it is small.
_PART, _SMALL = 4, 1 << 24
#: Bytes of inputs, beyond which they are held once for all runs of a call; and of each input that tell calls apart.
_MOST_TWICE, _OF_KEY = 1 << 22, 64

#: Signals of bad accesses, and what follows of them where a call without walls next to its operands had been made.
_OF_ACCESS = ("SIGSEGV", "SIGBUS")
_AT_WALL = (
    "; the same call had ended where its operands lie apart from pages that cannot be accessed, and died where such a "
    "page lies directly behind each of them: it reads or writes past the end of one"
)


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


@dataclass(frozen=True)
class Runs:
    """How often a call is made, and what is expected of its answers.

    Args:
        walls: where its operands lie in each run.
        scheduled: a schedule orders the call, which is given everything anew.
        same: what must have the same bits in each run: "nothing"; "fixed", outputs where the operands lie at the same
            addresses; or "all", outputs wherever they lie.
    """

    walls: tuple[Wall, ...]
    scheduled: bool = False
    same: Literal["nothing", "fixed", "all"] = "nothing"


#: Where operands lie in the runs of an ordinary call.
TWICE: tuple[Wall, ...] = ("apart", "behind")


@dataclass
class _Held:
    """What the process holds for many calls.

    Args:
        whose, walls: for `Products.holds`.
        places: its operands, at each of the places where they lie in the file; the process holds the first of them.
        inputs: the caller's copies of the bytes.
        question: asks the process to take it.
    """

    whose: object
    walls: tuple[Wall, ...]
    places: deque[tuple[Operand, ...]]
    file: MemoryFile
    inputs: Sequence[Given]
    question: dict[str, Any]


class Products:
    """What one process holds and makes, for a kernel under any schedule."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._held: _Held | None = None
        self._room: MemoryFile | None = None

    def holds(self, whose: object, walls: tuple[Wall, ...]) -> bool:
        """Whether the process, which is started where there is none, holds what was loaded for this. Raises
        KernelFault."""
        same = self._conversation.ready()
        return same and self._held is not None and self._held.whose is whose and self._held.walls == walls

    def load(
        self, whose: object, walls: tuple[Wall, ...], inputs: Sequence[Given], more: Mapping[str, Any],
        once: bool = False,
    ) -> None:  # fmt: skip
        """Have the process take inputs, such as weights, for many calls.

        Args:
            whose: for `holds`.
            walls: where they lie in the runs of a call. Large inputs lie at one of these places in all runs.
            more: of the question.
            once: they lie at one place in all runs, so that what the process made of them is not made again between
                two runs of a call, and shows that the call changes it.

        Raises KernelFault.
        """
        if self._held is not None:
            held, self._held = self._held.file, None
            self._conversation.forget(held)
            held.close()
        wanted, key = [given.operand for given in inputs], _key(inputs)
        small = not once and sum(operand.nbytes for operand in wanted) <= _MOST_TWICE
        used = walls if small else (walls[key % len(walls)],)
        file, places, start = MemoryFile(sum(_sizes(wanted, used, key))), deque[tuple[Operand, ...]](), 0
        for wall in used:
            operands, start = laid_out(wanted, file.number, wall, start, key)
            for operand, given in zip(operands, inputs, strict=True):
                _begin(operand, given, file.bytes, 0)
            places.append(operands)
        loaded = _Held(whose, walls, places, file, inputs, {"do": "load", **more})
        self._take(loaded)
        self._held = loaded

    def _take(self, held: _Held, budget: Budget | None = None) -> None:
        """Have the process take what lies at the first place."""
        operands = [operand.plain() for operand in held.places[0]]
        self._conversation.ask({**held.question, "operands": operands}, [held.file], budget)

    def call(
        self, operands: Sequence[Given], more: Mapping[str, Any], runs: Runs
    ) -> tuple[list[Arrays], dict[str, Any]]:
        """The outputs of a call by their names, of each run whose bits may differ; and what the process said last. Each
        run has fresh memory.

        Args:
            operands: beside those that were loaded.
            more: of the question.

        Raises KernelFault; in scheduled runs, EnvironmentFault.
        """
        budget, made = self._conversation.budget(), list[Arrays]()
        try:
            for turn, wall in enumerate(runs.walls):
                if turn and self._held is not None and len(self._held.places) > 1:
                    self._held.places.rotate()
                    self._take(self._held, budget)
                answer, said = self._once(operands, more, runs, wall, turn, budget)
                made.append(answer)
            if _all_same(made):
                return made[:1], said
            if runs.same != "nothing":
                self._differ(made, operands, more, runs, budget)
            return made, said
        except NotRun as error:
            if runs.scheduled:
                raise NotTried(str(error)) from None
            raise
        except KernelFault as error:
            self._conversation.stop()  # what one call broke must not reach the next
            if runs.scheduled and error.late:
                self._conversation.hangs -= 1  # in the usual order it may return
                raise NotTried(str(error)) from None
            if made and error.cause in _OF_ACCESS:
                fault = KernelFault(f"{error}{_AT_WALL}")
                fault.cause = error.cause
                raise fault from None
            raise

    def _differ(
        self, made: Sequence[Arrays], operands: Sequence[Given], more: Mapping[str, Any], runs: Runs, budget: Budget
    ) -> None:  # fmt: skip
        """Raises KernelFinding where two runs gave different bits that should not have. Two more, where the operands
        lie as they did in the first, tell whether their addresses are why."""
        for name in made[0]:
            written_again(made[0][name], made[1][name])
        if self._held is not None and len(self._held.places) > 1:
            self._held.places.rotate()
            self._take(self._held, budget)
        again = [self._once(operands, more, runs, runs.walls[0], 1, budget)[0] for _ in range(2)]
        moved = _all_same([made[0], *again])
        for name in made[0] if not moved or runs.same == "all" else ():
            same_bits(made[0][name], made[1][name], MOVED if moved else FIXED)

    def _once(
        self, given: Sequence[Given], more: Mapping[str, Any], runs: Runs, wall: Wall, turn: int, budget: Budget
    ) -> tuple[Arrays, dict[str, Any]]:  # fmt: skip
        held, wanted, key = self._held, [one.operand for one in given], _key(given)
        room = max(_sizes(wanted, runs.walls, key))
        file = self._file(room * len(runs.walls))
        placed, _ = laid_out(wanted, file.number, wall, turn * room, key)
        before = [_begin(operand, one, file.bytes, turn) for operand, one in zip(placed, given, strict=True)]
        named = (*held.places[0], *placed) if runs.scheduled and held is not None else placed
        question = {"do": "run", **more, "operands": [operand.plain() for operand in named]}
        files = [file] if held is None else [held.file, file]
        said = self._conversation.ask(question, files, budget, may_lack=runs.scheduled)
        out: Arrays = {}
        for operand, content, one in zip(placed, before, given, strict=True):
            guarded(operand, file.bytes)
            if operand.role == "output":
                out[operand.name] = one.read(taken(operand, file.bytes, content))
            elif operand.role == "input":
                unchanged(operand.name, operand.bytes_in(file.bytes), content)
        if held is not None:
            for operand, one in zip(held.places[0], held.inputs, strict=True):
                assert one.content is not None
                guarded(operand, held.file.bytes)
                unchanged(operand.name, operand.bytes_in(held.file.bytes), one.content)
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
            self._held.file.close()
        if self._room is not None:
            self._room.close()
        self._held = self._room = None


def _key(given: Sequence[Given]) -> int:
    """A number of these operands' contents, so that calls with other contents lie elsewhere."""
    return zlib.crc32(b"".join(one.content[:_OF_KEY].tobytes() for one in given if one.content is not None))


def _sizes(wanted: Sequence[Operand], walls: Sequence[Wall], key: int) -> list[int]:
    """Bytes of a file that operands take at each of these places."""
    return [laid_out(wanted, 0, wall, 0, key)[1] for wall in walls]


def _all_same(made: Sequence[Arrays]) -> bool:
    """Whether the outputs of several runs have the same bits."""
    first = made[0]
    return all(np.array_equal(_bits(other[name]), _bits(first[name])) for other in made[1:] for name in first)


def _bits(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _begin(operand: Operand, given: Given, memory: Bytes, turn: int) -> Bytes:
    """Write what an operand holds before a call, and return it."""
    content = operand.unwritten(turn) if given.content is None else given.content
    operand.begin_in(memory, content)
    return content


__all__ = ["TWICE", "Given", "Products", "Runs"]
