"""The gates, which judge whether an output agrees with its definition. Predicates are written so that NaN fails.

An output passes if it is within the bound and its score, |y - o| / spread, is within the product's limit. The spread is
that of random data in ascending order. If the score fails, it is recomputed for the lane orders that kernels really
have (`lanes`); the largest deviation counts. There are three outcomes:

- The score by lane orders is within the limit: the output passes, and is *doubtful*, since a small fault may hide
  behind a deviation that is this large.
- It is beyond √(3n) deviations, the maximum of n roundings of one sign: the output fails.
- It is between: a *suspicion*. The output fails, unless a caller that can repeat the product clears it.

A product that is repeated with random activations has neither large sums in lanes nor roundings of one sign, so a fault
of the kernel exceeds the narrow spread there, and a correct kernel passes (`Judgement.cleared`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..support.arrays import get, on_host, put, widened
from .closer import Closer, judge_closer
from .power import Power, power
from .sums import Doubles, Product

#: Rows of weights whose score is computed although they pass.
_LOOKED_AT = 2
#: Outputs that are judged by lane orders: in the first batch, and in further batches.
_FIRST, _AT_ONCE = 4, 64


@dataclass(frozen=True)
class Judgement:
    """An output `[M, N]` judged against its product.

    Args:
        bad: elements that fail, bool[M, N] of NumPy; suspicions are among them.
        utilisation: |y - o| / bound of the worst element (infinite for NaN, zero for a zero bound that is met).
        score: |y - o| / spread of the worst element.
        worst: (m, n) of the worst utilisation.
        differing_bits: elements whose bits differ from the declared order's; None for an undeclared order.
        nmse: Σ(y - o)² / Σ o².
        product: the product it was judged by, with the spread by lane orders if these were computed. After a screening,
            the parts that did not pass at once are computed whole. On a GPU, the arrays are NumPy's if an element
            fails.
        suspected: elements that fail by their score only.
        doubtful: elements whose score is only explained by lane orders; suspicions are among them.
        power: whether the gates could have failed: see `power`.
        closer: a further judgement of the product, made if the gates could not have failed; otherwise None.
    """

    bad: npt.NDArray[np.bool_]
    utilisation: float
    score: float
    worst: tuple[int, int]
    differing_bits: int | None
    nmse: float
    product: Product
    suspected: npt.NDArray[np.bool_]
    doubtful: npt.NDArray[np.bool_]
    power: Power
    closer: Closer | None = None

    @property
    def passed(self) -> bool:
        """Whether no output fails. That verifies them only if the gates have `power`: see `verified`."""
        return not self.bad.any()

    @property
    def unsettled(self) -> bool:
        """Whether it fails by suspicions alone."""
        return bool(self.suspected.any()) and not (self.bad & ~self.suspected).any()

    def cleared(self, wrong: npt.NDArray[np.bool_]) -> Judgement:
        """Return the judgement after the product was repeated with other activations.

        Doubtful elements of rows bool[N] that were wrong there are failures, the others are cleared.
        """
        none = np.zeros_like(self.suspected)
        return replace(self, bad=(self.bad & ~self.suspected) | (self.doubtful & wrong), suspected=none, doubtful=none)

    @property
    def verified(self) -> bool:
        """Whether no output fails, and most could have."""
        return self.passed and not self.power.says_nothing

    @property
    def shows_blocks(self) -> bool:
        """Whether the loss of a block of a row would be detected."""
        return self.power.outputs > 0 and not self.power.misses_blocks


def judge(y: npt.NDArray[np.float32], p: Product, slack: npt.NDArray[np.float64] | None = None) -> Judgement:
    """Judge `y` float32[M, N].

    An element passes if |y - o| ≤ bound, its score is within the product's limit and, if the product carries the bits
    of a declared order, its bits are equal to those, in which case no score is needed.

    If the product was screened, the rows of weights that do not pass at once are judged by the product itself, and so
    are the few rows with the largest scores: the score is the worst of theirs, the utilisation that of all.

    Args:
        slack: added to the bound: the uncertainty of the inputs of the computation that gave `y`.
    """
    y, slack = put(y, p.exact), None if slack is None else put(slack, p.exact)
    of_gates = power(p, slack)
    if p.of_rows is not None:
        p = p.settled(_doubtful(y, p, slack))
    with np.errstate(all="ignore"):
        difference = np.abs(widened(y) - p.exact)
        bound = p.bound if slack is None else p.bound + slack
        within = difference <= bound
        utilisation = _ratio(difference, bound)
        spread = p.spread if slack is None else p.spread + slack
        score = _ratio(difference, spread)
        # A single rounding of an otherwise undisturbed result is within any bound, whatever the spread says.
        tolerable = (score <= p.limit) | (difference <= 2.0**-23 * np.abs(p.exact) + 2.0**-149)
        bad = ~within
        differing = None
        if p.ordered is not None:
            same = y.view(np.uint32) == p.ordered.view(np.uint32)
            differing = int((~same).sum())
            bad |= ~same
            tolerable |= same
        bad |= ~(np.isfinite(y) & np.isfinite(p.exact))  # an infinite bound would let anything pass
        doubtful = ~(bad | tolerable)
    suspected = none = np.zeros(y.shape, bool)
    if not doubtful.any():
        doubtful = none
    elif p.lanes is None:
        bad, doubtful = bad | doubtful, none
    else:
        doubtful = get(doubtful)
        found = _ByLanes.of(doubtful, get(difference), p, slack)
        bad, suspected = bad | put(found.wrong | found.suspected, bad), found.suspected
        p, doubtful = replace(p, spread=put(found.spread, p.spread)), doubtful & ~found.wrong
        score = _ratio(difference, p.spread if slack is None else p.spread + slack)
        if p.errors is not None:  # the spread by lane orders may be so wide that zeros pass
            of_gates = power(p, slack)
    closer = judge_closer(y, p) if of_gates.lacking and slack is None else None
    at = int(np.argmax(utilisation))
    denominator = float((p.exact**2).sum())
    nmse = float((difference**2).sum()) / denominator if denominator else 0.0
    m, n = divmod(at, y.shape[1])
    if not on_host(bad):
        if not bad.any():
            bad = none
        else:  # callers examine the elements one by one
            bad, p = get(bad), p.placed(get)
    if closer is not None:
        bad, of_gates = bad.copy(), closer.power
        bad[np.ix_(closer.tokens, closer.rows)] |= closer.bad
    worst = float(utilisation.max()), float(score.max())
    return Judgement(bad, *worst, (m, n), differing, nmse, p, suspected, doubtful, of_gates, closer)


@dataclass(frozen=True)
class _ByLanes:
    """The judgement by lane orders of doubtful outputs, [M, N] of NumPy each: failures, suspicions, and the spread."""

    wrong: npt.NDArray[np.bool_]
    suspected: npt.NDArray[np.bool_]
    spread: Doubles

    @classmethod
    def of(cls, doubtful: npt.NDArray[np.bool_], difference: Doubles, p: Product, slack: Doubles | None) -> _ByLanes:
        """Judge the doubtful outputs, those with the largest errors first.

        If one is wrong, the others need not be excused: they stay suspicions, and so do those in excess of the limit.
        """
        assert p.lanes is not None
        wrong, suspected, spread = np.zeros_like(doubtful), doubtful.copy(), get(p.spread).copy()
        off = difference if slack is None else np.maximum(difference - get(slack), 0.0)
        tokens, rows = np.nonzero(doubtful)
        with np.errstate(all="ignore"):
            order = np.argsort(-_ratio(off, spread)[tokens, rows], kind="stable")[: p.lanes.most]
        for part in np.split(order, range(_FIRST, len(order), _AT_ONCE)):
            at = tokens[part], rows[part]
            lanes = p.lanes.of(*at)
            with np.errstate(all="ignore"):
                spread[at] = np.fmax(spread[at], lanes.deviation)
                score = _ratio(off[at], spread[at])
                possible = score <= np.maximum(p.limit, np.sqrt(3 * lanes.roundings))
            wrong[at], suspected[at] = ~possible, possible & ~(score <= p.limit)
            if wrong.any():
                break
        return cls(wrong, suspected & ~wrong, spread)


def _doubtful(y: npt.NDArray[np.float32], p: Product, slack: npt.NDArray[np.float64] | None) -> npt.NDArray[np.intp]:
    """Return the rows of weights with an element that does not pass, and the `_LOOKED_AT` with the largest scores."""
    screen = Product(p.exact, p.bound, p.spread, p.ordered, limit=p.limit)
    doubtful = np.asarray(judge(y, screen, slack).bad.any(axis=0))
    with np.errstate(all="ignore"):
        spread = p.spread if slack is None else p.spread + slack
        score = get(_ratio(np.abs(widened(y) - p.exact), spread).max(axis=0))
    doubtful[np.argsort(score)[-_LOOKED_AT:]] = True
    return np.flatnonzero(doubtful)


def _ratio(difference: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return difference / scale; 0 if both are 0, infinite instead of NaN."""
    with np.errstate(all="ignore"):
        ratio = np.where(difference == 0, 0.0, difference / scale)
    return np.where(np.isnan(ratio), np.inf, ratio)
