"""Calls of a foreign process and single thread blocks of them, in memory that it shares with the verifier.

The verifier judges the result (`judge`).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ...hosts.base import MOST_ALONE, Placed, Written
from ...hosts.comparisons import MOST_RECORDS, RECORD
from ...support.errors import FindingKind, KernelFault, NotRun, NotTried
from ..launches import SparseCall
from .addresses import Least, Unaligned
from .conversation import Budget, Conversation
from .judge import guarded, same_bits, taken, unchanged, written, written_again
from .operands import MemoryFile, Operand, Wall, laid_out

Bytes = npt.NDArray[np.uint8]
Arrays = dict[str, npt.NDArray[Any]]
#: Where operands lie in a run, and which of them begin at no multiple of 16.
Place = tuple[Wall, Least]

#: A memory file is reused for a call that needs at least this fraction of it, or if the file is small.
_PART, _SMALL = 4, 1 << 24
#: Addresses of one question, whose answer is of limited size.
_AT_ONCE = 16
#: Bytes of each input that distinguish calls.
_OF_KEY = 64

#: Runs with the operands at two places in turn: no number of calls and no period explains outputs that change with them
#: (the beginning of the Thue-Morse sequence). A library, whose bits may do so in each call, makes a few. And the most
#: runs that are repeated in a new process.
_IN_TURN = (False, True, True, False, True, False, False, True)
_FEW, _MOST_COUNTED = 3, 64

#: Signals of bad accesses, and the conclusion where the same call had ended with its operands elsewhere.
_OF_ACCESS = ("SIGSEGV", "SIGBUS")
_AT_WALL = (
    "; the same call succeeds unless a page without access rights lies directly {0} an operand: the kernel reads or "
    "writes {1} it"
)
_BEYOND: dict[Wall, str] = {"before": "before the start of", "behind": "past the end of"}


@dataclass(frozen=True)
class Given:
    """An operand of a call with its content.

    Args:
        operand: it has no place yet.
        content: uint8[nbytes] of an input, and of any other operand with a content before the call; None: unwritten
            memory. It is not modified.
        read: converts an output's array before it is compared and returned.
    """

    operand: Operand
    content: Bytes | None = None
    read: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda made: made


@dataclass(frozen=True)
class Runs:
    """How often a call is made, and which of its answers must agree.

    Args:
        walls: where the operands lie in each run of the first call with these weights. A later call is made at the last
            of these places and at one of the others, chosen by its contents.
        scheduled: whether a schedule orders the call, which then gets all operands anew.
        same: which bits must agree between the runs: "nothing"; "fixed": outputs with the operands at the same
            addresses; "all": outputs at any addresses.
        again: threads. If a call's only launch has more, later runs have thread blocks of about so many. None: they are
            whole.
        unaligned: the operands that begin at no multiple of 16 in the run apart from walls, and in further ones;
            nothing if there are none.
    """

    walls: tuple[Wall, ...]
    scheduled: bool = False
    same: Literal["nothing", "fixed", "all"] = "nothing"
    unaligned: Unaligned = tuple
    again: int | None = None

    def some(self, launches: Sequence[Mapping[str, Any]]) -> int | None:
        """How many thread blocks of these launches, as in messages, a later run has, about; None: all."""
        if self.again is None or len(launches) != 1 or "grid" not in launches[0]:  # a function has none
            return None
        blocks, threads = (math.prod(launches[0][size]) for size in ("grid", "block"))
        return max(1, self.again // threads) if blocks * threads > self.again else None


@dataclass
class _Part:
    """Runs of some thread blocks of a call, always the same ones.

    Args:
        some: about how many, and the seed of the choice.
        whole: the outputs of a whole run.
        same: whether all of these runs wrote the same elements.
    """

    some: Sequence[int]
    whole: Arrays
    same: bool = True
    _written: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    def completed(self, name: str, made: npt.NDArray[Any], before: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an output of a run, with the elements that it did not write from the whole run."""
        those = written(made, before)
        self.same = self.same and np.array_equal(those, self._written.setdefault(name, those))
        return np.where(those, made, self.whole[name])


@dataclass(frozen=True)
class _Made:
    """The answer of a run, where its operands lay, and its number among the runs of its process."""

    answer: Arrays
    place: Place
    number: int


#: Where operands lie in the runs of an ordinary call.
ORDINARY: tuple[Wall, ...] = ("apart", "before", "behind")


