"""Faults that are derived from outputs instead of predicted: a factor for all, for each part, or exchanged outputs.

They are tried if no fault of the catalogue explains the outputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ..results.diagnoses import FaultMatch
from .fault import Case, Explanation
from .observed import observed
from .operands import Floats, Predicted
from .weighed import weighed

Bools = npt.NDArray[np.bool_]

#: A factor is named if it explains all outputs, and at least this many wrong ones, of at least two rows and two tokens.
_FEWEST = 8
#: The fraction of the squared error that it may leave: errors within the bound have passed no test of their size.
_LEFT = 0.05
#: Rows or tokens are named as exchanged if at least this many are, and this fraction of all wrong ones, with `_FEWEST`
#: outputs.
_FEWEST_EXCHANGED, _MOSTLY = 2, 0.95
#: The fraction of outputs of some rows and tokens that is wrong, for these to have a fault of their own; the least
#: number of such rows and of such tokens.
_FULL, _FEWEST_PLACES = 0.9, 3


def fitted(y: Floats, case: Case, bad: Bools) -> Explanation | None:
    """Return the first explanation of the wrong outputs of y float32[M, N].

    Args:
        case: the product.
        bad: which outputs are wrong.
    """
    whole = _of_all(y, case, bad)
    return whole or _of_part(y, case, bad)


def _of_part(y: Floats, case: Case, bad: Bools) -> Explanation | None:
    """Return the explanation of whole wrong rows and tokens alone, which a kernel may compute by other code."""
    rows, tokens = np.flatnonzero(bad.any(axis=0)), np.flatnonzero(bad.any(axis=1))
    at = np.ix_(tokens, rows)
    if min(len(rows), len(tokens)) < _FEWEST_PLACES or bad[at].size == bad.size or bad[at].mean() < _FULL:
        return None
    found = _of_all(np.ascontiguousarray(y[at]), case.part(rows, tokens), bad[at], exchanges=False)
    if found is None:
        return None
    part = np.zeros(bad.shape, bool)
    part[at] = True
    return replace(found, match=structs.replace(found.match, everywhere=False), part=part)


def _of_all(y: Floats, case: Case, bad: Bools, exchanges: bool = True) -> Explanation | None:
    """Return the first explanation of all outputs."""
    right = case.right
    factor = _factor(y, right, bad)
    if factor is not None:
        by, match = factor
        return Explanation(match, lambda other: Predicted(by * other.right.exact, abs(by) * other.right.bound))
    parts = weighed(y, case, bad)
    if parts is not None:
        return Explanation(parts[1], parts[0].predicted)
    if not exchanges:
        return None
    rows = _exchanged(y, right.exact, right.bound, bad, "row")
    exchanged = rows or _exchanged(y.T, right.exact.T, right.bound.T, bad.T, "token")
    return None if exchanged is None else Explanation(exchanged)


def _factor(y: Floats, right: Predicted, bad: Bools) -> tuple[float, FaultMatch] | None:
    exact, bound = right.exact, right.bound
    at = bad & np.isfinite(y) & np.isfinite(exact) & (bound > 0)
    if (at != bad).any() or at.sum() < _FEWEST or min(at.any(axis=0).sum(), at.any(axis=1).sum()) < 2:
        return None
    got, meant, error = y[at].astype(np.float64), exact[at], bound[at]
    weights = meant / error**2
    by = float((got * weights).sum() / (meant * weights).sum())
    with np.errstate(all="ignore"):
        fits = ~(np.abs(y - by * exact) > abs(by) * bound)
    if not by or not fits.all():
        return None
    residual = float(((got - by * meant) ** 2).sum() / ((got - meant) ** 2).sum())
    if residual > _LEFT:
        return None
    worst = float((np.abs(got - by * meant) / (abs(by) * error)).max())
    factor = f"{by:.6g}" if abs(by - 1) > 1e-5 else f"1 {'+' if by > 1 else '-'} {abs(by - 1):.2g}"
    words = f"outputs are {factor} times what they should be"
    return by, observed("constant-factor", words, explained=1 - residual, utilisation=worst)


def _exchanged(
    y: npt.NDArray[np.float32], exact: npt.NDArray[np.float64], bound: npt.NDArray[np.float64], bad: Bools, what: str
) -> FaultMatch | None:
    wrong = np.flatnonzero(bad.any(axis=0))
    if len(y) < 2 or len(wrong) < _FEWEST_EXCHANGED or not np.isfinite(exact).all():
        return None
    found: dict[int, int] = {}
    outputs = 0
    for n in wrong:
        # A candidate must lie within the bound of a column, and differ from the expected one in two outputs.
        fits = (np.abs(y[:, n, None] - exact) <= bound).all(axis=0)
        apart = (np.abs(exact - exact[:, n, None]) > bound + bound[:, n, None]).sum(axis=0)
        of = np.flatnonzero(fits & (apart >= 2))
        if len(of):
            found[int(n)] = nearest = int(of[np.abs(of - n).argmin()])
            outputs += int(apart[nearest])
    if outputs < _FEWEST or len(found) < max(_FEWEST_EXCHANGED, _MOSTLY * len(wrong)):
        return None
    some = ", ".join(f"{what} {n} gets that of {j}" for n, j in list(found.items())[:3])
    words = f"outputs are those of other {what}s: {some}"
    return observed(f"{what}s-exchanged", words, explained=1.0, everywhere=len(found) == len(wrong))
