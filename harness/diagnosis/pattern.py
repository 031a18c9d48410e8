"""Where wrong outputs are: in words, and as a map in text or SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from ..semantics import Product

Bools = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]

#: Cells of a map: along rows of the weights, and along tokens.
WIDTH, HEIGHT = 64, 16
_WARP = 32
_COLOURS = ("#e8f0e8", "#b8d8b8", "#f6d860", "#f0a840", "#e06030", "#a01820")
#: Share of a rectangle of rows and tokens that is wrong, for it to count as one.
_FULL = 0.9


def utilisation(y: npt.NDArray[np.float32], p: Product) -> Doubles:
    """|y - o| / bound of each output, float64[M, N]; infinite for NaN, 0 for a zero bound that is met."""
    with np.errstate(all="ignore"):
        difference = np.abs(y.astype(np.float64) - p.exact)
        ratio = np.where(difference == 0, 0.0, difference / p.bound)
    return np.where(np.isnan(ratio), np.inf, ratio)


def pattern(bad: Bools, blocks: Sequence[int] = ()) -> list[str]:
    """What the wrong outputs, bool[M, N], follow: rows, tokens, tiles, lanes of warps, K.

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
        about = [f"{kind} {_which(any_of)}" for kind, any_of in (("rows", rows), ("tokens", tokens))
                 if not any_of.all()]  # fmt: skip
        yield f"{share}: " + (" × ".join(about) if about else "nearly everywhere")
    elif (lanes := _lanes(bad)) is not None:
        yield f"{share}: lanes {_ranges(lanes)} of each warp of {_WARP} outputs"
    else:
        yield f"{share}: scattered over {int(rows.sum())} rows and {int(tokens.sum())} tokens"
    if blocks:
        some = sorted(set(blocks))
        yield f"along K, the first wrong block: {_ranges(np.array(some))}"


def _which(wrong: Bools) -> str:
    """The indices in words: a period of a power of two, or ranges."""
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
            return f"{_ranges(np.flatnonzero(whole[0]))} of every {period} (tiles of {period})"
        period *= 2
    first, last = int(at[0]), int(at[-1])
    if last == n - 1 and len(at) == n - first and first:
        tile = first & -first
        begins = f", where a tile of {tile} begins" if tile >= 8 else ""
        return f"{first} to the last{begins}"
    return _ranges(at)


def _lanes(bad: Bools) -> npt.NDArray[np.intp] | None:
    """Lanes of warps that are wrong, where outputs are counted one after the other and the rest are right."""
    flat = bad.ravel()
    if flat.size < 2 * _WARP:
        return None
    lanes = flat[: flat.size // _WARP * _WARP].reshape(-1, _WARP)
    share = lanes.mean(axis=0)
    wrong = share >= _FULL
    return np.flatnonzero(wrong) if wrong.any() and not (share[~wrong] > 0).any() else None


def _ranges(at: npt.NDArray[np.intp], most: int = 6) -> str:
    """1, 4 to 7, …"""
    cuts = np.flatnonzero(np.diff(at) > 1) + 1
    runs = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in np.split(at, cuts)]
    return ", ".join(runs[:most]) + (f" and {len(runs) - most} more" if len(runs) > most else "")


def _cells(ratio: Doubles) -> Doubles:
    """The largest of each cell, at most [HEIGHT, WIDTH]."""
    m, n = ratio.shape
    down, across = -(-m // HEIGHT), -(-n // WIDTH)
    cells = np.maximum.reduceat(ratio, np.arange(0, m, down), axis=0)
    return np.asarray(np.maximum.reduceat(cells, np.arange(0, n, across), axis=1))


def heat_map(ratio: Doubles) -> list[str]:
    """Utilisation [M, N] as lines of at most 64 characters, rows of the weights across, tokens down, and a legend.

    `.` is right (up to 1); a digit is the power of ten of the worst in the cell, 9 also stands for more; `#` is NaN or
    infinite.
    """
    if not ratio.size:
        return []
    cells = _cells(ratio)
    with np.errstate(all="ignore"):
        power = np.clip(np.floor(np.log10(np.where(np.isfinite(cells), np.maximum(cells, 1), 1))), 0, 9).astype(int)
    lines = [
        "".join(
            "#" if not np.isfinite(c) else "." if c <= 1 else str(p) for c, p in zip(values, powers, strict=True)
        )
        for values, powers in zip(cells, power, strict=True)
    ]  # fmt: skip
    m, n = ratio.shape
    return [
        *lines,
        f"{n:,} rows across, {m:,} tokens down; . within the bound, 0…9 the power of ten by which it is exceeded, # "
        "not finite",
    ]


def svg(ratio: Doubles, title: str = "") -> str:
    """The same map as an SVG document; the title is escaped."""
    size = 10
    cells = _cells(ratio) if ratio.size else np.zeros((0, 0))
    height, width = cells.shape
    safe = escape("".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in title))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(1, width * size)} {height * size + 16}">',
        f"<title>{safe}</title>",
        f'<text x="0" y="12" font-size="10" font-family="monospace">{safe}</text>',
    ]
    limits = (0.1, 1, 10, 1000, 1e6)
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            colour = _COLOURS[int(np.searchsorted(limits, value))] if np.isfinite(value) else "#202020"
            place = f'x="{j * size}" y="{i * size + 16}" width="{size}" height="{size}"'
            lines.append(f'<rect {place} fill="{colour}"><title>{value:.3g}</title></rect>')
    return "\n".join([*lines, "</svg>"]) + "\n"
