"""Observation of the comparisons of a kernel in Python, in a process of its own whose code is rewritten (`reporting`).

That process is not trusted, and its outputs are ignored: its comparisons choose what is tried beside the probe plan.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np

from ...results.coverage import Noted, Outcomes
from ...support.errors import EnvironmentFault
from ...support.text import printable
from ..comparisons import CodeNumber, Compared, Comparison, Operands
from ..launches import SparseProduct
from .beside import NOTHING, Beside
from .conversation import Conversation
from .operands import Operand, Wall
from .products import Given, Products, Runs
from .sources import Source

if TYPE_CHECKING:
    from .calls import Operands as CallOperands

#: Bytes of an answer.
_ROOM = 1 << 19
#: The largest cost of a call, in multiply-adds, and bytes of its operands. The cost does not depend on the load of the
#: machine: that of the multiply-adds themselves, of each pass of a loop in the Python code, and of the call. (1 ns, as
#: much as NumPy's take, 0.5 µs and 1 ms.)
_MOST_COST, _MOST_BYTES = 1 << 30, 1 << 28
_OF_A_PASS, _OF_A_CALL = 1 << 9, 1 << 20
_WALLS: tuple[Wall, ...] = ("apart",)

_Index = Annotated[int, msgspec.Meta(ge=0, lt=1000)]
_Line = Annotated[int, msgspec.Meta(ge=1, lt=10**7)]
_Key = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Value = Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=1 << 31)]
_Path = Annotated[str, msgspec.Meta(max_length=4096, pattern="^/")]
_Outcomes = Annotated[int, msgspec.Meta(ge=0, lt=8)]
_Times = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
_Record = tuple[_Index, _Line, _Key, float, float, float, float, float, float, _Outcomes, _Times]


_Outcome = tuple[_Index, _Line, _Key, Literal["==", "<", "<="], _Outcomes, _Key]


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    files: Annotated[list[_Path], msgspec.Meta(max_length=1000)]
    comparisons: Annotated[list[_Record], msgspec.Meta(max_length=4096)]
    passes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    numbers: Annotated[list[tuple[_Index, _Line, _Value, _Value]], msgspec.Meta(max_length=1000)]
    outcomes: Annotated[list[_Outcome], msgspec.Meta(max_length=4096)]


class Reports:
    """The comparisons that a kernel in Python reports.

    Args:
        conversation: with a process of its rewritten code.
        folder: of its file. Only places in there or below are reported.
    """

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        self._conversation, self._products = conversation, Products(conversation)
        self._folders = tuple(dict.fromkeys((os.path.abspath(folder), str(folder.resolve()))))
        #: Multiply-adds → passes of loops in the calls so far.
        self._passes: dict[int, int] = {}
        #: The cost of the last call.
        self.cost = 0
        #: The numbers in its code outside of the comparisons that it reports.
        self.numbers: tuple[CodeNumber, ...] = ()
        #: The outcomes of its comparisons that are no branches.
        self.noted = Noted()

    @classmethod
    def in_code(cls, source: Source, time_limit: float, verbose: bool) -> Reports | None:
        """Return those of a kernel, whose further process starts at the first call; None if it does not report any."""
        reporting = source.reporting()
        if reporting is None:
            return None
        return cls(reporting.converse("the kernel", time_limit, verbose), reporting.folder)

    def of(self, product: SparseProduct, operands: CallOperands) -> Compared:
        """Return the comparisons of a call. Raises KernelFault; EnvironmentFault if it would cost too much.

        Args:
            operands: builds those of the call.
        """
        fmt, shape = product.fmt, (product.m, product.n, product.k)
        m, n, k = shape
        work, row = m * n * k, k // fmt.block_size * fmt.block_bytes
        self.cost = 0
        if work > _MOST_COST or n * row + m * product.token_bytes + 4 * m * n > _MOST_BYTES:
            raise EnvironmentFault(f"a call of {work:,} multiply-adds is too large to be observed")
        if self._cost(work, self._expected(work)) > _MOST_COST:
            raise EnvironmentFault(f"a call of {work:,} multiply-adds has too many passes of loops to be observed")
        beside = Beside(product.beside(range(m), range(n))) if product.fused else NOTHING
        names = operands.names(fmt, *shape, beside)
        given = operands.of_call(fmt, np.resize(product.x, (m, product.token_bytes)), shape, beside)
        given.append(Given(Operand("reported", "output", "uint8", (_ROOM,))))
        self._products.holds(None, _WALLS)  # starts the process
        weights = operands.weights(fmt, np.resize(product.weights, (n, row)), k)
        self.cost = self._cost(work, 0)
        # anew for each call, so that the comparisons of `pack` are among those of the call
        self._products.load(object(), _WALLS, [weights], {"format": fmt.name, "n": names["N"], "k": names["K"]})
        (answer, *_), said = self._products.call(given, {"do": "reported", "shape": list(shape)}, Runs(_WALLS))
        size = said.get("size")
        if type(size) is not int or size < 0:
            self._conversation.garbage()
        found, passes = self._read(fmt.name, answer["reported"][:size].tobytes() if size <= _ROOM else b"{}")
        self._passes[work] = min(passes, self._passes.get(work, passes))
        self.cost = self._cost(work, passes)
        return found

    def _cost(self, work: int, passes: int) -> int:
        """Return the cost of a call, in multiply-adds."""
        return work + _OF_A_PASS * passes + _OF_A_CALL

    def _expected(self, work: int) -> int:
        """Return the passes of loops that a call of so many multiply-adds is expected to make."""
        nearest = max((of for of in self._passes if of <= work), default=0)
        if not nearest:
            return 0
        least = min(self._passes.values())  # those of a call that computes next to nothing
        return least + (self._passes[nearest] - least) * work // nearest

    def _read(self, fmt: str, raw: bytes) -> tuple[Compared, int]:
        """Read an answer: the comparisons, and the passes of loops; nothing is in an invalid one."""
        try:
            said = msgspec.json.decode(raw, type=_Said)
            names = [self._name(path) for path in said.files]
            self.numbers = tuple(
                CodeNumber(f"{names[file]}:{line}", value, max(0, period))
                for file, line, value, period in said.numbers
                if names[file] is not None
            )
            for file, line, key, operator, seen, operands in said.outcomes:
                if names[file] is not None:
                    self.noted.note(fmt, said.files[file], (line, key), Outcomes(operator, seen, False), operands)
            found: Compared = {}
            for file, line, key, *ends, outcomes, times in sorted(said.comparisons):
                if names[file] is not None:
                    a, b, apart = ((min(pair), max(pair)) for pair in zip(ends[::2], ends[1::2], strict=True))
                    found[Comparison(f"{names[file]}:{line}", key)] = Operands(a, b, apart, outcomes, times)
        except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
            return {}, 0
        return found, said.passes

    def _name(self, path: str) -> str | None:
        """Return the name of a file in the kernel's folder, or None."""
        below = (os.path.relpath(os.path.normpath(path), folder) for folder in self._folders)
        name = next((one for one in below if not one.startswith(os.pardir)), None)
        return None if name is None else printable(name, 200)

    def close(self) -> None:
        """End the process, and free the memory."""
        self._conversation.stop()
        self._products.close()
