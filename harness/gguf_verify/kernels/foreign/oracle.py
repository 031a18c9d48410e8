"""The oracle of a kernel's author, in a separate process. It is not trusted to return the same values twice."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...semantics.definition import Semantics
from ...semantics.values import exact_weights
from ...support.errors import KernelFault, OracleFault, UsageError
from .api import strings
from .conversation import Budget
from .operands import MemoryFile, Operand, laid_out
from .sources import Source

Doubles = npt.NDArray[np.float64]


class ForeignOracle:
    """The oracle of a kernel's author, in a separate process: a `semantics.Oracle`.

    Args:
        takes: the definition whose activations the kernel takes.
    """

    def __init__(self, source: Source, takes: Semantics, time_limit: float, verbose: bool) -> None:
        self._takes = takes
        self._conversation = source.converse("the kernel's oracle", time_limit, verbose, OracleFault, oracle=True)
        self._last: dict[str, tuple[bytes, Doubles]] = {}
        try:
            #: The names of the functions that it supplies.
            self.gives = strings(self._conversation.begin().get("gives"), "the names of its functions")
        except KernelFault as error:
            raise UsageError(f"kernel {source.name}: {error}") from None
        except BaseException:
            self._conversation.stop()
            raise

    def weights(self, fmt: BlockFormat, rows: npt.NDArray[np.uint8]) -> Doubles:
        """Return float64[n, L]. Raises KernelFault."""
        k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        if "weights" not in self.gives:
            return exact_weights(fmt, rows.reshape(len(rows), -1, fmt.block_bytes)).reshape(len(rows), k)
        return self._asked({"what": "weights", "format": fmt.name}, rows, "uint8", rows.shape, k)

    def activations(self, x: npt.NDArray[np.uint8]) -> Doubles:
        """Return float64[M, L]. Raises KernelFault."""
        fmt = self._takes.activations
        if "activations" not in self.gives:
            if fmt is None:
                return self._takes.values_of(x).astype(np.float64)
            return exact_weights(fmt, x.reshape(len(x), -1, fmt.block_bytes)).reshape(len(x), -1)
        if fmt is None:
            values = self._takes.values_of(x)
            return self._asked({"what": "activations"}, values.view(np.uint8), "float32", values.shape, values.shape[1])
        k = x.shape[1] // fmt.block_bytes * fmt.block_size
        return self._asked({"what": "activations"}, x, "uint8", x.shape, k)

    def _asked(
        self, question: dict[str, Any], given: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...], k: int
    ) -> Doubles:
        """Call a function twice and compare.

        Its last answer is cached, since products of one matrix follow each other.
        """
        what = question["what"]
        given = np.ascontiguousarray(given)
        key = hashlib.sha256(f"{question}{dtype}{shape}".encode() + given.tobytes()).digest()
        if what in self._last and self._last[what][0] == key:
            return self._last[what][1]
        self._conversation.ready()
        wanted = (Operand("given", "input", dtype, shape), Operand("values", "output", "float64", (len(given), 2 * k)))
        _, size = laid_out(wanted, 0)
        file = MemoryFile(2 * size)  # fresh memory for each call
        budget = self._conversation.budget()
        try:
            first, out = (
                self._once(question, given, laid_out(wanted, file.number, start=at)[0], file, k, budget)
                for at in (0, size)
            )
        finally:
            self._conversation.forget(file)
            file.close()
        if first.shape != out.shape or not np.array_equal(first.view(np.uint64), out.view(np.uint64)):
            self._conversation.stop()
            raise OracleFault(
                f"the kernel's oracle is not deterministic: a second call of its {what} returned other values"
            )
        self._last[what] = key, out
        return out

    def _once(
        self,
        question: dict[str, Any],
        given: npt.NDArray[np.uint8],
        operands: tuple[Operand, ...],
        file: MemoryFile,
        k: int,
        budget: Budget,
    ) -> Doubles:
        """Call a function once; return a copy of its values, float64[n, L]."""
        copy, values = operands
        copy.bytes_in(file.bytes)[:] = given.reshape(-1)
        asked = {"do": "run", **question, "k": k, "operands": [operand.plain() for operand in operands]}
        columns = self._conversation.ask(asked, [file], budget).get("columns")
        if type(columns) is not int or not k <= columns <= 2 * k:
            self._conversation.garbage()
        out: Doubles = values.array_in(file.bytes).reshape(-1)[: len(given) * columns].copy()
        if not np.isfinite(out).all():
            self._conversation.garbage()
        return out.reshape(len(given), columns)

    def close(self) -> None:
        """End the process."""
        self._conversation.stop()
