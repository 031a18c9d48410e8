"""Single thread blocks of calls of any size, run by a foreign process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...hosts.base import MOST_ALONE, Written
from ...support.errors import NotRun, NotTried
from ..launches import SparseCall
from .conversation import Conversation
from .operands import MemoryFile, Operand, laid_out


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
        self._drop()
        contents = call.contents
        wanted = [Operand(what, "input", "uint8", content.shape) for what, content in contents.items()]
        wanted += [Operand(name, "output", dtype, (MOST_ALONE // call.unit,))
                   for name, dtype in (("at", "int64"), ("words", f"uint{8 * call.unit}"))]  # fmt: skip
        _, size = laid_out(wanted, 0)
        file = self._file = MemoryFile(size)
        self._operands, _ = laid_out(wanted, file.number)
        for operand in self._operands[: len(contents)]:
            operand.array_in(file.bytes)[...] = contents[operand.name]
        self._of = of
        return file

    def alone(self, call: SparseCall, launches: Sequence[dict[str, Any]]) -> Written:
        """Run the thread blocks "numbers" of each launch, and return the writes of the last launch.

        Raises KernelFault, EnvironmentFault.
        """
        try:
            self._conversation.ready()
        except NotRun as error:
            raise NotTried(str(error)) from None
        file = self._place(call)
        asked = {"do": "alone", "launches": launches, "sizes": call.sizes, "scratch": sorted(call.scratch),
                 "zeros": dict(call.zeros), "unit": call.unit,
                 "operands": [operand.plain() for operand in self._operands]}  # fmt: skip
        n = self._conversation.ask(asked, [file], may_lack=True).get("written")
        if type(n) is not int or not 0 <= n <= MOST_ALONE // call.unit:
            self._conversation.garbage()
        at, words = (operand.array_in(file.bytes)[:n].copy() for operand in self._operands[-2:])
        written = Written(at, words)
        most = call.sizes["output"] // call.unit
        if (np.diff(written.at) <= 0).any() or (n and not 0 <= written.at[0] <= written.at[-1] < most):
            self._conversation.garbage()
        return written

    def _drop(self) -> None:
        if self._file is not None:
            self._conversation.forget(self._file)
            self._file.close()
        self._file = self._of = None

    def close(self) -> None:
        """Free the memory."""
        self._drop()
