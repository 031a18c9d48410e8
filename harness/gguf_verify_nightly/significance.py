"""Statistical tests: does a new time or utilisation differ from its history by more than the history's noise?

All estimates are robust: medians for levels, and 1.4826 · MAD for σ, which is exact for Gaussian noise (Hampel, The
influence curve and its role in robust estimation, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

K = TypeVar("K")

#: Number of nights required for a judgement.
LEAST_NIGHTS = 5
#: Number of nights considered in a judgement, the newest ones.
MOST_NIGHTS = 30
#: A relative difference that another summation order in float64 can cause; it does not count as a change.
FLOAT_NOISE = 1e-9
_TO_SIGMA = 1.4826
#: With a long history, a time that is off by more than this many σ is a regression. With few nights σ itself is
#: uncertain: see `limit`.
_SIGMAS = 6.0
#: A time must also be off by this multiple of the history's own outliers, so that noise with long tails (on a shared
#: machine) raises the limit.
_TAIL = 1.5
#: Number of cells required to estimate a night's pace.
_CELLS_FOR_PACE = 3
#: The relative noise of clock and scheduler in any time; a lower limit of σ, even if all times so far are equal.
_LEAST_SIGMA = 1e-3


def limit(nights: int) -> float:
    """The deviation, in σ, above which a time is a regression, given the number of nights in its history."""
    return _SIGMAS * (1 + 6 / nights)


@dataclass(frozen=True)
class TimeChange:
    """A time that differs from its history.

    Args:
        seconds: the measured time.
        expected: the history's median, corrected by the night's pace.
        sigmas: the deviation from `expected`, in σ of the history.
        limit: the deviation above which it is reported, in σ.
        nights: the number of nights in the history.
    """

    seconds: float
    expected: float
    sigmas: float
    limit: float
    nights: int


@dataclass(frozen=True)
class Times(Generic[K]):
    """The judgement of a night's times.

    Args:
        pace: the common factor of all times of the night: the median of time / expected time. 1 is the usual pace, or
            means that it could not be estimated.
        pace_sigmas: the deviation of the pace, in σ of the earlier nights' paces. A change that slows down every cell
            shows only here.
        slower, faster: the times beyond the noise.
        judged: the number of times that were judged.
        not_judged: nights in the history → number of cells with too few nights to be judged.
    """

    pace: float
    pace_sigmas: float
    slower: Mapping[K, TimeChange]
    faster: Mapping[K, TimeChange]
    judged: int
    not_judged: Mapping[int, int]


def judge_times(history: Sequence[Mapping[K, float]], new: Mapping[K, float]) -> Times[K]:
    """Find the times of a night that differ from the history by more than its noise.

    The model is log t(night, cell) = pace(night) + level(cell) + noise. Pace and level are estimated by alternating
    medians (Tukey's median polish), so that a slow machine changes the pace and not a thousand cells. A cell's σ is
    that of its own residuals or that of all cells, whichever is larger, because a few nights may be close together by
    chance. A time is not a regression if the cell was off as far in any earlier night, nor if other cells had outliers
    of that size (up to the 95th percentile of the cells' largest residuals). With fewer than three cells the median
    would follow a regression, so differences in pace then count as noise.

    Args:
        history: earlier nights on the same machine, oldest first: cell → seconds > 0.
        new: the night to judge.
    """
    nights = [{k: math.log(t) for k, t in night.items() if t > 0} for night in history][-MOST_NIGHTS:]
    now = {k: math.log(t) for k, t in new.items() if t > 0}
    counts = {k: sum(k in night for night in nights) for k in now}
    judged = [k for k in now if counts[k] >= LEAST_NIGHTS]
    too_few: dict[int, int] = {}
    for n in counts.values():
        if n < LEAST_NIGHTS:
            too_few[n] = too_few.get(n, 0) + 1
    if not judged:
        return Times(1.0, 0.0, {}, {}, 0, too_few)
    nights = [{k: night[k] for k in judged if k in night} for night in nights]
    nights = [night for night in nights if night]
    level, pace = _polish(nights)
    residuals = {
        k: [night[k] - level[k] - p for night, p in zip(nights, pace, strict=True) if k in night] for k in judged
    }
    own = {k: _TO_SIGMA * median(abs(r) for r in rs) for k, rs in residuals.items()}
    common = max(median(own.values()), _LEAST_SIGMA)
    sigma = {k: max(own[k], common) for k in judged}
    up = _TAIL * _percentile_95(max(rs) / sigma[k] for k, rs in residuals.items())
    down = _TAIL * _percentile_95(-min(rs) / sigma[k] for k, rs in residuals.items())
    now_pace = median(now[k] - level[k] for k in judged) if len(judged) >= _CELLS_FOR_PACE else 0.0
    pace_sigma = max(_TO_SIGMA * median(abs(p) for p in pace), _LEAST_SIGMA)
    slower, faster = {}, {}
    for k in judged:
        off, rs = now[k] - level[k] - now_pace, residuals[k]
        least, margin = limit(len(rs)), _SIGMAS / 2 * common

        def found(sigmas: float, k: K = k, off: float = off, n: int = len(rs)) -> TimeChange:
            return TimeChange(math.exp(now[k]), math.exp(level[k] + now_pace), off / sigma[k], sigmas, n)

        # it must also exceed this cell's largest earlier deviation by more than the common noise
        if off > max(least, up) * sigma[k] and off > max(rs) + margin:
            slower[k] = found(max(least, up))
        elif -off > max(least, down) * sigma[k] and off < min(rs) - margin:
            faster[k] = found(-max(least, down))
    return Times(math.exp(now_pace), now_pace / pace_sigma, slower, faster, len(judged), too_few)


def _percentile_95(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _polish(nights: Sequence[Mapping[K, float]]) -> tuple[dict[K, float], list[float]]:
    """Estimate the level of each cell and the pace of each night; the median of the paces is 0."""
    cells = dict.fromkeys(k for night in nights for k in night)
    pace = [0.0] * len(nights)
    level: dict[K, float] = {}
    for _ in range(4):
        level = {k: median(night[k] - p for night, p in zip(nights, pace, strict=True) if k in night) for k in cells}
        if len(cells) >= _CELLS_FOR_PACE:
            pace = [median(t - level[k] for k, t in night.items()) for night in nights]
    middle = median(pace)
    return {k: v + middle for k, v in level.items()}, [p - middle for p in pace]


def same(a: float, b: float) -> bool:
    """Whether two numbers are equal up to float noise. NaN equals NaN, and an infinity equals itself."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= FLOAT_NOISE * max(abs(a), abs(b))


def drifts(history: Sequence[float], new: float) -> bool | None:
    """Whether a number drifted from its history; None if the history varies and is too short to judge.

    A value that occurred before is not a drift. If the last three values were equal, any other value is one. Otherwise
    a drift must lie outside the range of all values by more than the range's width, and deviate from their median by
    more than `limit` σ.

    Args:
        history: earlier values, oldest first, at least one.
    """
    history = history[-MOST_NIGHTS:]
    if any(same(new, old) for old in history):
        return False
    recent = history[-3:]
    if all(same(recent[-1], old) for old in recent):
        return True
    if not math.isfinite(new):
        return True
    finite = [v for v in history if math.isfinite(v)]
    if len(finite) < LEAST_NIGHTS:
        return None
    low, high, middle = min(finite), max(finite), median(finite)
    sigma = _TO_SIGMA * median(abs(v - middle) for v in finite)
    outside = new < low - (high - low) or new > high + (high - low)
    return outside and abs(new - middle) > limit(len(finite)) * sigma
