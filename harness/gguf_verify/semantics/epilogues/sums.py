"""Operands that are added: a bias for each row of weights, a residual for each output."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..sums import Product
from .operation import Fused, Operation, added


def _plus(p: Product, operand: npt.NDArray[Any], fused: Fused) -> Product:
    return added(p, operand, fused)


BIAS = Operation(
    name="bias",
    title="y[m, n] + bias[n]",
    operand="bias",
    place="row",
    neutral=0.0,
    apply=_plus,
)
RESIDUAL = Operation(
    name="residual",
    title="y[m, n] + residual[m, n]",
    operand="residual",
    place="output",
    as_output=True,
    neutral=0.0,
    apply=_plus,
)
#: Accumulation into the output: its operand is the content of the output before the call. It is always the last
#: operation.
ACCUMULATE = Operation(
    name="accumulate",
    title="output[m, n] + y[m, n]",
    operand="output",
    place="output",
    as_output=True,
    neutral=0.0,
    apply=_plus,
)
