"""Are the errors of outputs of one size, as those of one computation are?

A definition whose sums may be halves, or whose sums are those of the coarsest tensor cores, has a tolerance that right
outputs of a particular kernel may stay far below. A wrong output could hide in it. But the errors of one row of
outputs, which have the activations in common, are of one size, if each is measured in its own tolerance. So the row's
outputs themselves tell the size: the standard deviation is the median of the magnitudes over 0.6745, as that of normal
errors is (Hampel, "The influence curve and its role in robust estimation", JASA 69, 1974). An output that is further
off than SCORE_LIMIT of these, the limit of every score (`semantics.accumulation`), is none of them.

A median of few outputs tells little. That the largest of n normal errors seems further off than SCORE_LIMIT by their
own median has the probability n·∫ φ(m)·P(half of the others are below 2·0.6745·m/32) dm, with φ the density of the
magnitude m: 8e-6 of n = 16, and 7e-9 of n = 32. Rows with fewer outputs that are off are measured by those of all rows,
if these are as many, for what is left in units of the tolerance is much the same in all rows. It need not be: the
roundings of one row may all go one way. So the larger one counts of that and of the row's own upper quartile over
1.1503, as that of normal errors is. Then right outputs of a row whose errors are ten times as large as those of others
are left out with the probability n·∫ φ(m)·P(|e| < 1.1503·m/32)^(n-1) dm, which is 1e-5 of n = 5 and less of more, and
of all other rows with none. Rows with fewer outputs are not looked at.

Errors are not normal where a sum is nearly one of its terms: most are tiny, and a few of them one rounding of the
result. So EXTRA_ROUNDINGS of the result (`semantics.accumulation`), those beside a sum's own, are admitted in any case.
What a whole row is off by is no more than the definition's tolerance, which it may use.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import Doubles
from gguf_verify.semantics.accumulation import EXTRA_ROUNDINGS, SCORE_LIMIT

#: Outputs that are off, at least, whose median tells their size, and of a row whose upper quartile does beside it.
_ENOUGH, _FEW = 32, 5
#: The median and the upper quartile of the magnitude of normal numbers.
_MEDIAN, _QUARTILE = 0.6745, 1.1503


def admitted(difference: Doubles, tolerance: Doubles, exact: Doubles, unit: float) -> Doubles:
    """The tolerance that is left, float64[rows, n].

    Args:
        difference, tolerance, exact: of outputs float64[rows, n]; the difference of exact ones is 0.
        unit: the most that one rounding takes, relative.
    """
    with np.errstate(all="ignore"):
        ratio = np.where(difference == 0, 0.0, difference / tolerance)
        off = np.where(ratio == 0, np.nan, np.where(np.isnan(ratio), np.inf, ratio))
        most = np.minimum(SCORE_LIMIT * _deviation(off, np.count_nonzero(ratio, axis=1)), 1)
        left = np.fmax(most[:, None] * tolerance, EXTRA_ROUNDINGS * unit * np.abs(exact))
        return np.asarray(np.minimum(tolerance, left))


def _deviation(off: Doubles, told: npt.NDArray[np.intp]) -> Doubles:
    """The standard deviation of the outputs of each row, float64[rows]; infinite where it is not known.

    Args:
        off: by how much they are off, float64[rows, n]; NaN where they are not.
        told: how many outputs of a row are off.
    """
    deviation = np.full(len(off), np.inf)
    many, few = told >= _ENOUGH, (told >= _FEW) & (told < _ENOUGH)
    if many.any():
        deviation[many] = np.nanmedian(off[many], axis=1) / _MEDIAN
    if few.any() and told.sum() >= _ENOUGH:
        own = np.nanquantile(off[few], 0.75, axis=1, method="higher") / _QUARTILE
        deviation[few] = np.maximum(own, np.nanmedian(off) / _MEDIAN)
    return deviation
