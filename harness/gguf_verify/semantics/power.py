"""The power of a bound: whether it could have failed.

A bound is a check only if there are outputs that it rejects. Long sums in half have bounds as large as the sums: zeros
are within them. An output o is *weak* if 0.9·o would pass, that is, if the tolerance T of both gates is at least
0.1·|o|; then 0 passes, or nearly. A product of which most outputs are weak is not verified by its bound, whatever its
outputs are.

Two kinds of outputs are zero for good reasons, and do not count as weak for that:

- An exact zero. It is not counted, whatever T is.
- An output whose terms cancel. With r the root of the sum of their squares, |o| is about r for random signs, and
  float32 itself leaves some 2^-24·r·√K of it. So |o| counts as at least r·2^-9: only tolerances below r·2^-12, such
  as those of float32 sums, profit from that. Likewise results that underflow in float32 count as at least 2^-100.

Outputs of half and of bfloat16, and sums in half, underflow at sizes that occur: a half is a multiple of 2^-24, so an
output of 2^-26 rounds to zero. With η the possible loss of an output by underflow (`Product.underflow`), zero, or
nearly, is correct up to η/0.1, whatever a kernel does: outputs below twice that are no evidence for or against it, and
are not counted. A product that has no other outputs was not verified by them: it is `empty`.

If K is long and sums are coarse, gates that reject 0.9·o may still not detect that a block of the row is missing. Such
a block's share of an output is about r/√(K/32); if T is as large, the loss is *hidden*. If it is hidden in most
outputs, the product does not show whether all blocks were added, and each part of its rows is judged separately
(`rungs.remade`).

A product of few outputs may have a small one by chance: tensor cores leave 0.01·r at K = 32768, and one output in
thirteen is less than 0.1·r. With fewer than `FEW` outputs |o| therefore counts as at least r/4.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np

from ..support.arrays import Array
from .accumulation import SCORE_LIMIT
from .sums import Doubles, Product

#: The fraction of an output whose loss a bound must detect.
SHARE = 0.1
#: Outputs below which a product is small.
FEW = 16
#: The minimum of |o| as a fraction of r: in general, and in small products.
_CANCELLED, _OF_FEW = 2.0**-9, 0.25
#: Values of the smallest part of a row whose loss a judgement must detect.
BLOCK = 32
#: The minimum size of an output: smaller ones underflow in float32.
_LEAST = 2.0**-100


@dataclass(frozen=True)
class Power:
    """The power of the gates of one product.

    Args:
        outputs: those whose exact value is finite, not zero, and does not underflow.
        weak: the ones among these for which 0.9 times the exact value would pass.
        underflowing: other outputs that are not zero, too small for their type to distinguish from zero.
        hidden: the ones among `outputs` that would pass although a block of the row is missing.
    """

    outputs: int
    weak: int
    underflowing: int = 0
    hidden: int = 0

    @property
    def lacking(self) -> bool:
        """Whether most outputs are weak, so that passing is no evidence."""
        return 2 * self.weak > self.outputs

    @property
    def empty(self) -> bool:
        """Whether all outputs that are not zero underflow, so that none is evidence."""
        return not self.outputs and self.underflowing > 0

    @property
    def says_nothing(self) -> bool:
        """Whether passing does not verify the outputs."""
        return self.lacking or self.empty

    @property
    def misses_blocks(self) -> bool:
        """Whether most outputs would pass if a block of their row were missing."""
        return 2 * self.hidden > self.outputs

    def joined(self, other: Power) -> Power:
        """Return the power of both together, for a product that is judged in parts."""
        return Power(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def share_of_block(p: Product) -> Doubles | float:
    """Return the approximate contribution of a block of the row to an output, [M, N].

    Infinite if only the whole row is known, or the row has one block.
    """
    if p.scale is None or p.columns <= BLOCK:
        return math.inf
    return p.scale * math.sqrt(BLOCK / p.columns)


def power(p: Product, slack: Array | None = None) -> Power:
    """Return the power of a product's gates.

    Args:
        p: if it is screened, bound and spread may be a little smaller than those of the product.
        slack: added to bound and spread.
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
        weak, hidden = (int((counted & ~(tolerance < size)).sum()) for size in (SHARE * least, share_of_block(p)))
    return Power(outputs, weak, int(underflows.sum()), hidden)
