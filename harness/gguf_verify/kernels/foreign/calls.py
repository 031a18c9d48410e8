"""Operands for the calls of a foreign kernel, built from the weights and activations of a product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.tensor_types import WeightFormat
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


def unit_of(fmt: WeightFormat) -> Unit:
    """Return the elements of a matrix of blocks."""
    return Unit("uint8", fmt.block_size, fmt.block_bytes)


class Operands:
    """Builds the operands of calls.

    Args:
        declared: the kernel's declaration.
        definition: the definition of its product, including fused operations; None for a task.
    """

    def __init__(self, declared: Declaration, definition: Semantics | None) -> None:
        self._declared = declared
        if definition is not None:
            blocks = definition.activations
            self.activations = Unit(declared.given) if blocks is None else unit_of(blocks)

    def names(self, fmt: WeightFormat, m: int, n: int, k: int, beside: Beside = NOTHING) -> dict[str, int]:
        """Return the values of the names in expressions."""
        return names_of(fmt, m, n, k, beside.experts, beside.slots)

    def weights(self, fmt: WeightFormat, rows: Bytes, k: int, experts: int = 1) -> Given:
        """Return the weights uint8[E·N, row bytes], which a process keeps for many products."""
        names = names_of(fmt, 1, len(rows) // experts, k, experts)
        return self.matrix("weights", unit_of(fmt), rows, k, names)

    def of_call(
        self, fmt: WeightFormat, x: Bytes, shape: tuple[int, int, int], beside: Beside = NOTHING
    ) -> list[Given]:
        """Return the operands of a product of loaded weights with activations uint8[M, row bytes].

        Args:
            shape: [M, N, K]; for experts, the output has M·top_k rows, and the activations M or M·top_k.
        """
        m, n, k = shape
        names = self.names(fmt, *shape, beside)
        output = self.output(Unit(self._declared.output), m * beside.slots, n, names, beside.before)
        return [
            self.matrix("activations", self.activations, x, k, names),
            output,
            *beside.given(self._declared.layouts, names),
            *(Given(*own) for own in self.own(names).values()),
        ]

    def lies(self, fmt: WeightFormat, shape: tuple[int, int, int]) -> dict[str, Lies]:
        """Return the memory layout of the matrices of a product [M, N, K]. Raises KernelFault."""
        found = {}
        for name, (operand, unit, values) in self.matrices(fmt, shape).items():
            layout, units = self._declared.layouts.of(name), values // unit.values
            outer, inner = operand.shape[0], operand.shape[1] // unit.count
            step = operand.strides[0] if operand.strides is not None else inner * unit.nbytes
            row, apart = (unit.nbytes, step) if layout.transposed else (step, unit.nbytes)
            filled = (outer if layout.transposed else inner) - units
            found[name] = Lies(row, apart, unit.nbytes, units, operand.nbytes, filled, operand.tail)
        return found

    def matrices(self, fmt: WeightFormat, shape: tuple[int, int, int]) -> dict[str, tuple[Operand, Unit, int]]:
        """Return the matrices of a product [M, N, K]: operand, elements, values of a row. Raises KernelFault."""
        (m, n, k), names = shape, self.names(fmt, *shape)
        sizes: dict[str, tuple[Unit, int, int]] = {
            "weights": (unit_of(fmt), n, k), "activations": (self.activations, m, k),
            "output": (Unit(self._declared.output), m, n),
        }  # fmt: skip
        of = self._declared.layouts.of
        return {
            name: (of(name).operand(name, "input", unit, rows, values, names), unit, values)
            for name, (unit, rows, values) in sizes.items()
        }

    def tail(self, name: str, names: Mapping[str, int]) -> int:
        """Return the readable bytes behind an operand of a fused operation. Raises KernelFault."""
        return tail_of(self._declared.layouts.further.get(name, Further()).tail, names)

    def own(self, names: Mapping[str, int]) -> dict[str, tuple[Operand, Bytes | None]]:
        """Return the scratch memory of a call. Raises KernelFault."""
        return {name: own.operand(name, names) for name, own in self._declared.layouts.own.items()}

    def matrix(self, name: str, unit: Unit, matrix: Bytes, k: int, names: Mapping[str, int]) -> Given:
        """Return an input with k values in a row, from its matrix uint8[rows, row bytes]. Raises KernelFault."""
        layout = self._declared.layouts.of(name)
        operand = layout.operand(name, "input", unit, len(matrix), k, names)
        return Given(operand, layout.content(operand, unit, matrix))

    def output(
        self, unit: Unit, rows: int, values: int, names: Mapping[str, int], before: npt.NDArray[Any] | None = None
    ) -> Given:
        """Return the output, which reads as float32 or bytes. `before` is its content before the call.

        Raises KernelFault.
        """
        layout, content = self._declared.layouts.of("output"), None
        operand = layout.operand("output", "output", unit, rows, values, names)
        if before is not None:
            operand = replace(operand, filled=True)
            content = layout.content(operand, unit, np.ascontiguousarray(before).view(np.uint8))
        return Given(operand, content, lambda made: np.ascontiguousarray(widened(layout.matrix(made), unit.dtype)))
