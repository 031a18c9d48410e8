"""Calls that a foreign process makes in memory of this one, which judges what became of it."""

from __future__ import annotations

import zlib
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
#: Bytes of each input that tell calls apart.
_OF_KEY = 64

#: Signals of bad accesses, and what follows of them where the same call had ended with its operands elsewhere.
_OF_ACCESS = ("SIGSEGV", "SIGBUS")
_AT_WALL = (
    "; the same call had ended where no page that cannot be accessed lies directly {0} its operands, and died where "
    "one does: it reads or writes {1} one"
)
_BEYOND: dict[Wall, str] = {"before": "before the start of", "behind": "past the end of"}


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
        walls: where its operands lie in each run of the first call that has these weights. A later one is made at the
            last of these places and at one before, which its contents choose.
        scheduled: a schedule orders the call, which is given everything anew.
        same: what must have the same bits in each run: "nothing"; "fixed", outputs where the operands lie at the same
            addresses; or "all", outputs wherever they lie.
    """

    walls: tuple[Wall, ...]
    scheduled: bool = False
    same: Literal["nothing", "fixed", "all"] = "nothing"


#: Where operands lie in the runs of an ordinary call.
ORDINARY: tuple[Wall, ...] = ("apart", "before", "behind")


@dataclass
class _Held:
    """What the process holds for many calls.

    Args:
        whose, walls: for `Products.holds`.
        inputs: the caller's copies of the bytes.
        file: has room for them at each of the places.
        question: asks the process to take them.
        once: they stay where they are between two runs at one place and from the first call on.
        wall, operands: where they lie now.
        called: whether a call was made at all of the places.
    """

    whose: object
    walls: tuple[Wall, ...]
    inputs: Sequence[Given]
    file: MemoryFile
    question: dict[str, Any]
    once: bool
    wall: Wall
    operands: tuple[Operand, ...] = ()
    called: bool = False

    def put(self, wall: Wall) -> None:
        """Lay them there."""
        self.wall = wall
        wanted = [given.operand for given in self.inputs]
        self.operands, _ = laid_out(wanted, self.file.number, wall, 0, _key(self.inputs))
        for operand, given in zip(self.operands, self.inputs, strict=True):
            _begin(operand, given, self.file.bytes, 0)


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
            walls: where they lie in the runs of a call.
            more: of the question.
            once: they are taken once for the last two runs of the first call and for all later ones, so that what the
                process made of them is not made again, and shows that a call changes it.

        Raises KernelFault.
        """
        if self._held is not None:
            held, self._held = self._held.file, None
            self._conversation.forget(held)
            held.close()
        wanted, key = [given.operand for given in inputs], _key(inputs)
        file = MemoryFile(max(_sizes(wanted, walls, key)))
        loaded = _Held(whose, walls, inputs, file, {"do": "load", **more}, once, walls[0])
        self._take(loaded, walls[0])
        self._held = loaded

    def _take(self, held: _Held, wall: Wall) -> None:
        """Have the process take what is held, at this place."""
        held.put(wall)
        operands = [operand.plain() for operand in held.operands]
        self._conversation.ask({**held.question, "operands": operands}, [held.file])

    def _walls(self, runs: Runs, key: int) -> tuple[Wall, ...]:
        """Where the operands lie in the runs of a call with contents of this key."""
        held, (*others, last) = self._held, runs.walls
        if held is not None and held.called and len(others) > 1:
            return others[key % len(others)], last
        return (*runs.walls, last) if held is not None and held.once and others else runs.walls

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
        walls, made = self._walls(runs, _key(operands)), list[Arrays]()
        budget = self._conversation.budget(len(walls))
        try:
            for turn, wall in enumerate(walls):
                # what nothing has written holds no number in the first run, and a small one in all others
                answer, said = self._once(operands, more, runs, (wall, min(turn, 1)), budget)
                made.append(answer)
            if self._held is not None and len(walls) > 1:
                self._held.called = True
            if _all_same(made):
                return made[:1], said
            if runs.same != "nothing":
                self._differ(made, operands, more, (runs, walls[0]), budget)
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
            if error.cause in _OF_ACCESS and (words := _at_wall(walls, len(made))):
                fault = KernelFault(f"{error}{words}")
                fault.cause = error.cause
                raise fault from None
            raise

    def _differ(
        self, made: Sequence[Arrays], operands: Sequence[Given], more: Mapping[str, Any], of: tuple[Runs, Wall],
        budget: Budget,
    ) -> None:  # fmt: skip
        """Raises KernelFinding where two runs gave different bits that should not have. Two more, where the operands
        lie as they did in the first, tell whether their addresses are why.

        Args:
            of: the runs, and where the operands lay in the first.
        """
        first, *others = made
        other = next(answer for answer in others if not _all_same([first, answer]))
        for name in first:
            written_again(first[name], other[name])
        runs, wall = of
        if self._held is not None and self._held.wall != wall:
            self._take(self._held, wall)
        again = [self._once(operands, more, runs, (wall, turn), budget)[0] for turn in (1, 2)]
        moved = _all_same([first, *again])
        for name in first if not moved or runs.same == "all" else ():
            same_bits(first[name], other[name], MOVED if moved else FIXED)

    def _once(
        self, given: Sequence[Given], more: Mapping[str, Any], runs: Runs, at: tuple[Wall, int], budget: Budget
    ) -> tuple[Arrays, dict[str, Any]]:  # fmt: skip
        """One run: what it made, and what the process said.

        Args:
            at: where the operands lie, and the number of the run.
        """
        wall, turn = at[0], at[1] % 2
        if self._held is not None and self._held.wall != wall and not (self._held.once and self._held.called):
            self._take(self._held, wall)
        held, wanted, key = self._held, [one.operand for one in given], _key(given)
        room = max(_sizes(wanted, runs.walls, key))
        file = self._file(2 * room if len(runs.walls) > 1 else room)
        placed, _ = laid_out(wanted, file.number, wall, turn * room, key)
        before = [_begin(operand, one, file.bytes, turn) for operand, one in zip(placed, given, strict=True)]
        named = (*held.operands, *placed) if runs.scheduled and held is not None else placed
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
            for operand, one in zip(held.operands, held.inputs, strict=True):
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


def _at_wall(walls: Sequence[Wall], ended: int) -> str:
    """What follows of a bad access in the run after so many that ended; "" where nothing does."""
    at = walls[ended] if ended < len(walls) else "apart"
    return _AT_WALL.format(at, _BEYOND[at]) if ended and at in _BEYOND and at not in walls[:ended] else ""


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
