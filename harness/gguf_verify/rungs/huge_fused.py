"""Fused operands behind products past 2^31: random numbers repeat in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..kernels.launches import Repeated, SparseProduct, prime
from ..semantics.drawn import companions
from ..semantics.epilogue import Epilogue

Floats = npt.NDArray[np.float32]

#: Rows and tokens with random numbers, primes.
_ROWS, _TOKENS = 521, 67


def repeated(of: SparseProduct, epilogue: Epilogue, fmt: BlockFormat, output: str) -> dict[str, Repeated]:
    """The repeating numbers in the fused operands.

    Args:
        output: the type of the product's output.
    """
    rows, tokens = of.rows(range(_ROWS)), of.tokens(range(_TOKENS))
    places, found = {operation.operand: operation.place for operation in epilogue.operations}, {}
    for name, values in epilogue.operands(fmt, rows, tokens, output).items():
        if places[name] is None:
            others = companions(fmt, of.weights.reshape(-1, fmt.block_bytes))
            found[name] = Repeated(None, np.roll(others, 1, axis=0).reshape(-1))
            continue
        numbers = values.reshape(-1)
        found[name] = Repeated(places[name], numbers[: prime(max(2, len(numbers)))])
    return found


def widened(values: npt.NDArray[Any]) -> Floats:
    """Numbers of a type, bfloat16 as its bits, as float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(values, np.float32)
