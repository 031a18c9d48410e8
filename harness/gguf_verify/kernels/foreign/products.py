"""Products that a foreign process makes in memory of this one, which judges what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.errors import KernelFault
from ..interface import Weights
from .conversation import Budget, Conversation
from .judge import same_bits, taken, unchanged
from .operands import MemoryFile, Operand, Wall, laid_out

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: A memory file is used again for a call that needs at least this part of it, or where it is small.
_PART, _SMALL = 4, 1 << 24


class Products:
    """What one process holds and makes, for a kernel under any schedule."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        #: The weights that the process holds, where they lie, and the caller's copy of their bytes.
        self._weights: tuple[Weights, Wall, Operand, MemoryFile, Bytes] | None = None
        self._room: MemoryFile | None = None

    def holds(self, weights: Weights, wall: Wall) -> bool:
        """Whether the process, which is started where there is none, holds these weights. Raises KernelFault."""
        same = self._conversation.ready()
        return same and self._weights is not None and self._weights[0] is weights and self._weights[1] == wall

    def load(self, weights: Weights, wall: Wall, rows: Bytes, shape: Sequence[int]) -> None:
        """Have the process take weights.

        Args:
            rows: uint8[N, row bytes], as it gets them. They stay as they are.
            shape: [N, K].

        Raises KernelFault.
        """
        if self._weights is not None:
            held, self._weights = self._weights[3], None
            self._conversation.forget(held)
            held.close()
        wanted = Operand("weights", "input", "uint8", rows.shape)
        _, size = laid_out([wanted], 0, wall)
        file = MemoryFile(size)
        (operand,), _ = laid_out([wanted], file.number, wall)
        operand.array_in(file.bytes)[...] = rows
        question = {"do": "load", "format": weights.fmt.name, "n": shape[0], "k": shape[1]}
        self._conversation.ask({**question, "operands": [operand.plain()]}, [file])
        self._weights = weights, wall, operand, file, rows

    def product(
        self, x: Bytes, dtype: str, shape: tuple[int, int, int], more: dict[str, Any], scheduled: bool, repeats: bool
    ) -> tuple[Floats, dict[str, Any]]:  # fmt: skip
        """float32[M, N] of the weights that were loaded, and what the process said. It is made twice, each time from
        fresh memory, unless it is `scheduled`.

        Args:
            x: uint8[M, row bytes] of the activations.
            dtype: as which the kernel gets them.
            shape: [M, N, K].
            more: of the question.
            repeats: whether both times must give the same bits.

        Raises KernelFault; if `scheduled`, EnvironmentFault.
        """
        budget = self._conversation.budget()
        try:
            y, said = self._once(x, dtype, shape, more, scheduled, 0, budget)
            if not scheduled:
                first = y
                y, said = self._once(x, dtype, shape, more, scheduled, 1, budget)
                if repeats:
                    same_bits(first, y)
            return y, said
        except KernelFault:
            self._conversation.stop()  # what one call broke must not reach the next
            raise

    def _once(
        self, x: Bytes, dtype: str, shape: tuple[int, int, int], more: dict[str, Any], scheduled: bool, turn: int,
        budget: Budget,
    ) -> tuple[Floats, dict[str, Any]]:  # fmt: skip
        assert self._weights is not None
        _, wall, weights, held, rows = self._weights
        m, n, _ = shape
        columns = x.shape[1] // np.dtype(dtype).itemsize
        wanted = (Operand("activations", "input", dtype, (m, columns)), Operand("output", "output", "float32", (m, n)))
        _, size = laid_out(wanted, 0)
        file = self._file(size if scheduled else 2 * size)
        (given, output), _ = laid_out(wanted, file.number, wall, turn * size)
        given.bytes_in(file.bytes)[:] = x.reshape(-1)
        output.poison_in(file.bytes)
        operands = (weights, given, output) if scheduled else (given, output)
        question = {"do": "run", "shape": shape, **more, "operands": [operand.plain() for operand in operands]}
        said = self._conversation.ask(question, [held, file], budget, may_lack=scheduled)
        y = taken(output, file.bytes)
        unchanged("activations", given.bytes_in(file.bytes), x.reshape(-1))
        unchanged("weights", weights.bytes_in(held.bytes), rows.reshape(-1))
        return y, said

    def _file(self, size: int) -> MemoryFile:
        """Room for the operands of a call, beside the weights."""
        room = self._room
        if room is None or room.nbytes < size or room.nbytes > max(_SMALL, _PART * size):
            if room is not None:
                self._conversation.forget(room)
                room.close()
            self._room = MemoryFile(size)
        assert self._room is not None
        return self._room

    def close(self) -> None:
        """Free the memory."""
        if self._weights is not None:
            self._weights[3].close()
        if self._room is not None:
            self._room.close()
        self._weights = self._room = None


__all__ = ["Products"]
