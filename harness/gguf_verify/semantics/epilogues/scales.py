"""Factors: one for all outputs, one for each row of weights, one for each token."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..sums import Product
from .operation import Fused, Operation, multiplied


def _times(p: Product, operand: npt.NDArray[Any], fused: Fused) -> Product:
    return multiplied(p, operand, fused)


def _times_token(p: Product, operand: npt.NDArray[Any], fused: Fused) -> Product:
    return multiplied(p, operand[:, None], fused)


SCALE = Operation(
    name="scale",
    title="scale · y[m, n]",
    operand="scale",
    place="one",
    neutral=1.0,
    factor=True,
    apply=_times,
)
ROW_SCALE = Operation(
    name="row_scale",
    title="row_scale[n] · y[m, n]",
    operand="row_scale",
    place="row",
    neutral=1.0,
    factor=True,
    apply=_times,
)
TOKEN_SCALE = Operation(
    name="token_scale",
    title="token_scale[m] · y[m, n]",
    operand="token_scale",
    place="token",
    neutral=1.0,
    factor=True,
    apply=_times_token,
)
