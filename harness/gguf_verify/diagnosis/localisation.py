"""Localisation of the block of K that causes a wrong output.

The kernel runs again on the same weights and on activations in which the token of the wrong output keeps some of its
blocks and is zero elsewhere. Tiles, tails and the loop over K are then those of the failed call. Bisection over the
number of kept blocks, counted from the first, finds the block with which the sum becomes wrong. A run with only that
block, and one with all blocks but that one, show whether the block or the accumulation is wrong, and whether other
blocks are wrong, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels.interface import Kernel, Weights
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.order import Order
from ..support.errors import KernelFault

_MOST_WORK = 1 << 33
_WINDOW = 256


@dataclass(frozen=True)
class Blame:
    """The cause of a wrong output along K.

    Args:
        first: the number of blocks, counted from the first, with which the sum is still correct, and so the number of
            the block that makes it wrong; None if the output is wrong without any block, or is correct this time.
        alone: whether the product of only that block is wrong, too.
        only: whether the sum of all other blocks is correct.
        again: whether the output is wrong when the kernel runs again.
        blocks: the number of blocks in a row.
    """

    first: int | None
    alone: bool = False
    only: bool = False
    again: bool = True
    blocks: int = 0

    @property
    def block(self) -> int | None:
        """The first wrong block; None if no block on its own is wrong."""
        return self.first if self.alone else None

    @property
    def advice(self) -> str:
        """Advice for a failure without a wrong block."""
        if not self.again:
            return "it is right when the kernel runs again: look for races and uninitialised memory"
        if self.first is None:
            return (
                "it is wrong even where the token's activations are all zero: check where outputs are written, and "
                "which token they are read from"
            )
        return (
            f"no single block is wrong; the sum is wrong from block {self.first} on: look at the accumulation over K, "
            "at tiles and tails"
        )


def along_k(blames: Iterable[Blame]) -> Iterator[str]:
    """Describe how the wrong outputs depend on K: one line for each kind."""
    kinds: dict[str, set[int]] = {}
    for b in blames:
        last = b.first == b.blocks - 1 and b.blocks > 1
        if not b.again:
            kind = "not K: right when the kernel runs again"
        elif b.first is None:
            kind = "not K: wrong even where the token's activations are all zero"
        elif not b.alone:
            kind = "along K: no block alone is wrong; the sum is wrong from block {} on"
        elif not b.only:
            kind = "along K: wrong from block {} on, not only in that block"
        else:
            kind = "along K: only block {} is wrong" + (", the last" if last else f" of {b.blocks}")
        kinds.setdefault(kind, set()).add(-1 if b.first is None else b.first)
    for kind, at in kinds.items():
        yield kind.format(" or ".join(map(str, sorted(at))))


def blame(
    kernel: Kernel,
    weights: Weights,
    rows: npt.NDArray[np.uint8],
    n: int,
    x: npt.NDArray[Any],
    m: int,
    order: Order | None = None,
) -> Blame | None:
    """Find the block of K that makes the output of weight row n and token m wrong; None if that is impossible.

    Args:
        weights: `rows` as the kernel got them.
        rows: uint8[N, row bytes], the file's.
        x: the activations of the call as the kernel took them: uint8[M, row bytes], or float32[M, K] that it quantized
            itself.
        order: the order whose bits are required, too.
    """
    fmt, semantics, values = weights.fmt, kernel.definition, x.dtype == np.float32
    form = semantics.activations
    if form is not None and not values and form.block_size > fmt.unit:
        return None  # a block of activations is multiplied by several of weights
    nb = -(-weights.k // fmt.unit)
    width = x.shape[1] * fmt.unit // weights.k
    whole, low = rows, 0
    if (nb.bit_length() + 4) * len(x) * len(rows) * weights.k > _MOST_WORK:  # a window of rows keeps most of the tiles
        low = n // _WINDOW * _WINDOW
        whole = np.ascontiguousarray(rows[low : low + _WINDOW])

    def wrong(start: int, stop: int, inside: bool = True) -> bool:
        """Return whether the output is wrong with only these blocks, or with all others."""
        at = np.arange(x.shape[1]) // width
        kept = ((at >= start) & (at < stop)) == inside
        masked = x.copy()
        masked[m] = np.where(kept, x[m], 0)
        y = kernel.product(weights, masked) if values else kernel.gemm(weights, masked)
        taken = semantics.bytes_of(masked[m : m + 1]) if values else masked[m : m + 1]
        expected = product(semantics, fmt, rows[n : n + 1], taken, order=order)
        return bool(judge(np.ascontiguousarray(y[m : m + 1, n - low : n - low + 1]), expected).bad.any())

    try:
        if whole is not rows:
            weights = kernel.upload(fmt, whole)
        if not wrong(0, nb):
            return Blame(None, again=False, blocks=nb) if whole is rows else None
        if wrong(0, 0):
            return Blame(None, blocks=nb)
        right, bad = 0, nb
        while bad - right > 1:
            middle = (right + bad) // 2
            right, bad = (right, middle) if wrong(0, middle) else (middle, bad)
        alone = right == 0 or wrong(right, right + 1)
        return Blame(right, alone, alone and not wrong(right, right + 1, False), blocks=nb)
    except KernelFault:
        return None
