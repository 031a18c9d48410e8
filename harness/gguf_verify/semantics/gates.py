"""The gates: is an output what its definition says? Predicates are written so that NaN fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..support.arrays import get, on_host, put, widened
from .accumulation import SCORE_LIMIT
from .sums import Product

#: Rows of weights whose score is computed although they pass.
_LOOKED_AT = 2


@dataclass(frozen=True)
class Judgement:
    """An output `[M, N]` judged against its product.

    Args:
        bad: elements that fail, bool[M, N] of NumPy.
        utilisation: |y - o| / bound of the worst element (infinite for NaN, zero for a zero bound that is met).
        score: |y - o| / spread of the worst element.
        worst: (m, n) of the worst utilisation.
        differing_bits: elements whose bits differ from the declared order's; None for an undeclared order.
        nmse: Σ(y - o)² / Σ o².
        product: by which it was judged; of one that was screened, with what did not pass at once computed whole; of one
            on a card, NumPy's where something is wrong.
    """

    bad: npt.NDArray[np.bool_]
    utilisation: float
    score: float
    worst: tuple[int, int]
    differing_bits: int | None
    nmse: float
    product: Product

    @property
    def passed(self) -> bool:
        return not self.bad.any()


def judge(y: npt.NDArray[np.float32], p: Product, slack: npt.NDArray[np.float64] | None = None) -> Judgement:
    """Judge `y` float32[M, N].

    An element passes where |y - o| ≤ bound, its score is within SCORE_LIMIT and, where the product carries the bits
    of a declared order, its bits are those.

    Where the product was screened, the rows of weights that do not pass at once are judged by the product itself, and
    so are the few with the largest scores: the score is the worst of theirs, the utilisation that of all.

    Args:
        slack: added to the bound: what is not known about the inputs of the computation that gave `y`.
    """
    y, slack = put(y, p.exact), None if slack is None else put(slack, p.exact)
    if p.of_rows is not None:
        p = p.settled(_doubtful(y, p, slack))
    with np.errstate(all="ignore"):
        difference = np.abs(widened(y) - p.exact)
        bound = p.bound if slack is None else p.bound + slack
        within = difference <= bound
        utilisation = _ratio(difference, bound)
        spread = p.spread if slack is None else p.spread + slack
        score = _ratio(difference, spread)
        # A single rounding of a result that nothing else disturbed is within any bound, whatever the spread says.
        tolerable = (score <= SCORE_LIMIT) | (difference <= 2.0**-23 * np.abs(p.exact) + 2.0**-149)
        bad = ~(within & tolerable)
        differing = None
        if p.ordered is not None:
            same = y.view(np.uint32) == p.ordered.view(np.uint32)
            differing = int((~same).sum())
            bad |= ~same
        bad |= ~(np.isfinite(y) & np.isfinite(p.exact))  # an infinite bound would let anything pass
    at = int(np.argmax(utilisation))
    denominator = float((p.exact**2).sum())
    nmse = float((difference**2).sum()) / denominator if denominator else 0.0
    m, n = divmod(at, y.shape[1])
    if not on_host(bad):
        if not bad.any():
            bad = np.zeros(y.shape, bool)
        else:  # looked at element by element
            bad, p = get(bad), p.placed(get)
    return Judgement(bad, float(utilisation.max()), float(score.max()), (m, n), differing, nmse, p)


def _doubtful(
    y: npt.NDArray[np.float32], p: Product, slack: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.intp]:  # fmt: skip
    """The rows of weights with an element that does not pass, and the `_LOOKED_AT` with the largest scores."""
    screen = Product(p.exact, p.bound, p.spread, p.ordered)
    doubtful = np.asarray(judge(y, screen, slack).bad.any(axis=0))
    with np.errstate(all="ignore"):
        spread = p.spread if slack is None else p.spread + slack
        score = get(_ratio(np.abs(widened(y) - p.exact), spread).max(axis=0))
    doubtful[np.argsort(score)[-_LOOKED_AT:]] = True
    return np.flatnonzero(doubtful)


def _ratio(difference: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """difference / scale; 0 where both are 0, infinite where it is not a number."""
    ratio = np.where(difference == 0, 0.0, difference / scale)
    return np.where(np.isnan(ratio), np.inf, ratio)


__all__ = ["SCORE_LIMIT", "Judgement", "judge"]
