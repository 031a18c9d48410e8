"""What a history's own noise says about a new number. Robust throughout: medians, and MAD · 1.4826 for σ (which it is
of Gaussian noise; Hampel, The influence curve and its role in robust estimation, 1974)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

K = TypeVar("K")

#: Nights that a judgement needs.
LEAST = 5
#: Nights that it looks at.
MOST = 30
#: Relative differences of float64 sums in another order: not a change.
FLOAT_NOISE = 1e-9
_TO_SIGMA = 1.4826
#: σ beyond which a time is a regression, for a long history; with few nights σ itself is uncertain, see `limit`.
_SIGMAS = 6.0
#: A time must also be off by so many times what the history's own outliers are, so that noise with long tails (a
#: machine that others use) sets its limit itself.
_TAIL = 1.5
#: Cells that tell a night's pace.
_FEW = 3
#: What a clock and a scheduler make of any time, relative: a history of equal times proves no less noise.
_LEAST_SIGMA = 1e-3


def limit(nights: int) -> float:
    """How many σ a time must be off after so many nights."""
    return _SIGMAS * (1 + 6 / nights)


@dataclass(frozen=True)
class Slow:
    """A time against its history.

    Args:
        seconds: measured.
        expected: the history's median, at the night's own pace.
        sigmas: by how many σ of the history it is off; `limit` the number that makes it a regression.
        nights: of the history.
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
        pace: the night's common factor: the median of its times over what the history expects; 1 is as ever, or not
            judged.
        pace_sigmas: by how many σ of the earlier nights' paces that is off: what slows every cell shows here alone.
        slower, faster: what is beyond the noise.
        judged: how many cells were.
        not_judged: nights in the history → how many cells have too few.
    """

    pace: float
    pace_sigmas: float
    slower: Mapping[K, Slow]
    faster: Mapping[K, Slow]
    judged: int
    not_judged: Mapping[int, int]


def judge_times(history: Sequence[Mapping[K, float]], new: Mapping[K, float]) -> Times[K]:
    """Which of a night's times are out of the history's noise.

    log t(night, cell) = pace(night) + level(cell) + noise: pace and level by medians, in turn (Tukey's median polish),
    so that a slow machine moves the pace and not a thousand cells. A cell's σ is that of its own residuals, or of all
    cells' where that is larger, since a few nights may by chance lie close together; and neither what a cell did
    before, in any night, nor an outlier such as other cells had (19 of 20 of them at most) is a regression. Of fewer
    than three cells the median would follow a regression: there the pace is part of the noise.

    Args:
        history: earlier nights on the same machine, oldest first: cell → seconds > 0.
        new: the night.
    """
    nights = [{k: math.log(t) for k, t in night.items() if t > 0} for night in history][-MOST:]
    now = {k: math.log(t) for k, t in new.items() if t > 0}
    counts = {k: sum(k in night for night in nights) for k in now}
    judged = [k for k in now if counts[k] >= LEAST]
    too_few: dict[int, int] = {}
    for n in counts.values():
        if n < LEAST:
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
    up = _TAIL * _most(max(rs) / sigma[k] for k, rs in residuals.items())
    down = _TAIL * _most(-min(rs) / sigma[k] for k, rs in residuals.items())
    now_pace = median(now[k] - level[k] for k in judged) if len(judged) >= _FEW else 0.0
    pace_sigma = max(_TO_SIGMA * median(abs(p) for p in pace), _LEAST_SIGMA)
    slower, faster = {}, {}
    for k in judged:
        off, rs = now[k] - level[k] - now_pace, residuals[k]
        least, margin = limit(len(rs)), _SIGMAS / 2 * common

        def found(sigmas: float, k: K = k, off: float = off, n: int = len(rs)) -> Slow:
            return Slow(math.exp(now[k]), math.exp(level[k] + now_pace), off / sigma[k], sigmas, n)

        # beyond all that this cell did before, too, by as much as tells noise from noise
        if off > max(least, up) * sigma[k] and off > max(rs) + margin:
            slower[k] = found(max(least, up))
        elif -off > max(least, down) * sigma[k] and off < min(rs) - margin:
            faster[k] = found(-max(least, down))
    return Times(math.exp(now_pace), now_pace / pace_sigma, slower, faster, len(judged), too_few)


def _most(values: Iterable[float]) -> float:
    """The largest but for one in twenty."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _polish(nights: Sequence[Mapping[K, float]]) -> tuple[dict[K, float], list[float]]:
    """Level of each cell and pace of each night; the paces' median is 0."""
    cells = dict.fromkeys(k for night in nights for k in night)
    pace = [0.0] * len(nights)
    level: dict[K, float] = {}
    for _ in range(4):
        level = {k: median(night[k] - p for night, p in zip(nights, pace, strict=True) if k in night) for k in cells}
        if len(cells) >= _FEW:
            pace = [median(t - level[k] for k, t in night.items()) for night in nights]
    middle = median(pace)
    return {k: v + middle for k, v in level.items()}, [p - middle for p in pace]


def same(a: float, b: float) -> bool:
    """Equal up to float noise; NaN equals NaN, an infinity itself."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= FLOAT_NOISE * max(abs(a), abs(b))


def drifts(history: Sequence[float], new: float) -> bool | None:
    """Whether a number is beyond what its history shows; None where the history varies and is too short to say.

    A value that was there before is no drift. Where the last three were the same, any other is. Else it must lie
    outside of all that was, by more than their whole range, and beyond `limit` σ.

    Args:
        history: earlier values, oldest first, at least one.
    """
    history = history[-MOST:]
    if any(same(new, old) for old in history):
        return False
    recent = history[-3:]
    if all(same(recent[-1], old) for old in recent):
        return True
    if not math.isfinite(new):
        return True
    finite = [v for v in history if math.isfinite(v)]
    if len(finite) < LEAST:
        return None
    low, high, middle = min(finite), max(finite), median(finite)
    sigma = _TO_SIGMA * median(abs(v - middle) for v in finite)
    outside = new < low - (high - low) or new > high + (high - low)
    return outside and abs(new - middle) > limit(len(finite)) * sigma
