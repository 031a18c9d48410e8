"""Common properties of wrong calls of several sizes: partial tiles, multiples, ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..kernels.domain import Extent
from ..results.diagnoses import FaultMatch
from .observed import observed
from .pattern import ranges

Bools = npt.NDArray[np.bool_]

#: Sizes of tiles to look for.
_TILES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
#: A tile is named if the ends of this many calls are wrong; a rule of divisibility needs this many calls of each kind.
_ENOUGH = 3
#: Divisors of sizes to look for.
_DIVISORS = (2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024)


def each(sizes: Sequence[int], of: Callable[[int], Bools]) -> dict[int, Bools]:
    """Return size → which tokens (or rows) are wrong; nothing if a second series of calls gives another answer."""
    first = {n: of(n) for n in sizes}
    return first if all((of(n) == first[n]).all() for n in reversed(sizes)) else {}


def around(
    wrong: dict[int, Bools], of: Callable[[int], Bools], own: int, most: int, domain: Extent
) -> dict[int, Bools]:
    """Add to `wrong` the sizes at which outputs become wrong below the size of the call, and correct again above it."""
    if own not in wrong or not wrong[own].any() or not any(not bad.any() for bad in wrong.values()):
        return wrong

    def is_wrong(n: int) -> bool:
        if n not in wrong:
            wrong[n] = of(n)
        return bool(wrong[n].any())

    def edge(right: int, bad: int) -> None:
        while abs(bad - right) > 1 and (middle := (right + bad) // 2) in domain:
            right, bad = (right, middle) if is_wrong(middle) else (middle, bad)

    below = max((n for n, bad in wrong.items() if n < own and not bad.any()), default=None)
    if below is not None:
        edge(below, own)
    step, last = 1, own
    while (above := own + step) <= most and above in domain:
        if not is_wrong(above):
            edge(above, last)
            break
        step, last = 2 * step, above
    return wrong


def of_sizes(wrong: dict[int, Bools], what: str, size: str, own: int) -> FaultMatch | None:
    """Find the common property of the wrong tokens (or rows) of calls of several sizes; `own` is the failed call's
    size.
    """
    failed = [n for n, of in wrong.items() if of.any()]
    passed = [n for n, of in wrong.items() if not of.any()]
    if not failed or not passed:
        return None
    ends = {tile: {n: np.arange(n) >= n // tile * tile for n in wrong} for tile in _TILES}
    for tile in _TILES:
        whole = any(n % tile == 0 for n in passed)
        fits = all((of == ends[tile][n]).all() or (n < tile and not of.any()) for n, of in wrong.items())
        if whole and fits and len(failed) >= _ENOUGH:
            return observed("partial-tile", f"{what}s past the last whole tile of {tile} are wrong")
    for tile in _TILES:  # only some of those past the last whole tile, in every call that has any
        fits = all(of.any() == bool(n % tile) and not (of & ~ends[tile][n]).any() for n, of in wrong.items())
        if fits and len(passed) > 1 and len(failed) > 1:
            words = f"{what}s past the last whole tile of {tile} are wrong: only where {size} is no multiple of {tile}"
            return observed("partial-tile", words)
    if size == "N" and passed == [1]:
        return None  # rows that disturb each other do not show with one row
    right_somewhere = np.zeros(max(wrong), bool)
    for n, of in wrong.items():
        right_somewhere[:n] |= ~of
    if all((of & right_somewhere[:n]).any() for n, of in wrong.items() if of.any()):
        return _window(size, failed, passed)
    return None


def of_lengths(wrong: dict[int, bool]) -> FaultMatch | None:
    """Find the common property of the K at which calls are wrong."""
    failed, passed = ([n for n, bad in wrong.items() if bad == kind] for kind in (True, False))
    return _window("K", failed, passed) if failed and passed else None


def _window(size: str, failed: Sequence[int], passed: Sequence[int]) -> FaultMatch:
    """Return the fault that some sizes are wrong and others correct, with the condition and the sizes."""
    words = (
        f"only calls of some {size} are wrong{_condition(size, failed, passed)}: of the sizes that were tried, "
        f"{_listed(failed)} are wrong and {_listed(passed)} right, on the same operands"
    )
    return observed(f"window-of-{size.lower()}", words)


def _condition(size: str, failed: Sequence[int], passed: Sequence[int]) -> str:
    """Return the simplest condition that all wrong sizes meet and no correct one; "" if none is known."""
    if min(len(failed), len(passed)) >= _ENOUGH:
        for d in _DIVISORS:
            if all(n % d for n in failed) and not any(n % d for n in passed):
                return f", those where {size} is no multiple of {d}"
            if all(n % d for n in passed) and not any(n % d for n in failed):
                return f", those where {size} is a multiple of {d}"
    if max(passed) < min(failed):
        return f", those from {size} = {min(failed)} on"
    if max(failed) < min(passed):
        return f", those up to {size} = {max(failed)}"
    return ""


def _listed(sizes: Sequence[int]) -> str:
    return ranges(np.array(sorted(sizes)), 12)
