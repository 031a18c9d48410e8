"""Random weights of any type for benchmarks: random codes with scales of the usual size, generated fast."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import BlockFormat
from gguf_verify.support.errors import UsageError

Bytes = npt.NDArray[np.uint8]

#: The largest value of a block lies between these, so that products of halves are finite too.
SMALLEST, LARGEST = 2.0**-6, 2.0**6
#: Number of different blocks in a matrix, which repeats them in random order.
DISTINCT = 1024
_CANDIDATES, _TRIES, _SCALE = 8192, 32, 0.01


def blocks_of(fmt: BlockFormat, rng: np.random.Generator, count: int = DISTINCT) -> Bytes:
    """uint8[count, block bytes]: random bytes, each field of type half Gaussian, of which blocks are kept whose values
    are finite and of the usual size.

    A type whose scales are not halves needs no special case: random blocks are generated until enough are suitable.
    Raises UsageError if hardly any are.
    """
    found: list[Bytes] = []
    missing = count
    for _ in range(_TRIES):
        blocks = rng.integers(0, 256, (_CANDIDATES, fmt.block_bytes), np.uint8)
        structs = fmt.view(blocks)
        for field in fmt.fields:
            if field.dtype == "<f2":
                structs[field.name] = rng.normal(0, _SCALE, structs[field.name].shape)
        if fmt.make_finite is not None:
            fmt.make_finite(structs, rng)
        blocks = blocks[fmt.finite(blocks)]
        with np.errstate(over="ignore", invalid="ignore"):
            most = np.abs(fmt.decode(blocks)).max(axis=-1)
        kept = blocks[(most >= SMALLEST) & (most <= LARGEST)][:missing]
        found.append(kept)
        missing -= len(kept)
        if not missing:
            return np.concatenate(found)
    fit = f"{count - missing} of {_TRIES * _CANDIDATES} random blocks of {fmt.name}"
    raise UsageError(f"{fit} have values of the usual size")


def random_rows(fmt: BlockFormat, n: int, k: int, seed: int) -> Bytes:
    """uint8[n, row bytes] of such blocks in random order. Raises UsageError as `blocks_of`; ValueError where k is no
    whole number of blocks."""
    fmt.row_bytes(k)
    rng = np.random.default_rng((seed, fmt.type_id))
    blocks = blocks_of(fmt, rng)
    order = rng.integers(0, len(blocks), n * (k // fmt.block_size), np.uint16)
    return np.asarray(blocks[order].reshape(n, -1))
