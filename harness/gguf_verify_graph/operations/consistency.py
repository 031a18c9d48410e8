"""Check that the errors of outputs are of similar size, as the errors of one computation are.

The tolerance of a definition whose sums may be halves, or are those of the coarsest tensor cores, is far above the
errors of correct outputs of a particular kernel. A wrong output could hide in it. But the errors of the outputs of one
row, which share the activations, are of similar size when each is measured in units of its own tolerance. So the row's
outputs themselves give the size: the standard deviation is the median of the magnitudes divided by 0.6745, as for
normal errors (Hampel, "The influence curve and its role in robust estimation", JASA 69, 1974). An output whose error
exceeds SCORE_LIMIT standard deviations, the limit of every score (`semantics.accumulation`), is not admitted.

A median of few outputs is unreliable. The largest of n normal errors exceeds SCORE_LIMIT by the row's own median with
probability n·∫ φ(m)·P(half of the others are below 2·0.6745·m/32) dm, where φ is the density of the magnitude m: 8e-6
for n = 16, and 7e-9 for n = 32. Rows with fewer inexact outputs use the median of all rows, if these have enough
inexact outputs, since the errors in units of the tolerance are similar in all rows. They may differ: the roundings of
one row may all go in one direction. So the larger of that value and the row's own upper quartile divided by 1.1503 (as
for normal errors) counts. Right outputs of a row whose errors are ten times those of other rows are then rejected with
probability n·∫ φ(m)·P(|e| < 1.1503·m/32)^(n-1) dm, which is 1e-5 for n = 5 and less for larger n, and those of all
other rows with probability 0. Rows with fewer outputs are not checked.

Errors are not normal where one term dominates a sum: most are tiny, and a few are one rounding of the result. So
EXTRA_ROUNDINGS of the result (`semantics.accumulation`), the roundings other than those of the sum, are always allowed.
The check never rejects a whole row whose errors are all large: such a row may use the definition's full tolerance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import Doubles
from gguf_verify.semantics.accumulation import EXTRA_ROUNDINGS, SCORE_LIMIT

#: Least number of inexact outputs for the median; and least number in a row for its upper quartile.
_ENOUGH, _FEW = 32, 5
#: The median and the upper quartile of the magnitude of normal errors.
_MEDIAN, _QUARTILE = 0.6745, 1.1503


def admitted(difference: Doubles, tolerance: Doubles, exact: Doubles, unit: float) -> Doubles:
    """Return the reduced tolerance, float64[rows, n].

    Args:
        difference, tolerance, exact: of outputs, float64[rows, n]; the difference of exact outputs is 0.
        unit: largest relative error of one rounding.
    """
    with np.errstate(all="ignore"):
        ratio = np.where(difference == 0, 0.0, difference / tolerance)
        off = np.where(ratio == 0, np.nan, np.where(np.isnan(ratio), np.inf, ratio))
        most = np.minimum(SCORE_LIMIT * _deviation(off, np.count_nonzero(ratio, axis=1)), 1)
        left = np.fmax(most[:, None] * tolerance, EXTRA_ROUNDINGS * unit * np.abs(exact))
        return np.asarray(np.minimum(tolerance, left))


def _deviation(off: Doubles, inexact: npt.NDArray[np.intp]) -> Doubles:
    """Return the standard deviation of the outputs' errors per row, float64[rows]; infinite where unknown.

    Args:
        off: errors, float64[rows, n]; NaN for exact outputs.
        inexact: number of inexact outputs of each row.
    """
    deviation = np.full(len(off), np.inf)
    many, few = inexact >= _ENOUGH, (inexact >= _FEW) & (inexact < _ENOUGH)
    if many.any():
        deviation[many] = np.nanmedian(off[many], axis=1) / _MEDIAN
    if few.any() and inexact.sum() >= _ENOUGH:
        own = np.nanquantile(off[few], 0.75, axis=1, method="higher") / _QUARTILE
        deviation[few] = np.maximum(own, np.nanmedian(off) / _MEDIAN)
    return deviation
