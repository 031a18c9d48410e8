"""The places of wrong outputs: in words, and as a map for reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..semantics.sums import Product

Bools = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]

#: Cells of a map: along rows of the weights, and along tokens.
WIDTH, HEIGHT = 64, 16
_WARP = 32
#: Fraction of a rectangle of rows and tokens that is wrong, for it to count as one.
_FULL = 0.9


def utilisation(y: npt.NDArray[np.float32], p: Product) -> Doubles:
    """Return |y - o| / bound of each output, float64[M, N]; infinite for NaN, 0 for a zero bound that is met."""
    with np.errstate(all="ignore"):
        difference = np.abs(y.astype(np.float64) - p.exact)
        ratio = np.where(difference == 0, 0.0, difference / p.bound)
    return np.where(np.isnan(ratio), np.inf, ratio)


def pattern(bad: Bools, blocks: Sequence[int] = ()) -> list[str]:
    """Describe the common property of the wrong outputs, bool[M, N]: rows, tokens, tiles, lanes of warps, K.

    Args:
        blocks: the first wrong blocks of K of some outputs.
    """
    return list(_pattern(bad, blocks))


def _pattern(bad: Bools, blocks: Sequence[int]) -> Iterator[str]:
    if not bad.any():
        return
    share = f"{int(bad.sum()):,} of {bad.size:,} outputs are wrong"
    rows, tokens = np.asarray(bad.any(axis=0)), np.asarray(bad.any(axis=1))
    of_rectangle = bad[tokens][:, rows].mean()
    if bad.mean() >= _FULL:
        yield f"{share}: everywhere"
    elif of_rectangle >= _FULL:
        about = [
            f"{kind} {_which(any_of)}" for kind, any_of in (("rows", rows), ("tokens", tokens)) if not any_of.all()
        ]
        yield f"{share}: " + (" × ".join(about) if about else "nearly everywhere")
    elif (lanes := _lanes(bad)) is not None:
        yield f"{share}: lanes {ranges(lanes)} of each warp of {_WARP} outputs"
    else:
        yield f"{share}: scattered over {int(rows.sum())} rows and {int(tokens.sum())} tokens"
    if blocks:
        some = sorted(set(blocks))
        yield f"along K, the first wrong block: {ranges(np.array(some))}"


def is_region(bad: Bools) -> bool:
    """Return whether the wrong outputs, bool[M, N], are all of some rows and tokens, all but those, or warp lanes."""
    if _lanes(bad) is not None:
        return True
    for of, full in ((bad, _FULL), (~bad, 1.0)):
        inside = of[of.any(axis=1)][:, of.any(axis=0)]
        if inside.size and inside.mean() >= full:
            return True
    return False


def _which(wrong: Bools) -> str:
    """Describe the indices: a period of a power of two, or ranges."""
    n = len(wrong)
    at = np.flatnonzero(wrong)
    period = 2
    while 2 * period <= n and len(at) > 1:
        whole = wrong[: n // period * period].reshape(-1, period)
        if (
            (whole == whole[0]).all()
            and whole[0].any()
            and (wrong[len(whole) * period :] == whole[0][: n % period]).all()
        ):
            kinds = "tiles or warps" if period == _WARP else "tiles"
            return f"{ranges(np.flatnonzero(whole[0]))} of every {period} ({kinds} of {period})"
        period *= 2
    first, last = int(at[0]), int(at[-1])
    if last == n - 1 and len(at) == n - first and first:
        tile = first & -first
        begins = f", where a tile of {tile} begins" if tile >= 8 else ""
        return f"{first} to the last{begins}"
    return ranges(at)


def _lanes(bad: Bools) -> npt.NDArray[np.intp] | None:
    """Return the lanes of warps that are wrong, if warps take consecutive outputs and all other lanes are correct."""
    flat = bad.ravel()
    if flat.size < 2 * _WARP:
        return None
    lanes = flat[: flat.size // _WARP * _WARP].reshape(-1, _WARP)
    share = lanes.mean(axis=0)
    wrong = share >= _FULL
    return np.flatnonzero(wrong) if wrong.any() and not (share[~wrong] > 0).any() else None


def ranges(at: npt.NDArray[np.intp], most: int = 6) -> str:
    """Format indices as "1, 4 to 7, …"."""
    cuts = np.flatnonzero(np.diff(at) > 1) + 1
    runs = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in np.split(at, cuts)]
    return ", ".join(runs[:most]) + (f" and {len(runs) - most} more" if len(runs) > most else "")


class Map:
    """Utilisation of an output [M, N] on a grid of cells: the largest of each, and its number of wrong outputs.

    A cell has a power of two of rows and of tokens, so that no tile or warp is split between cells.
    """

    def __init__(self, m: int, n: int) -> None:
        self.m, self.n = m, n
        self.tokens, self.rows = _size(m, HEIGHT), _size(n, WIDTH)
        shape = -(-m // self.tokens), -(-n // self.rows)
        self.worst, self.wrong = np.zeros(shape), np.zeros(shape, np.int64)

    def add(self, first: int, ratio: Doubles, bad: Bools) -> None:
        """Add the rows of weights from `first` on, a multiple of `rows`: utilisation [M, n] and which are wrong."""
        at = slice(first // self.rows, first // self.rows - (-ratio.shape[1] // self.rows))
        down, across = np.arange(0, self.m, self.tokens), np.arange(0, ratio.shape[1], self.rows)
        self.worst[:, at] = np.maximum.reduceat(np.maximum.reduceat(ratio, down, axis=0), across, axis=1)
        counts = np.add.reduceat(bad, down, axis=0, dtype=np.int64)
        self.wrong[:, at] = np.add.reduceat(counts, across, axis=1)


def _size(n: int, most: int) -> int:
    """Return the smallest power of two such that `most` cells of this size hold n."""
    return int(2 ** max(0, (-(-n // most) - 1).bit_length()))
