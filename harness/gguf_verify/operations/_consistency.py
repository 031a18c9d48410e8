"""Are the errors of outputs of one size, as those of one computation are?

A definition whose sums may be halves, or whose sums are those of the coarsest tensor cores, has a tolerance that right
outputs of a particular kernel may stay far below. A wrong output could hide in it. But the errors of one row of
outputs, which have the activations in common, are of one size, if each is measured in its own tolerance. So the row's
outputs themselves tell the size: the standard deviation is the median of the magnitudes over 0.6745, as that of normal
errors is (Hampel, "The influence curve and its role in robust estimation", JASA 69, 1974). An output that is further
off than SCORE_LIMIT of these, the limit of every score (`semantics.accumulation`), is none of them.

A median of few outputs tells nothing. That the largest of n normal errors seems further off than SCORE_LIMIT by their
own median has the probability n·∫ φ(m)·P(half of the others are below 2·0.6745·m/32) dm, with φ the density of the
magnitude m: 8e-6 of n = 16, and 7e-9 of n = 32. Rows with fewer outputs that are off are not looked at.

Errors are not normal where a sum is nearly one of its terms: most are tiny, and a few of them one rounding of the
result. So EXTRA_ROUNDINGS of the result (`semantics.accumulation`), those beside a sum's own, are admitted in any case.
What a whole row is off by is no more than the definition's tolerance, which it may use.
"""

from __future__ import annotations

import numpy as np

from ..semantics import SCORE_LIMIT
from ..semantics.accumulation import EXTRA_ROUNDINGS
from .node import Doubles

#: Outputs of a row that are off, at least.
_ENOUGH = 32
#: The median of the magnitude of normal numbers.
_MEDIAN = 0.6745


def admitted(difference: Doubles, tolerance: Doubles, exact: Doubles, unit: float) -> Doubles:
    """The tolerance that is left, float64[rows, n].

    Args:
        difference, tolerance, exact: of outputs float64[rows, n]; the difference of exact ones is 0.
        unit: the most that one rounding takes, relative.
    """
    with np.errstate(all="ignore"):
        ratio = np.where(difference == 0, 0.0, difference / tolerance)
        off = np.where(ratio == 0, np.nan, np.where(np.isnan(ratio), np.inf, ratio))
        enough = np.count_nonzero(ratio, axis=1) >= _ENOUGH
        most = np.full((len(ratio), 1), np.inf)
        if enough.any():
            most[enough] = SCORE_LIMIT / _MEDIAN * np.nanmedian(off[enough], axis=1, keepdims=True)
        left = np.fmax(np.minimum(most, 1) * tolerance, EXTRA_ROUNDINGS * unit * np.abs(exact))
        return np.asarray(np.minimum(tolerance, left))


__all__ = ["admitted"]
