"""Checks of operands. Without them, a row that is no whole number of blocks would silently run into the next one."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..formats.block import QK, BlockFormat
from ..formats.tensor_types import WeightFormat
from ..support.errors import UsageError
from .interface import Weights


def whole_blocks(x: npt.NDArray[Any], blocks: BlockFormat | None) -> None:
    """Check that activations float32[M, K] can be quantized to a type; None: they are not quantized.

    Raises UsageError.
    """
    _two_dimensions("activations", x)
    if blocks is not None and x.shape[1] % QK:  # longer blocks are padded
        raise UsageError(f"a row of {x.shape[1]} activations is not a whole number of blocks of {QK}")


def whole_rows(rows: npt.NDArray[Any], fmt: WeightFormat) -> None:
    """Check that weights uint8[N, row bytes] are rows of a type. Raises UsageError."""
    _two_dimensions("weights", rows)
    if rows.shape[1] % fmt.block_bytes:
        unit = f"blocks of {fmt.block_bytes} bytes" if isinstance(fmt, BlockFormat) else f"{fmt.block_bytes} bytes"
        raise UsageError(f"a row of {rows.shape[1]} bytes is not a whole number of {fmt.name} {unit}")


def fitting(
    x: npt.NDArray[Any], weights: Weights, blocks: BlockFormat | None, quantized: bool, value_bytes: int = 4
) -> None:
    """Check that activations have as many columns as the weights. Raises UsageError.

    Args:
        blocks: the block type of the kernel's activations; None: values.
        quantized: x is uint8[M, row bytes] in the kernel's encoding; otherwise float32[M, K].
        value_bytes: bytes of a value.
    """
    _two_dimensions("activations", x)
    k = weights.k
    if not quantized:
        whole_blocks(x, blocks)
    elif blocks is not None and k % blocks.block_size:
        raise UsageError(f"a row of {k} activations is not a whole number of blocks of {blocks.block_size}")
    expected = k if not quantized else value_bytes * k if blocks is None else blocks.row_bytes(k)
    if x.shape[1] != expected:
        unit = "bytes of activations" if quantized else "activations"
        raise UsageError(f"{x.shape[1]} {unit} a token, but weights of {k} columns take {expected}")


def _two_dimensions(what: str, array: npt.NDArray[Any]) -> None:
    if array.ndim != 2:
        raise UsageError(f"{what} must have two dimensions, not {array.ndim}")
