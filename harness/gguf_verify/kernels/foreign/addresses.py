"""The addresses of operands: which ones a call gets, and what a kernel needs.

A GGUF file aligns a tensor to 32 bytes and CUDA an allocation to 256, but a row of Q4_0 begins at any even address, and
a caller may pass one expert of a tensor, the rows of one GPU, or a view of activations. So calls of a
kernel are made with all operands at multiples of 16 bytes, and those that have a run apart from walls (the first with a
matrix, and about half of the others) also with some operands at addresses that only the types of their elements allow.

Which ones these are is chosen so that all combinations of aligned and unaligned operands meet few and many tokens, rows
and columns (`Combinations`). A kernel that a GPU stops there ("misaligned address") computes nothing wrong: what it
needs is a limit of the verdict. One that returns other outputs is incorrect, unless it declares an alignment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...hosts.memory import ALIGNMENT
from ...support.errors import EnvironmentFault, KernelFault, KernelFinding, NotRun

#: Operand → the bytes of which its address is a multiple, of those that begin at no multiple of 16.
Least = Mapping[str, int]
#: Returns the operands that are unaligned in one run of a call, and in further runs; nothing if all are aligned.
Unaligned = Callable[[], Sequence[Least]]

T = TypeVar("T")
#: The answers of the runs of a call, one if they are equal, and the last message of the process.
Answered = tuple[list[T], dict[str, Any]]
Correct = Callable[[Sequence[T]], list[bool]]

#: Sizes up to 2^31; operands of which all combinations are tried, of more those of three; and how many of these.
_BITS, _TOGETHER, _CANDIDATES = 32, 3, 64
#: Findings at which a launch on a GPU ends, or on which the compiler may rely. After any other the caller has outputs.
_STOPS = ("misaligned", "assumption", "operand", "limit")


@dataclass(frozen=True)
class Needed:
    """An operand that must begin at a multiple of more bytes than its type needs.

    Args:
        operand: its name.
        alignment: in bytes.
        fault: of a call with less.
        beside: other operands, if the call only fails where these too begin at no such multiple.
    """

    operand: str
    alignment: int
    fault: KernelFault
    beside: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        """As the headline of a pass names it."""
        return f"{self.operand} at multiples of {self.alignment} bytes"

    @property
    def declaration(self) -> str:
        """What declares it."""
        return f"operands.{self.operand}.alignment = {self.alignment}"

    @property
    def words(self) -> str:
        """The verified range, the reason, and the cure."""
        unless = f" unless {' or '.join(self.beside)} does" if self.beside else ""
        return (
            f"{self.operand} must begin at a multiple of {self.alignment} bytes{unless} ({self.fault}): declare "
            f"{self.declaration}, or load in smaller units"
        )


def stops(fault: KernelFault) -> bool:
    """Whether a call with this fault has no outputs, rather than incorrect ones."""
    if not isinstance(fault, KernelFinding) or fault.kind in _STOPS:
        return True
    return "outside its buffers" in fault.words and not fault.lines  # the process ended there


def needed_of(least: Least, found: KernelFault, fault: Callable[[Least], KernelFault | None]) -> tuple[Needed, ...]:
    """Return what the operands of a call need that fails at some addresses and not at multiples of 16.

    Args:
        least: its operands at other addresses.
        found: its fault.
        fault: of the call with such operands, the others at multiples of 16 bytes; None if it is correct.
    """
    needed = []
    for name, begin in least.items():
        alignment, why = begin, found
        while alignment < ALIGNMENT and (other := fault({name: alignment})) is not None:
            alignment, why = 2 * alignment, other
        if alignment > begin:
            needed.append(Needed(name, alignment, why))
    raised = {of.operand: of.alignment for of in needed}
    fitting = {name: n for name, begin in least.items() if (n := raised.get(name, begin)) < ALIGNMENT}
    together = found if not needed else fault(fitting) if len(fitting) > 1 else None
    if together is None:
        return tuple(needed)
    for name in tuple(fitting):  # an operand without which the others fail too has no part in it
        others = {other: n for other, n in fitting.items() if other != name}
        if len(others) > 1 and (fails := fault(others)) is not None:
            fitting, together = others, fails
    alone = [of for of in needed if of.operand not in fitting]
    return *alone, *(
        Needed(name, ALIGNMENT, together, tuple(other for other in fitting if other != name)) for name in fitting
    )


class Combinations:
    """Chooses which operands of each call are unaligned.

    A size is at least, or less than, each power of two. Every combination of three operands, aligned or not, should be
    tried on each of these sides of M, N and K: a call gets the candidate whose combinations were tried the least on
    its sides, of equal ones the first that has the most unaligned operands.

    Args:
        count: the operands.
    """

    def __init__(self, count: int) -> None:
        every = 1 << count
        some = np.random.default_rng(count).permutation(every - 1)[:_CANDIDATES] + 1 if every > _CANDIDATES else None
        numbers = np.union1d(some, [every - 1]) if some is not None else np.arange(1, every)
        bits = np.array([[number >> i & 1 for i in range(count)] for number in numbers.tolist()], np.int64)
        self._bits = bits[np.argsort(-bits.sum(axis=1), kind="stable")]
        groups = list(itertools.combinations(range(count), min(_TOGETHER, count)))
        #: Of each candidate and each group of operands, the number of the combination.
        self._of = np.stack(
            [i << _TOGETHER | self._bits[:, group] @ (1 << np.arange(len(group))) for i, group in enumerate(groups)], 1
        )
        self._tried = np.zeros((len(groups) << _TOGETHER, 3 * _BITS * 2))

    def next(self, shape: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return which operands of a call with these sizes [M, N, K] are unaligned, at least one."""
        powers = np.arange(_BITS)
        sides = np.concatenate([
            (i * _BITS + powers) * 2 + (min(size, (1 << _BITS) - 1) >= (1 << powers)) for i, size in enumerate(shape)
        ])  # fmt: skip
        novelty = (0.5 ** self._tried[:, sides]).sum(axis=1)
        chosen = int(np.argmax(novelty[self._of].sum(axis=1).round(9)))
        self._tried[self._of[chosen][:, None], sides] += 1
        found: npt.NDArray[np.bool_] = self._bits[chosen].astype(bool)
        return found

    @property
    def every(self) -> list[npt.NDArray[np.bool_]]:
        """All candidates."""
        return list(self._bits.astype(bool))