@dataclass
class _Held:
    """Operands that the process holds for many calls.

    Args:
        whose, walls: for `Products.holds`.
        inputs: the verifier's copies of the bytes.
        file: has room for them at each of the places.
        question: the message that has the process load them.
        once: they stay in place between two runs at one place and from the first call on.
        place, operands: where they lie now; None: the process has not loaded them.
        called: whether a call was made at all of the places.
    """

    whose: object
    walls: tuple[Wall, ...]
    inputs: Sequence[Given]
    file: MemoryFile
    question: dict[str, Any]
    once: bool
    place: Place | None = None
    operands: tuple[Operand, ...] = ()
    called: bool = False

    def own(self, place: Place) -> Place:
        """Return the part of a place that is about these operands."""
        wall, least = place
        return wall, {one.operand.name: least[one.operand.name] for one in self.inputs if one.operand.name in least}

    def put(self, place: Place) -> None:
        """Write the operands at a place."""
        self.place = wall, least = self.own(place)
        wanted = [given.operand for given in self.inputs]
        self.operands, _ = laid_out(wanted, self.file.number, wall, 0, _key(self.inputs), least)
        for operand, given in zip(self.operands, self.inputs, strict=True):
            _begin(operand, given, self.file.bytes, 0)


class Products:
    """Operands that one process holds and calls that it makes, for a kernel under any schedule."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._held: _Held | None = None
        self._room: MemoryFile | None = None
        #: Whether some thread blocks of a launch may be run without the others, as far as was seen.
        self._apart = True
        #: Runs that the process has made.
        self._runs = 0

    def holds(self, whose: object, walls: tuple[Wall, ...]) -> bool:
        """Return whether the process, which is started if needed, holds what was loaded for `whose`.

        Raises KernelFault.
        """
        same = self._conversation.ready()
        return same and self._held is not None and self._held.whose is whose and self._held.walls == walls

    def load(
        self,
        whose: object,
        walls: tuple[Wall, ...],
        inputs: Sequence[Given],
        more: Mapping[str, Any],
        once: bool = False,
    ) -> None:
        """Have the process load inputs, such as weights, for many calls.

        Args:
            whose: for `holds`.
            walls: where they lie in the runs of a call.
            more: further fields of the message.
            once: load them once for the last two runs of the first call and for all later calls, so that data that the
                process derives from them are not derived again, and a call that changes them is found.

        They are loaded where the first run needs them.
        """
        if self._held is not None:
            held, self._held = self._held.file, None
            self._conversation.forget(held)
            held.close()
        wanted, key = [given.operand for given in inputs], _key(inputs)
        file = MemoryFile(max(_sizes(wanted, walls, key)))
        self._held = _Held(whose, walls, inputs, file, {"do": "load", **more}, once)

    @property
    def inputs(self) -> Sequence[Given]:
        """The operands that were loaded for many calls."""
        return () if self._held is None else self._held.inputs

    def _take(self, held: _Held, place: Place) -> None:
        """Have the process load the held operands at this place."""
        held.put(place)
        operands = [operand.plain() for operand in held.operands]
        self._conversation.ask({**held.question, "operands": operands}, [held.file])

    def _walls(self, runs: Runs, key: int) -> tuple[Wall, ...]:
        """Return where the operands lie in the runs of a call whose contents have this key."""
        held, (*others, last) = self._held, runs.walls
        if held is not None and held.called and len(others) > 1:
            return others[key % len(others)], last
        return (*runs.walls, last) if held is not None and held.once and others else runs.walls

    def _places(self, runs: Runs, key: int, in_part: bool) -> list[Place]:
        """Return where the operands lie in the runs of a call. `in_part`: only the first one is whole, with aligned
        operands, as most callers make it, and with a wall directly behind them, if one of the runs has it."""
        walls = self._walls(runs, key)
        unaligned = (runs.unaligned() if "apart" in walls else ()) or [{}]
        if in_part:
            walls = walls[-1], *walls[:-1]
        first, *further = [{}, *filter(None, unaligned)] if in_part else unaligned
        places: list[Place] = [(wall, first if wall == "apart" else {}) for wall in walls]
        return [*places, *(("apart", least) for least in further)]

    def call(
        self, operands: Sequence[Given], more: Mapping[str, Any], runs: Runs
    ) -> tuple[list[Arrays], dict[str, Any]]:
        """Make a call, with fresh memory for each run.

        Args:
            operands: those that are not loaded.
            more: further fields of the message.

        Returns the outputs by name, once for each run whose bits may differ, and the last message of the process.

        Raises KernelFault; in scheduled runs, EnvironmentFault.
        """
        if not self._conversation.ready():
            self._began()
        some, whole = runs.some(more.get("launches", ())), more
        places, made = self._places(runs, _key(operands), some is not None and self._apart), list[_Made]()
        budget, turn, part = self._conversation.budget(len(places)), 0, None
        if some is not None and self._apart and len(places) > 1:
            whole = {**more, "watched": [some, _key(operands)]}
        try:
            for turn, place in enumerate(places):
                # Unwritten memory holds NaN in the first run and a small number in all others.
                at = place, min(turn, 1)
                if turn and part is not None and self._same_in_part(operands, more, runs, at, budget, part):
                    continue
                answer, said = self._once(operands, more if turn else whole, runs, at, budget)
                made.append(_Made(answer, place, self._runs))
                part = _Part([some, _key(operands)], answer) if some is not None and not turn else part
            if self._held is not None and len(places) > 1:
                self._held.called = True
            answers = [one.answer for one in made]
            if _all_same(answers):
                return answers[:1], said
            if runs.same != "nothing":
                self._differ(made, operands, more, runs)
            return answers, said
        except NotRun as error:
            if runs.scheduled:
                raise NotTried(str(error)) from None
            raise
        except KernelFault as error:
            self._conversation.end()  # a process that one call broke must not serve the next
            if runs.scheduled and error.late:
                self._conversation.hangs -= 1  # in the usual order it may return
                raise NotTried(str(error)) from None
            if error.cause in _OF_ACCESS and (words := _at_wall([wall for wall, _ in places], turn)):
                fault = KernelFault(f"{error}{words}")
                fault.cause = error.cause
                raise fault from None
            raise

    def _same_in_part(
        self,
        operands: Sequence[Given],
        more: Mapping[str, Any],
        runs: Runs,
        at: tuple[Place, int],
        budget: Budget,
        part: _Part,
    ) -> bool:
        """Whether a run of some of a call's thread blocks gives what they gave in the whole run, and writes what they
        wrote in other such runs. If not, they may depend on others, and nothing is learned.

        Raises KernelFault.
        """
        if not self._apart:
            return False
        try:
            answer, _ = self._once(operands, more, runs, at, budget, part)
        except NotTried:
            self._apart = False
            return False
        return part.same and _all_same([part.whole, answer])

    def _differ(
        self, made: Sequence[_Made], operands: Sequence[Given], more: Mapping[str, Any], runs: Runs
    ) -> None:  # fmt: skip
        """Raise KernelFinding if two runs gave different bits that must agree.

        Further runs determine the cause. With the operands at either place in turn, in an order without a period,
        outputs change with the addresses alone, or not. In new processes, as many runs as before, all of them at the
        addresses of the first, give the same outputs as before if their number is the cause.
        """
        first, *others = made
        other = next(one for one in others if not _all_same([first.answer, one.answer]))
        for name in first.answer:
            written_again(first.answer[name], other.answer[name])

        def again(place: Place, turn: int, budget: Budget) -> Arrays:
            if self._held is not None and self._held.place != self._held.own(place):
                self._take(self._held, place)
            return self._once(operands, more, runs, (place, turn), budget)[0]

        def moved() -> bool:
            in_turn = _IN_TURN if runs.same == "all" else _IN_TURN[:_FEW]
            budget = self._conversation.budget(len(in_turn))
            return first.place != other.place and all(
                _all_same([first.answer, again(other.place if at_other else first.place, turn, budget)]) != at_other
                for turn, at_other in enumerate(in_turn, 1)
            )

        def counted() -> int | None:
            """The number of the run that differs from those before it or after it."""
            number = None
            for _ in range(2 if other.number <= _MOST_COUNTED else 0):
                self.restart()
                self._conversation.ready()
                self._began()
                budget = self._conversation.budget(other.number)
                found = [again(first.place, 0, budget) for _ in range(other.number)]
                if not _all_same([first.answer, found[first.number - 1]]) or not _all_same([other.answer, found[-1]]):
                    return None
                number = other.number if _all_same([first.answer, found[0]]) else first.number
            return number

        kind: FindingKind = "address" if moved() else "changing"
        if kind == "address" and runs.same != "all":
            return
        number = None
        if kind == "changing":
            with contextlib.suppress(KernelFault):
                number = counted()
        kind, which = (kind, "a second run") if number is None else ("count", f"run {number} of a process")
        for name in first.answer:
            same_bits(first.answer[name], other.answer[name], kind, which)

    def _began(self) -> None:
        """A new process holds nothing and has made no runs."""
        self._runs = 0
        if self._held is not None:
            self._held.place, self._held.called = None, False

    def restart(self) -> None:
        """Have the next call made in a new process."""
        self._conversation.end()

    def _once(
        self,
        given: Sequence[Given],
        more: Mapping[str, Any],
        runs: Runs,
        at: tuple[Place, int],
        budget: Budget,
        part: _Part | None = None,
    ) -> tuple[Arrays, dict[str, Any]]:
        """Make one run; return its outputs and the message of the process.

        Args:
            at: where the operands lie, and the number of the run.
            part: the thread blocks that it has; None: all.
        """
        place, turn, held = at[0], at[1] % 2, self._held
        stays = held is not None and held.once and held.called
        if held is not None and (held.place is None or (held.place != held.own(place) and not stays)):
            self._take(held, place)
        (wall, least), wanted, key = place, [one.operand for one in given], _key(given)
        room = max(_sizes(wanted, runs.walls, key))
        file = self._file(2 * room if len(runs.walls) > 1 or turn else room)
        placed, _ = laid_out(wanted, file.number, wall, turn * room, key, least)
        before = [_begin(operand, one, file.bytes, turn) for operand, one in zip(placed, given, strict=True)]
        named = (*held.operands, *placed) if runs.scheduled and held is not None else placed
        question = {"do": "run", **more, "operands": [operand.plain() for operand in named]}
        question |= {} if part is None else {"some": part.some}
        files = [file] if held is None else [held.file, file]
        said = self._conversation.ask(question, files, budget, may_lack=runs.scheduled or part is not None)
        self._runs += 1
        out: Arrays = {}
        for operand, content, one in zip(placed, before, given, strict=True):
            guarded(operand, file.bytes)
            if operand.role == "output":
                made = one.read(taken(operand, file.bytes, content))
                if part is not None:
                    made = part.completed(operand.name, made, one.read(replace(operand, at=0).array_in(content)))
                out[operand.name] = made
            elif operand.role == "input":
                unchanged(operand.name, operand.bytes_in(file.bytes), content)
        if held is not None:
            for operand, one in zip(held.operands, held.inputs, strict=True):
                assert one.content is not None
                guarded(operand, held.file.bytes)
                unchanged(operand.name, operand.bytes_in(held.file.bytes), one.content)
        return out, said

    def _file(self, size: int) -> MemoryFile:
        """Return a memory file for the operands of a call that are not loaded."""
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
        self._conversation.end()
        self.close()

    def close(self) -> None:
        """Free the memory."""
        if self._held is not None:
            self._held.file.close()
        if self._room is not None:
            self._room.close()
        self._held = self._room = None


class ThreadBlocks:
    """Has a process run thread blocks of sparse products and return their writes."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        #: The product whose contents lie in the file.
        self._of: object = None
        self._file: MemoryFile | None = None
        self._operands: tuple[Operand, ...] = ()

    def _place(self, call: SparseCall) -> MemoryFile:
        """Return a memory file with the repeating contents of the operands, and room for all writes of a thread block.

        Only pages that are written take memory.
        """
        of = call if call.of is None else call.of
        if self._file is not None and self._of is of:
            return self._file
        self.close()
        contents = call.contents
        wanted = [Operand(what, "input", "uint8", content.shape) for what, content in contents.items()]
        wanted += [Operand(name, "output", dtype, (MOST_ALONE // call.unit,))
                   for name, dtype in (("at", "int64"), ("words", f"uint{8 * call.unit}"))]  # fmt: skip
        wanted.append(Operand("compared", "output", "uint8", (MOST_RECORDS * RECORD.itemsize,)))
        _, size = laid_out(wanted, 0)
        file = self._file = MemoryFile(size)
        self._operands, _ = laid_out(wanted, file.number)
        for operand in self._operands[: len(contents)]:
            operand.array_in(file.bytes)[...] = contents[operand.name]
        self._of = of
        return file

    def _ask(
        self, do: str, call: SparseCall, launches: Sequence[dict[str, Any]], more: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Have the process run thread blocks; return its answer. Raises KernelFault, EnvironmentFault."""
        try:
            self._conversation.ready()
        except NotRun as error:
            raise NotTried(str(error)) from None
        file = self._place(call)
        asked = {"do": do, "launches": launches, "sizes": call.sizes, "scratch": sorted(call.scratch),
                 "zeros": dict(call.zeros), "unit": call.unit, "leads": {}, **more,
                 "operands": [operand.plain() for operand in self._operands]}  # fmt: skip
        return self._conversation.ask(asked, [file], may_lack=True)

    def alone(
        self, call: SparseCall, launches: Sequence[dict[str, Any]], leads: Mapping[str, int] | None = None
    ) -> Written:
        """Run the thread blocks "numbers" of each launch, and return the writes of the last launch.

        Args:
            leads: operand → bytes between the beginning of a page and its own; None: all begin at pages.

        Raises KernelFault, EnvironmentFault.
        """
        n = self._ask("alone", call, launches, {"leads": {**(leads or {})}}).get("written")
        if type(n) is not int or not 0 <= n <= MOST_ALONE // call.unit:
            self._conversation.garbage()
        assert self._file is not None
        at, words = (operand.array_in(self._file.bytes)[:n].copy() for operand in self._operands[-3:-1])
        written = Written(at, words)
        most = call.sizes["output"] // call.unit
        if (np.diff(written.at) <= 0).any() or (n and not 0 <= written.at[0] <= written.at[-1] < most):
            self._conversation.garbage()
        return written

    def compared(
        self, call: SparseCall, launches: Sequence[dict[str, Any]], placed: Mapping[str, Placed]
    ) -> npt.NDArray[np.void]:
        """Run the thread blocks "numbers" of each launch by a traced build; return its comparisons, `RECORD`.

        Raises KernelFault, EnvironmentFault.
        """
        said = self._ask("compared", call, launches, {"placed": {key: asdict(one) for key, one in placed.items()}})
        n = said.get("compared")
        if type(n) is not int or not 0 <= n <= MOST_RECORDS:
            self._conversation.garbage()
        assert self._file is not None
        return self._operands[-1].bytes_in(self._file.bytes).view(RECORD)[:n].copy()

    def lines(self, code: str, addresses: Sequence[int]) -> list[list[str]]:
        """Return the places in the source of some addresses in a traced build. Raises KernelFault."""
        found: list[list[str]] = []
        for start in range(0, len(addresses), _AT_ONCE):
            some = list(addresses[start : start + _AT_ONCE])
            said = self._conversation.ask({"do": "lines", "code": code, "addresses": some, "operands": []}, [])
            try:
                found += msgspec.convert(
                    said.get("lines"), Annotated[list[list[str]], msgspec.Meta(max_length=len(some))]
                )
            except msgspec.ValidationError:
                self._conversation.garbage()
        if len(found) != len(addresses):
            self._conversation.garbage()
        return found

    def close(self) -> None:
        """Free the memory."""
        if self._file is not None:
            self._conversation.forget(self._file)
            self._file.close()
        self._file = self._of = None


def _key(given: Sequence[Given]) -> int:
    """Return a number derived from the operands' contents, so that calls with other contents lie elsewhere."""
    return zlib.crc32(b"".join(one.content[:_OF_KEY].tobytes() for one in given if one.content is not None))


def _sizes(wanted: Sequence[Operand], walls: Sequence[Wall], key: int) -> list[int]:
    """Return the bytes of a file that operands take at each of these places, unaligned or not."""
    return [laid_out(wanted, 0, wall, 0, key)[1] + len(wanted) * mmap.PAGESIZE for wall in walls]


def _at_wall(walls: Sequence[Wall], ended: int) -> str:
    """Return the conclusion from a bad access after `ended` runs that succeeded; "" if there is none."""
    at = walls[ended] if ended < len(walls) else "apart"
    return _AT_WALL.format(at, _BEYOND[at]) if ended and at in _BEYOND and at not in walls[:ended] else ""


def _all_same(made: Sequence[Arrays]) -> bool:
    """Return whether the outputs of several runs have the same bits."""
    first = made[0]
    return all(np.array_equal(_bits(other[name]), _bits(first[name])) for other in made[1:] for name in first)


def _bits(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _begin(operand: Operand, given: Given, memory: Bytes, turn: int) -> Bytes:
    """Write and return the content of an operand before a call."""
    content = operand.unwritten(turn) if given.content is None else given.content
    operand.begin_in(memory, content)
    return content
