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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt

from ..support.arrays import get, on_host, put, widened
from .closer import Closer, judge_closer
from .power import FEW, Power, power
from .sums import Doubles, Floats, Product

#: Rows of weights whose score is computed although they pass.
_LOOKED_AT = 2
#: Outputs that are judged by lane orders: in the first batch, and in further batches.
_FIRST, _AT_ONCE = 4, 64
#: Outputs that NumPy looks at together: some arrays of them fit in a core's cache.
_TILE = 1 << 16


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
        suspected: elements that fail by their score only.
        doubtful: elements whose score is only explained by lane orders; suspicions are among them.
        power: whether the gates could have failed: see `power`.
        by: returns `product`.
        closer: a further judgement of the product, made if the gates could not have failed; otherwise None.
    """

    bad: npt.NDArray[np.bool_]
    utilisation: float
    score: float
    worst: tuple[int, int]
    differing_bits: int | None
    nmse: float
    suspected: npt.NDArray[np.bool_]
    doubtful: npt.NDArray[np.bool_]
    power: Power
    by: Callable[[], Product]
    closer: Closer | None = None

    @cached_property
    def product(self) -> Product:
        """The product it was judged by, with the spread by lane orders if these were computed.

        After a screening, the rows that did not pass at once are computed whole. On a GPU, the arrays are NumPy's if an
        element fails.
        """
        return self.by()

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
    if p.of_rows is not None or (y.size > _TILE and on_host(y) and p.errors is None):
        return _judge_in_tiles(y, p, slack)
    return _judge_whole(y, p, slack)


def _judge_whole(y: Floats, p: Product, slack: Doubles | None) -> Judgement:
    """Judge `y` by a product that was not screened."""
    of_gates = power(p, slack)
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
    return Judgement(bad, *worst, (m, n), differing, nmse, suspected, doubtful, of_gates, lambda: p, closer)


@dataclass(frozen=True)
class _Tile:
    """A first look at the outputs of some rows of weights, arrays of NumPy.

    Args:
        passing: rows all of whose outputs pass at once, bool[n].
        utilisation, score: the largest of each row, float64[n].
        squares: Σ(y - o)² and Σ o² of each row, float64[2, n].
        differing: outputs whose bits differ from the declared order's.
        power: of the gates.
    """

    passing: npt.NDArray[np.bool_]
    utilisation: Doubles
    score: Doubles
    squares: Doubles
    differing: int
    power: Power

    @classmethod
    def of(cls, y: Floats, p: Product, slack: Doubles | None) -> _Tile:
        """Look at `y` float32[M, n]. The conditions are those of `judge`."""
        with np.errstate(all="ignore"):
            difference = np.abs(widened(y) - p.exact)
            bound, spread = (of if slack is None else of + slack for of in (p.bound, p.spread))
            utilisation, score = _ratio(difference, bound), _ratio(difference, spread)
            tolerable = score <= p.limit
            if not tolerable.all():
                tolerable |= difference <= 2.0**-23 * np.abs(p.exact) + 2.0**-149
            passing, differing = difference <= bound, 0
            if p.ordered is not None:
                same = y.view(np.uint32) == p.ordered.view(np.uint32)
                differing = int((~same).sum())
                tolerable |= same
                passing &= same
            passing &= tolerable
            if not np.isfinite(difference.max()):
                passing &= np.isfinite(y) & np.isfinite(p.exact)
            squares = _squares(difference, p.exact)
        found = get(passing.all(axis=0)), get(utilisation.max(axis=0)), get(score.max(axis=0))
        return cls(*found, squares, differing, power(p, slack))


def _judge_in_tiles(y: Floats, p: Product, slack: Doubles | None) -> Judgement:
    """Judge `y` some rows of weights at a time, as far as these pass at once, and the other rows as a whole."""
    m, n = y.shape
    step = max(1, _TILE // m) if on_host(y) else n
    spans = [slice(start, start + step) for start in range(0, n, step)]
    tiles = [_Tile.of(y[:, at], p.of_weights(at), None if slack is None else slack[:, at]) for at in spans]
    passing, utilisation, score, squares = (
        np.concatenate([getattr(tile, name) for tile in tiles], axis=-1)
        for name in ("passing", "utilisation", "score", "squares")
    )
    few = any(tile.power.outputs < FEW for tile in tiles)
    of_gates = power(p, slack) if few else reduce(Power.joined, (tile.power for tile in tiles))
    differing = None if p.ordered is None else sum(tile.differing for tile in tiles)
    bad, suspected, doubtful = (np.zeros(y.shape, bool) for _ in range(3))
    if p.of_rows is not None:  # the score is the worst of those that are computed whole
        passing[np.argsort(score)[-_LOOKED_AT:]] = False
        score[passing] = 0.0
    rows, whole = np.flatnonzero(~passing), None
    if len(rows):
        at = put(rows, y)
        of_rows = p.of_weights(rows).settled(np.arange(len(rows)))
        whole = _judge_whole(y[:, at], of_rows, None if slack is None else slack[:, at])
        bad[:, rows], suspected[:, rows], doubtful[:, rows] = whole.bad, whole.suspected, whole.doubtful
        with np.errstate(all="ignore"):
            exact = get(whole.product.exact)
            squares[:, rows] = _squares(np.abs(get(y[:, at]).astype(np.float64) - exact), exact)
        utilisation[rows] = whole.utilisation  # of each: only the largest counts
        score[rows] = whole.score
    most = float(utilisation.max())
    found = [] if whole is None or whole.utilisation < most else [(whole.worst[0], int(rows[whole.worst[1]]))]
    with np.errstate(all="ignore"):
        for row in np.flatnonzero(passing & (utilisation == most)):
            off = np.abs(widened(y[:, row]) - p.exact[:, row])
            limit = p.bound[:, row] if slack is None else p.bound[:, row] + slack[:, row]
            found.append((int(np.argmax(_ratio(off, limit))), int(row)))
    if not on_host(y) and bad.any():
        p = p.placed(get)
    (off, size), high = map(float, squares.sum(axis=1)), float(score.max())
    return Judgement(
        bad, most, high, min(found), differing, off / size if size else 0.0, suspected, doubtful, of_gates,
        lambda: p if whole is None else p.with_rows(rows, whole.product),
    )  # fmt: skip


def _squares(difference: Doubles, exact: Doubles) -> Doubles:
    """Return Σ(y - o)² and Σ o² of each row of weights, float64[2, n] of NumPy."""
    return np.stack([get(np.einsum("mn,mn->n", of, of)) for of in (difference, exact)])


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


def _ratio(difference: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return difference / scale; 0 if both are 0, infinite instead of NaN."""
    with np.errstate(all="ignore"):
        ratio = difference / scale
        if np.isnan(ratio.max()):
            ratio = np.where(difference == 0, 0.0, ratio)
            ratio[np.isnan(ratio)] = np.inf
    return ratio
