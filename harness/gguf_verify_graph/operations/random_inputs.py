"""Random inputs for nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.llama.node import BF16, F16, Array, Operand, span_bytes

Shape = tuple[int, int, int, int]
#: Shapes [ne3, ne2, ne1, ne0]: not divisible into vectors, divisible into some, and rows longer than a thread block.
SIZES: tuple[Shape, ...] = ((1, 1, 1, 1), (1, 1, 3, 7), (2, 3, 5, 33), (1, 2, 4, 256), (1, 1, 2, 1100))
#: Arguments at which a function changes direction, ends, underflows or overflows.
TURNS = (
    0.0, 1e-40, 1e-10, 0.25, 0.5 - 2.0**-25, 0.5, 1.5, 2.5, 3.0, 9.99, 10.0, 10.01, 20.0, 20.01, 60.0, 88.0, 88.5, 89.0,
    104.0, 200.0, 8388609.0, 1e10, 1e30,
)  # fmt: skip


def floats(rng: np.random.Generator, shape: Sequence[int], spread: float = 2.0) -> npt.NDArray[np.float32]:
    """Return float32 numbers of random signs and sizes: Gaussian times powers of two.

    Args:
        spread: standard deviation of the exponent.
    """
    scale = np.exp2(np.round(rng.normal(0, spread, shape)))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


#: Range of the bits of halves of ordinary size, from 2^-11 to 2^-4; and of all positive finite halves.
USUAL_HALVES, ALL_HALVES = (0x1000, 0x2C00), (0, 0x7C00)


def random_blocks(
    rng: np.random.Generator, fmt: BlockFormat, shape: Sequence[int], halves: tuple[int, int] = USUAL_HALVES
) -> Array:
    """Return rows of K values, shape [..., K]: random codes with finite scales of both signs, uint8[..., row bytes].

    Args:
        halves: range of the bits of scales that are halves.
    """
    count = prod(shape) // fmt.block_size
    blocks = rng.integers(0, 256, (count, fmt.block_bytes), dtype=np.uint8)
    structs = fmt.view(blocks)
    for field in fmt.fields:
        if field.dtype == "<f2":
            bits = rng.integers(*halves, structs[field.name].shape) | rng.integers(0, 2, count) << 15
            structs[field.name] = bits.astype("<u2").view("<f2")
    if fmt.make_finite is not None:
        fmt.make_finite(structs, rng)
    return blocks.reshape(*shape[:-1], -1)


def random_values(rng: np.random.Generator, type_id: int, shape: Sequence[int]) -> Operand:
    """Return random numbers of a floating-point type, [..., K]."""
    return typed(floats(rng, shape, 1.0), type_id)


def random_weights(rng: np.random.Generator, fmt: WeightFormat, *shape: int) -> Operand:
    """Return random weights of a format, [..., N, K]."""
    if isinstance(fmt, BlockFormat):
        return Operand.of(random_blocks(rng, fmt, shape), fmt.type_id)
    return random_values(rng, fmt.type_id, shape)


def first_columns(operand: Operand, columns: int) -> Operand:
    """Return a view of the first columns of each row of numbers, like a cache that is not full yet."""
    ne = (columns, *operand.ne[1:])
    return replace(operand, ne=ne, span=operand.span[: span_bytes(operand.type_id, ne, operand.nb)])


def typed(values: Array, type_id: int) -> Operand:
    """Return float32 values as an operand of another type: halves in range, or the upper bits for bfloat16."""
    if type_id == F16:
        return Operand.of(np.clip(values, -65504, 65504).astype(np.float16))
    return Operand.of((values.view(np.uint32) >> 16).astype(np.uint16), BF16) if type_id == BF16 else Operand.of(values)


def turning(rng: np.random.Generator, shape: Shape) -> Array:
    """Return random numbers that include, where there is room, those at which functions change direction."""
    x = floats(rng, shape)
    flat = x.reshape(-1)
    if flat.size > 4 * len(TURNS):
        at = rng.choice(flat.size, 2 * len(TURNS), replace=False)
        flat[at] = np.concatenate([TURNS, np.negative(TURNS)]).astype(np.float32)
    return x
