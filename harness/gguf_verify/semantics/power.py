"""The power of a bound: could it have failed?

A bound is a check only where outputs exist that it refuses. Long sums in half have bounds as large as the sums: zeros
are within them. An output o is *weak* where 0.9·o would pass, that is where the tolerance T of both gates is at least
0.1·|o|; then 0 passes, or nearly. A product most of whose outputs are weak is not verified by its bound, whatever its
outputs are.

Two kinds of outputs are zero for good reasons, and do not count as weak for that:

- An exact zero. It is left out, whatever T is.
- An output whose terms cancel. With r the root of the sum of their squares, |o| is about r where signs are random, and
  float32 itself leaves some 2^-24·r·√K of it. So |o| counts as at least r·2^-9: only tolerances below r·2^-12, as those
  of float32 sums are, profit from that. Likewise results that underflow in float32 count as at least 2^-100.

Outputs of half and of bfloat16, and sums in half, underflow at sizes that occur: a half is a multiple of 2^-24, so of
an output of 2^-26 zero is the rounding. With η what underflow may take of an output (`Product.underflow`), zero, or
nearly, is right up to η/0.1, whatever a kernel does: outputs below twice that are no evidence for or against it, and
are not counted. A product that has no others was not verified by them: it is `empty`.

Where K is long and sums are coarse, gates that refuse 0.9·o may still not see that a block of the row is missing. Such
a block's share of an output is about r/√(K/32); where T is as large, the loss is *hidden*. If it is in most outputs,
the product does not show whether all blocks were added, and each part of its rows is judged by itself
(`rungs.remade`).

A product of few outputs may have a small one by chance: tensor cores leave 0.01·r at K = 32768, and one output in
thirteen is less than 0.1·r. Of fewer than `FEW` outputs |o| therefore counts as at least r/4.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np

from ..support.arrays import Array
from .accumulation import SCORE_LIMIT
from .sums import Doubles, Product

#: The share of an output that a bound must be able to miss.
SHARE = 0.1
#: Outputs of a product that is small.
FEW = 16
#: Of r, what |o| counts as at least: in general, and in small products.
_CANCELLED, _OF_FEW = 2.0**-9, 0.25
#: Values of the smallest part of a row whose loss a judgement must show.
BLOCK = 32
#: The least size of an output: smaller ones underflow in float32.
_LEAST = 2.0**-100


@dataclass(frozen=True)
class Power:
    """Of the gates of one product.

    Args:
        outputs: whose exact value is finite, not zero, and does not underflow.
        weak: of these, the ones of which 0.9 times the exact value would pass.
        underflowing: other outputs that are not zero, too small for their type to tell from zero.
        hidden: of `outputs`, the ones that would pass although a block of the row is missing.
    """

    outputs: int
    weak: int
    underflowing: int = 0
    hidden: int = 0

    @property
    def lacking(self) -> bool:
        """Whether most outputs are weak, so that to pass says nothing."""
        return 2 * self.weak > self.outputs

    @property
    def empty(self) -> bool:
        """Whether all outputs that are not zero underflow, so that none says anything."""
        return not self.outputs and self.underflowing > 0

    @property
    def says_nothing(self) -> bool:
        """Whether outputs that pass are not verified by that."""
        return self.lacking or self.empty

    @property
    def misses_blocks(self) -> bool:
        """Whether most outputs would pass if a block of their row were missing."""
        return 2 * self.hidden > self.outputs

    def joined(self, other: Power) -> Power:
        """Of both together, where a product is judged in parts."""
        return Power(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def share_of_block(p: Product) -> Doubles | float:
    """About what a block of the row adds to an output, [M, N]; infinite where only the whole row is known, or has one
    block."""
    if p.scale is None or p.columns <= BLOCK:
        return math.inf
    return p.scale * math.sqrt(BLOCK / p.columns)


def power(p: Product, slack: Array | None = None) -> Power:
    """The power of a product's gates.

    Args:
        p: of one that is screened, bound and spread may be smaller than those of the product: by a little.
        slack: that is added to bound and spread.
    """
    with np.errstate(all="ignore"):
        tolerance = np.minimum(p.bound, SCORE_LIMIT * p.spread)
        size = np.abs(p.exact)
        counted = np.isfinite(size) & (size > 0)
        if p.ordered is not None:  # judged by their bits
            return Power(int(counted.sum()), 0)
        underflows = counted & (size < 2 * p.underflow / SHARE)
        counted &= ~underflows
        outputs = int(counted.sum())
        least = np.maximum(size, _LEAST)
        if p.scale is not None:
            least = np.maximum(least, p.scale * (_OF_FEW if outputs < FEW else _CANCELLED))
        if slack is not None:
            tolerance = tolerance + slack
        weak, hidden = (
            int((counted & ~(tolerance < size)).sum()) for size in (SHARE * least, share_of_block(p))
        )  # fmt: skip
    return Power(outputs, weak, int(underflows.sum()), hidden)