@dataclass(frozen=True)
class Call:
    """A call, as far as its addresses depend on it.

    Args:
        fmt: the type of weights; "" without weights.
        types: operand → the alignment that its elements need, where none is declared.
        shape: M, N, K.
        unaligned: whether all operands begin at no multiple of 16 in it.
    """

    fmt: str
    types: Least
    shape: tuple[int, int, int]
    unaligned: bool


@dataclass
class Addresses:
    """What is known of the addresses that a kernel takes, and those that its calls had.

    Args:
        every: whether each call is made at all combinations of addresses.
        called: type of weights → the smallest alignments that its operands had.
        needed: type of weights and operand → what it needs.
    """

    every: bool = False
    called: dict[str, Least] = field(default_factory=dict)
    needed: dict[tuple[str, str], Needed] = field(default_factory=dict)
    _combinations: dict[tuple[str, ...], Combinations] = field(default_factory=dict)

    @property
    def limits(self) -> list[Needed]:
        """What calls need that have no outputs otherwise."""
        return [needed for needed in self.needed.values() if stops(needed.fault)]

    def made(
        self, call: Call, make: Callable[[Unaligned, bool], Answered[T]], correct: Correct[T],
        restart: Callable[[], object],
    ) -> Answered[T]:  # fmt: skip
        """Make a call, some of whose operands begin at no multiple of 16 in one run; return its answers.

        If that is why it fails, later calls get what the operands need; this one is made with all of them aligned,
        unless its outputs were incorrect.

        Args:
            make: makes it; again if it was made before, which takes a run apart from walls.
            correct: which of several answers are correct.
            restart: has the next call made in a new process. Only a fault that depends on the addresses there, whatever
                the number of the call, is one of addresses.

        Raises KernelFault; and what `make` raises.
        """
        least, tried = self._least(call), list[Least]()
        self.called[call.fmt] = least

        def chosen() -> list[Least]:
            tried.extend([least] * bool(least) if call.unaligned else self._chosen(least, call.shape))
            return tried

        answered = None
        try:
            answered = make(chosen, False)
            unlike = None if len(answered[0]) == 1 or not tried else _incorrect(correct(answered[0]))
            if unlike is None:
                return answered
            found = unlike
        except KernelFault as error:
            counted = isinstance(error, KernelFinding) and error.kind == "count"  # with all operands aligned
            if not tried or error.late or isinstance(error, NotRun) or counted:
                raise
            found = error

        def fault(at: Least) -> KernelFault | None:
            try:
                answers, _ = make(lambda: [at] * bool(at), True)
            except KernelFault as error:
                if error.late or isinstance(error, NotRun):
                    raise
                return error
            return None if len(answers) == 1 else _incorrect(correct(answers))

        try:
            restart()
            if (other := fault({}) or fault({})) is not None:  # one at other addresses may have more runs
                if answered is not None:  # the incorrect one among these is judged
                    return answered
                raise other
            at = next((at for at in tried if fault(at) is not None), None)
            needed = () if at is None else needed_of(at, found, fault)
            restart()
            if at is None or fault(at) is None:  # it fails in some calls, wherever its operands lie
                if answered is not None:
                    return answered
                raise found
            aligned = make(tuple, True)
        except (NotRun, EnvironmentFault):
            raise found from None
        self.needed |= {(call.fmt, of.operand): of for of in needed}
        self.called[call.fmt] = self._least(call)
        if not all(stops(of.fault) for of in needed):
            raise incorrect(needed)
        return aligned

    def _least(self, call: Call) -> Least:
        """Return the operands of a call that may begin at no multiple of 16, with their alignments then."""
        needed = {name: self.needed.get((call.fmt, name)) for name in call.types}
        least = {name: n if (of := needed[name]) is None else max(n, of.alignment) for name, n in call.types.items()}
        return {name: n for name, n in least.items() if n < ALIGNMENT}

    def _chosen(self, least: Least, shape: Sequence[int]) -> list[Least]:
        """Return the operands that are unaligned in runs of a call of these sizes [M, N, K]."""
        if not least:
            return []
        names = tuple(least)
        if names not in self._combinations:
            self._combinations[names] = Combinations(len(names))
        of = self._combinations[names]
        chosen = of.every if self.every else [of.next(shape)]
        return [{name: least[name] for name, is_there in zip(names, one, strict=True) if is_there} for one in chosen]


def all_correct(answers: Sequence[object]) -> list[bool]:
    """Where it is not known which answers are correct."""
    return [True] * len(answers)


def _incorrect(correct: Sequence[bool]) -> KernelFault | None:
    """Return the fault of answers of which only some are correct."""
    if all(correct) or not any(correct):
        return None
    return KernelFinding("address", "an output is outside the bound")


def incorrect(needed: Sequence[Needed]) -> KernelFinding:
    """The fault of a kernel with incorrect outputs where operands begin at addresses that they need."""
    names = " and ".join(f"the operand {of.operand} at no multiple of {of.alignment} bytes" for of in needed)
    names += ", only together" if any(of.beside for of in needed) else ""
    declare = " and ".join(of.declaration for of in needed)
    words = (
        f"outputs change with {names} ({needed[0].fault}): handle each address that the type allows, or declare "
        f"{declare}"
    )
    return KernelFinding("unaligned", words)
