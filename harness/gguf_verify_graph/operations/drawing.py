"""Random inputs for nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import BlockFormat, WeightFormat
from gguf_verify.llama.node import BF16, NUMBERS, Array, Operand, span_bytes

Shape = tuple[int, int, int, int]
#: Shapes [ne3, ne2, ne1, ne0]: not divisible into vectors, divisible into some, and rows longer than a thread block.
SIZES: tuple[Shape, ...] = ((1, 1, 1, 1), (1, 1, 3, 7), (2, 3, 5, 33), (1, 2, 4, 256), (1, 1, 2, 1100))


def floats(rng: np.random.Generator, shape: Sequence[int], spread: float = 2.0) -> npt.NDArray[np.float32]:
    """Return float32 numbers of random signs and sizes: Gaussian times powers of two.

    Args:
        spread: standard deviation of the exponent.
    """
    scale = np.exp2(np.round(rng.normal(0, spread, shape)))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


#: Range of the bits of halves of ordinary size, from 2^-11 to 2^-4.
_LEAST, _MOST = 0x1000, 0x2C00


def drawn_blocks(rng: np.random.Generator, fmt: BlockFormat, shape: Sequence[int]) -> Array:
    """Return rows of K values, shape [..., K]: random codes with finite scales of both signs, uint8[..., row bytes]."""
    count = prod(shape) // fmt.block_size
    blocks = rng.integers(0, 256, (count, fmt.block_bytes), dtype=np.uint8)
    structs = fmt.view(blocks)
    for field in fmt.fields:
        if field.dtype == "<f2":
            bits = rng.integers(_LEAST, _MOST, structs[field.name].shape) | rng.integers(0, 2, count) << 15
            structs[field.name] = bits.astype("<u2").view("<f2")
    if fmt.make_finite is not None:
        fmt.make_finite(structs, rng)
    return blocks.reshape(*shape[:-1], -1)


def drawn_values(rng: np.random.Generator, type_id: int, shape: Sequence[int]) -> Operand:
    """Return random numbers of a floating-point type, [..., K]."""
    values = floats(rng, shape, 1.0)
    if type_id == BF16:
        return Operand.of((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16), BF16)
    return Operand.of(values.astype(NUMBERS[type_id]))


def drawn_weights(rng: np.random.Generator, fmt: WeightFormat, *shape: int) -> Operand:
    """Return random weights of a format, [..., N, K]."""
    if isinstance(fmt, BlockFormat):
        return Operand.of(drawn_blocks(rng, fmt, shape), fmt.type_id)
    return drawn_values(rng, fmt.type_id, shape)


def first_columns(operand: Operand, columns: int) -> Operand:
    """Return a view of the first columns of each row of numbers, like a cache that is not full yet."""
    ne = (columns, *operand.ne[1:])
    return replace(operand, ne=ne, span=operand.span[: span_bytes(operand.type_id, ne, operand.nb)])
