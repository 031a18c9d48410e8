"""The operands of a call of a foreign kernel, from a product's weights and activations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...formats import WeightFormat
from ...semantics import Semantics
from .api import HALVES, Declaration
from .expressions import names_of
from .judge import widened
from .layouts import Unit
from .products import Given

Bytes = npt.NDArray[np.uint8]


class Operands:
    """Makes the operands of calls.

    Args:
        declared: what the kernel declares.
        definition: the definition of its product, which says what is fused.
    """

    def __init__(self, declared: Declaration, definition: Semantics) -> None:
        self._declared, self._definition = declared, definition
        blocks = definition.activations
        self.activations = (
            Unit(declared.given) if blocks is None else Unit("uint8", blocks.block_size, blocks.block_bytes)
        )

    def names(self, fmt: WeightFormat, m: int, n: int, k: int) -> dict[str, int]:
        """What names of expressions stand for."""
        more = dict(self._declared.more)
        return names_of(fmt, m, n, k, int(more.get("experts", 1)), int(more.get("top_k", 1)))

    def weights(self, fmt: WeightFormat, rows: Bytes, k: int) -> Given:
        """The weights uint8[N, row bytes], of which a process takes many products."""
        unit = Unit("uint8", fmt.block_size, fmt.block_bytes)
        return self._matrix("weights", unit, rows, k, self.names(fmt, 1, len(rows), k))

    def of_call(self, fmt: WeightFormat, x: Bytes, n: int, k: int) -> list[Given]:
        """What a product of loaded weights with activations uint8[M, row bytes] needs beside them."""
        m = len(x)
        names = self.names(fmt, m, n, k)
        given = [self._matrix("activations", self.activations, x, k, names), self._output(m, n, names)]
        for name, own in self._declared.layouts.own.items():
            given.append(Given(*own.operand(name, names)))
        return given

    def _matrix(self, name: str, unit: Unit, matrix: Bytes, k: int, names: Mapping[str, int]) -> Given:
        layout = self._declared.layouts.of(name)
        operand = layout.operand(name, "input", unit, len(matrix), k, names)
        return Given(operand, layout.content(operand, unit, matrix))

    def _output(self, m: int, n: int, names: Mapping[str, int]) -> Given:
        layout, dtype = self._declared.layouts.of("output"), self._declared.output
        operand = layout.operand("output", "output", Unit(dtype), m, n, names)
        return Given(operand, read=lambda made: widened(layout.matrix(made), dtype))


def sparse_fault(declared: Declaration) -> str | None:
    """Why single thread blocks of products past memory cannot be run of such a kernel, in words, or None."""
    if not declared.layouts.plain:
        return "its operands lie in layouts of their own"
    if declared.output != HALVES[0]:
        return f"its outputs are {declared.output}"
    if declared.epilogue or declared.computes != "gemm":
        return "it has further operands"
    return None


__all__ = ["Operands", "sparse_fault"]
