"""Comparisons with a number of calls, `static int calls; if (++calls == 54)`: how many calls away their outcome is.

The same product is observed several times in one process. An operand that changes each time counts calls. From its
steps follows in how many calls it equals the other operand; these calls are then made, in a process of their own.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ....kernels.comparisons import Compared, Comparison, Operands
from ...plan import near
from .observing import Observed

#: The shape that is observed, in units of K, and how often.
_SHAPE, _TIMES = (3, 33, 2), 4
#: Calls beyond the one that is predicted; those of a comparison without a constant step; and the most.
_BEYOND, _UNKNOWN, MOST = 8, 16, 300


@dataclass(frozen=True)
class CallCount:
    """Calls after which a comparison has had each outcome.

    Args:
        place: FILE:LINE.
        calls: None for more than are made.
    """

    place: str
    calls: int | None


def counts_of_calls(observed: Observed) -> dict[Comparison, CallCount]:
    """The comparisons whose operands are other ones each time that a product is made."""
    domain, unit = observed.run.kernel.domain, observed.huge.unit
    m, n, units = _SHAPE
    shape = near(domain.m, m), near(domain.n, n), near(domain.k, units * unit, unit)
    if None in shape or isinstance(observed.needs, str):
        return {}
    # what the first call leaves in memory may be compared in the second one, and then stays
    observed.again(shape)  # type: ignore[arg-type]
    seen = [observed.again(shape) for _ in range(2)]  # type: ignore[arg-type]
    if not _changing(seen):
        return {}
    seen += [observed.again(shape) for _ in range(_TIMES - 2)]  # type: ignore[arg-type]
    return {one: CallCount(one.place, _calls([of[one] for of in seen if one in of])) for one in _changing(seen)}


def _changing(seen: list[Compared]) -> list[Comparison]:
    """Those that have other operands in the last observation, or are made in one of the last two only."""
    one, other = seen[-2:]
    return [
        comparison for comparison in {**one, **other}
        if comparison not in one or comparison not in other or _ends(one[comparison]) != _ends(other[comparison])
    ]  # fmt: skip


def _ends(operands: Operands) -> tuple[float, ...]:
    return *operands.a, *operands.b


def _calls(seen: list[Operands]) -> int | None:
    """Calls from the first one of a process until the operands are equal, or the counter 0: a range test,
    `C > calls - D` without a sign, changes at both. A counter begins near 0, whatever was observed before."""
    most = 0.0
    for at in range(4):
        values, apart = [_ends(of)[at] for of in seen], [of.apart[at % 2] for of in seen]
        steps = {after - before for before, after in itertools.pairwise(values)}
        if len(steps) != 1 or not (step := abs(*steps)) or not all(map(math.isfinite, (step, *apart))):
            continue
        level = values[0] - apart[0] if at < 2 else values[0] + apart[0]
        most = max(most, abs(level) / step, abs(values[0]) / step, abs(apart[0]) / step)
    calls = int(most) + _BEYOND if most else _UNKNOWN
    return calls if calls <= MOST else None
