"""Observation of the comparisons of a kernel in Python, in a process of its own whose code is rewritten (`reporting`).

That process is not trusted, and its outputs are ignored: its comparisons choose what is tried beside the probe plan.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

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
#: Most multiply-adds of a call, bytes of its operands, and seconds that it may be expected to take.
_MOST_WORK, _MOST_BYTES, _MOST_SECONDS = 1 << 30, 1 << 28, 10.0
_WALLS: tuple[Wall, ...] = ("apart",)

_Index = Annotated[int, msgspec.Meta(ge=0, lt=1000)]
_Line = Annotated[int, msgspec.Meta(ge=1, lt=10**7)]
_Key = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Value = Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=1 << 31)]
_Path = Annotated[str, msgspec.Meta(max_length=4096, pattern="^/")]
_Outcomes = Annotated[int, msgspec.Meta(ge=0, lt=8)]
_Times = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
_Record = tuple[_Index, _Line, _Key, float, float, float, float, float, float, _Outcomes, _Times]


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    files: Annotated[list[_Path], msgspec.Meta(max_length=1000)]
    comparisons: Annotated[list[_Record], msgspec.Meta(max_length=4096)]
    numbers: Annotated[list[tuple[_Index, _Line, _Value, _Value]], msgspec.Meta(max_length=1000)]


class Reports:
    """The comparisons that a kernel in Python reports.

    Args:
        conversation: with a process of its rewritten code.
        folder: of its file. Only places in there or below are reported.
    """

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        self._conversation, self._products = conversation, Products(conversation)
        self._folders = tuple(dict.fromkeys((os.path.abspath(folder), str(folder.resolve()))))
        #: Multiply-adds → seconds of the calls so far.
        self._took: dict[int, float] = {}
        #: The numbers in its code outside of the comparisons that it reports.
        self.numbers: tuple[CodeNumber, ...] = ()

    @classmethod
    def in_code(cls, source: Source, time_limit: float, verbose: bool) -> Reports | None:
        """Return those of a kernel, whose further process starts at the first call; None if it does not report any."""
        reporting = source.reporting()
        if reporting is None:
            return None
        return cls(reporting.converse("the kernel", time_limit, verbose), reporting.folder)

    def of(self, product: SparseProduct, operands: CallOperands) -> Compared:
        """Return the comparisons of a call. Raises KernelFault; EnvironmentFault if it would take too long.

        Args:
            operands: builds those of the call.
        """
        fmt, shape = product.fmt, (product.m, product.n, product.k)
        m, n, k = shape
        work, row = m * n * k, k // fmt.block_size * fmt.block_bytes
        if work > _MOST_WORK or n * row + m * product.token_bytes + 4 * m * n > _MOST_BYTES:
            raise EnvironmentFault(f"a call of {work:,} multiply-adds is too large to be observed")
        if (expected := self._expected(work)) > _MOST_SECONDS:
            raise EnvironmentFault(f"a call of {work:,} multiply-adds would take {expected:.0f} s")
        beside = Beside(product.beside(range(m), range(n))) if product.fused else NOTHING
        names = operands.names(fmt, *shape, beside)
        given = operands.of_call(fmt, np.resize(product.x, (m, product.token_bytes)), shape, beside)
        given.append(Given(Operand("reported", "output", "uint8", (_ROOM,))))
        self._products.holds(None, _WALLS)  # starts the process
        weights = operands.weights(fmt, np.resize(product.weights, (n, row)), k)
        begun = time.monotonic()
        # anew for each call, so that the comparisons of `pack` are among those of the call
        self._products.load(object(), _WALLS, [weights], {"format": fmt.name, "n": names["N"], "k": names["K"]})
        (answer, *_), said = self._products.call(given, {"do": "reported", "shape": list(shape)}, Runs(_WALLS))
        self._took[work] = min(time.monotonic() - begun, self._took.get(work, math.inf))
        size = said.get("size")
        if type(size) is not int or size < 0:
            self._conversation.garbage()
        return self._read(answer["reported"][:size].tobytes() if size <= _ROOM else b"{}")

    def _expected(self, work: int) -> float:
        """Return the seconds that a call of so many multiply-adds is expected to take."""
        nearest = max((of for of in self._took if of <= work), default=0)
        if not nearest:
            return 0.0
        least = min(self._took.values())  # what a call takes that computes next to nothing
        return least + (self._took[nearest] - least) * work / nearest

    def _read(self, raw: bytes) -> Compared:
        """Read an answer; nothing is in an invalid one."""
        try:
            said = msgspec.json.decode(raw, type=_Said)
            names = [self._name(path) for path in said.files]
            self.numbers = tuple(
                CodeNumber(f"{names[file]}:{line}", value, max(0, period))
                for file, line, value, period in said.numbers
                if names[file] is not None
            )
            found: Compared = {}
            for file, line, key, *ends, outcomes, times in sorted(said.comparisons):
                if names[file] is not None:
                    a, b, apart = ((min(pair), max(pair)) for pair in zip(ends[::2], ends[1::2], strict=True))
                    found[Comparison(f"{names[file]}:{line}", key)] = Operands(a, b, apart, outcomes, times)
        except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
            return {}
        return found

    def _name(self, path: str) -> str | None:
        """Return the name of a file in the kernel's folder, or None."""
        below = (os.path.relpath(os.path.normpath(path), folder) for folder in self._folders)
        name = next((one for one in below if not one.startswith(os.pardir)), None)
        return None if name is None else printable(name, 200)

    def close(self) -> None:
        """End the process, and free the memory."""
        self._conversation.stop()
        self._products.close()
