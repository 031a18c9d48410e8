"""From a wrong output element to the block that causes it.

The kernel is run again on the same weights with activations that keep one block and are zero elsewhere: one row for
each block of K, as many at a time as the failing call had. So the loop over K, tiles and tails are those of that call,
and the row of the first wrong output names the block. Where every block alone is right, the accumulation over K is what
is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import KernelFault
from ..multiplier import Multiplier, Weights
from ..semantics import judge, product

_MOST_WORK = 1 << 33
_WINDOW = 256
_BLOCKS_AT_ONCE = 256


def first_wrong_block(
    kernel: Multiplier, weights: Weights, rows: npt.NDArray[np.uint8], n: int, x: npt.NDArray[Any], m: int
) -> int | None:
    """The first block of weight row n whose product alone is wrong, or None.

    Args:
        weights: `rows` as the kernel got them.
        rows: uint8[N, row bytes], the file's.
        x: the activation row as the kernel took it: uint8[row bytes], or float32[K] that it quantized on the way.
        m: how many such rows it took at a time.
    """
    fmt, semantics, values = weights.fmt, kernel.definition, x.dtype == np.float32
    nb = -(-weights.k // fmt.unit)
    width = x.size * fmt.unit // weights.k
    low, high = 0, len(rows)
    if nb * len(rows) * weights.k > _MOST_WORK:  # a window of rows keeps most of the geometry
        low = n // _WINDOW * _WINDOW
        high = min(len(rows), low + _WINDOW)
        weights = kernel.upload(fmt, rows[low:high])
    at_once = min(m, _BLOCKS_AT_ONCE)
    for start in range(0, nb, at_once):
        blocks = np.arange(start, min(start + at_once, nb))
        masked = np.zeros((at_once, x.size), x.dtype)
        for row, b in zip(masked, blocks, strict=False):  # past the last block, rows of zeros
            row[b * width : (b + 1) * width] = x[b * width : (b + 1) * width]
        try:
            y = kernel.product(weights, masked) if values else kernel.gemm(weights, masked)
            taken = semantics.bytes_of(masked) if values else masked
            expected = product(semantics, fmt, rows[n : n + 1], taken, ordered=kernel.ordered)
        except KernelFault:
            return None
        bad = judge(np.ascontiguousarray(y[:, n - low : n - low + 1]), expected).bad
        if bad[: len(blocks)].any():
            return int(blocks[np.argmax(bad[: len(blocks), 0])])
    return None
