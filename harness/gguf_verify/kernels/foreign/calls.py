"""Operands for the calls of a foreign kernel, built from the weights and activations of a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats import WeightFormat
from ...semantics.definition import Semantics
from ..launches import Lies
from .beside import NOTHING, Beside
from .declaration import Declaration
from .expressions import names_of
from .judge import widened
from .layouts import Further, Unit, tail_of
from .operands import Operand
from .products import Given

Bytes = npt.NDArray[np.uint8]


class Operands:
    """Builds the operands of calls.

    Args:
        declared: the kernel's declaration.
        definition: the definition of its product, including fused operations.
    """

    def __init__(self, declared: Declaration, definition: Semantics) -> None:
        self._declared, self._definition = declared, definition
        blocks = definition.activations
        self.activations = (
            Unit(declared.given) if blocks is None else Unit("uint8", blocks.block_size, blocks.block_bytes)
        )

    def names(self, fmt: WeightFormat, m: int, n: int, k: int, beside: Beside = NOTHING) -> dict[str, int]:
        """Return the values of the names in expressions."""
        return names_of(fmt, m, n, k, beside.experts, beside.slots)

    def weights(self, fmt: WeightFormat, rows: Bytes, k: int, experts: int = 1) -> Given:
        """Return the weights uint8[E·N, row bytes], which a process keeps for many products."""
        unit = Unit("uint8", fmt.block_size, fmt.block_bytes)
        names = names_of(fmt, 1, len(rows) // experts, k, experts)
        return self._matrix("weights", unit, rows, k, names)

    def of_call(
        self, fmt: WeightFormat, x: Bytes, shape: tuple[int, int, int], beside: Beside = NOTHING
    ) -> list[Given]:
        """Return the operands of a product of loaded weights with activations uint8[M, row bytes].

        Args:
            shape: [M, N, K]; for experts, the output has M·top_k rows, and the activations M or M·top_k.
        """
        m, n, k = shape
        names = self.names(fmt, *shape, beside)
        given = [self._matrix("activations", self.activations, x, k, names)]
        given += [self._output(m * beside.slots, n, names, beside), *beside.given(self._declared.layouts, names)]
        return [*given, *(Given(*own) for own in self.own(names).values())]

    def lies(self, fmt: WeightFormat, shape: tuple[int, int, int]) -> dict[str, Lies]:
        """Return the memory layout of the matrices of a product [M, N, K]. Raises KernelFault."""
        (m, n, k), names = shape, self.names(fmt, *shape)
        weights = Unit("uint8", fmt.block_size, fmt.block_bytes)
        sizes: dict[str, tuple[Unit, int, int]] = {
            "weights": (weights, n, k), "activations": (self.activations, m, k),
            "output": (Unit(self._declared.output), m, n),
        }  # fmt: skip
        found = {}
        for name, (unit, rows, values) in sizes.items():
            layout = self._declared.layouts.of(name)
            operand = layout.operand(name, "input", unit, rows, values, names)
            found[name] = lies_of(operand, unit, layout.transposed, values // unit.values)
        return found

    def tail(self, name: str, names: Mapping[str, int]) -> int:
        """Return the readable bytes behind an operand of a fused operation. Raises KernelFault."""
        return tail_of(self._declared.layouts.further.get(name, Further()).tail, names)

    def own(self, names: Mapping[str, int]) -> dict[str, tuple[Operand, Bytes | None]]:
        """Return the scratch memory of a call. Raises KernelFault."""
        return {name: own.operand(name, names) for name, own in self._declared.layouts.own.items()}

    def _matrix(self, name: str, unit: Unit, matrix: Bytes, k: int, names: Mapping[str, int]) -> Given:
        layout = self._declared.layouts.of(name)
        operand = layout.operand(name, "input", unit, len(matrix), k, names)
        return Given(operand, layout.content(operand, unit, matrix))

    def _output(self, m: int, n: int, names: Mapping[str, int], beside: Beside) -> Given:
        layout, dtype = self._declared.layouts.of("output"), self._declared.output
        operand, before = layout.operand("output", "output", Unit(dtype), m, n, names), None
        if beside.before is not None:
            operand = replace(operand, filled=True)
            matrix = np.ascontiguousarray(beside.before).view(np.uint8)
            before = layout.content(operand, Unit(dtype), matrix)
        return Given(operand, before, lambda made: widened(layout.matrix(made), dtype))


def sparse_fault(declared: Declaration, names: Mapping[str, int]) -> str | None:
    """Return why single thread blocks of a product too large for memory cannot be run, in words, or None."""
    return "the experts of its tokens are lists of any length" if declared.computes != "gemm" else None


def lies_of(operand: Operand, unit: Unit, transposed: bool, units: int) -> Lies:
    """Return the memory layout of a matrix operand whose rows have `units` units before padding."""
    outer, inner = operand.shape[0], operand.shape[1] // unit.count
    step = operand.strides[0] if operand.strides is not None else inner * unit.nbytes
    row, apart = (unit.nbytes, step) if transposed else (step, unit.nbytes)
    filled = (outer if transposed else inner) - units
    return Lies(row, apart, unit.nbytes, units, operand.nbytes, filled, operand.tail)
