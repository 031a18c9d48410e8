"""Judgement of a quantized tensor whose importance matrix is unknown.

llama.cpp quantizes with weights: it minimizes Σ w·(x - y)² over a block, where w > 0 grows with the importance of the
column (ggml/src/ggml-quants.c of llama.cpp v0.5.0: `make_qx_quants`, `make_qkx3_quants`, `quantize_row_*_impl`). The
weights are unknown, but much of the result holds for every choice of them:

- **Codes.** A code belongs to a single value, so under given scales the best code is the nearest, whatever the weights.
  Types with superblocks, and the non-linear ones, round the codes after the scale was stored, so each code is the
  nearest under the stored scale. In Q4_0, Q4_1, Q5_0 and Q5_1 the scale is fitted to the codes afterwards, so there is
  some scale (and minimum) under which all codes are the nearest: a system of inequalities, linear in 1/d and m/d, that
  either has a solution or not.
- **Fitted scales.** The fit makes Σ w·q·(x - d·q - m) zero and, if m is fitted too, Σ w·(x - d·q - m). With w > 0 the
  first is possible only if the residuals times q take both signs; both together only if no straight line in q separates
  the positive residuals from the negative ones.
- **Distance.** A tensor's rows share one importance per column. So columns with small errors in most rows are the
  important ones, and w is estimated as the inverse of a column's usual error. Zeros are always a candidate, so a row or
  block that is further from its source than zeros are, under equal weights and under the estimated ones, was not made
  from it.

A block that is merely unlike the rest of its tensor is an outlier, and proves nothing: see `OUTLIER`. Grids (IQ1, IQ2,
IQ3) choose groups of values at once by their weights, so only the distance is judged for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..support.array_types import Bools, Bytes, Doubles

#: Rows of the source, float32[stop - start, K].
Rows = Callable[[int, int], npt.NDArray[np.float32]]
#: Rows of the tensor, uint8[stop - start, blocks of a row, block bytes].
Blocks = Callable[[int, int], Bytes]

#: A block is an outlier if the logarithm of its distance deviates from its tensor's median by more than this many
#: robust standard deviations. Measured: of 1.2 million correct blocks of trained weights (two small models, twelve
#: types, importances of three and of six orders of magnitude) none was one, and none broke a rule.
OUTLIER = 30.0
#: The same unit: a block further from the source than zeros are, and beyond this, cannot be one that the quantizer set
#: to zero.
_FAR = 8.0
#: A block is also an outlier if the logarithm of its best-fitting factor deviates this much from the tensor's median (a
#: factor of nearly two). Blocks nearer to the source than `_NEAR` need no other factor.
_FACTOR, _NEAR = 0.6, 0.15
#: Number of rows to estimate columns' usual errors from, and the least number that allows an estimate.
_ESTIMATED, _FEWEST = 256, 16
_U = 2.0**-24
#: Values per chunk: each needs some two hundred bytes, in each thread.
_CHUNK = 1 << 17
_MOST_THREADS = 8
#: Limit of values in a row: the longest known has 53,248.
MAX_K = 1 << 20
#: Number of values whose errors are held to estimate the columns' usual ones.
_HELD = 1 << 24
#: Blocks whose pairs of values are examined together: 32·32·8 bytes each, a few times.
_PAIRED = 1 << 10


@dataclass(frozen=True)
class Kind:
    """Wrong blocks of one kind: their number, and the index of the first (-1 if there is none)."""

    count: int = 0
    first: int = -1


@dataclass(frozen=True)
class Judgement:
    """A tensor judged against its source, for any importance.

    Args:
        codes: blocks with a code that is not the nearest.
        scales: blocks with a scale that fits no weights, or is zero where another was possible.
        far: blocks further from the source than zeros are, alone or with their whole row.
        outliers: blocks that are unlike the rest but break none of these rules.
        worst: largest deviation of a block from its tensor's median, in robust standard deviations.
        checked: whether codes and scales could be judged one by one; false for grids.
    """

    codes: Kind = Kind()
    scales: Kind = Kind()
    far: Kind = Kind()
    outliers: Kind = Kind()
    worst: float = 0.0
    checked: bool = True

    @property
    def wrong(self) -> bool:
        return bool(self.codes.count or self.scales.count or self.far.count)


def judge(
    fmt: BlockFormat,
    rows: Rows,
    blocks: Blocks,
    n_rows: int,
    k: int,
    n_matrices: int = 1,
    threads: int = 1,
    on_bytes: Callable[[int], object] = lambda _n: None,
) -> Judgement:
    """Judge n_rows rows of k values. They hold n_matrices matrices one after the other, each with its own
    importances."""
    levels = _levels(fmt)
    per_row, of_matrix = k // fmt.block_size, n_rows // n_matrices
    step = max(1, _CHUNK // k)
    found = _Found(np.zeros(n_rows * per_row, np.bool_), np.zeros(n_rows * per_row, np.bool_))
    far, outliers = (np.zeros(n_rows * per_row, np.bool_) for _ in range(2))
    worst = 0.0
    with ThreadPoolExecutor(max(1, min(threads, _MOST_THREADS))) as pool:
        for matrix in range(n_matrices):
            first = matrix * of_matrix
            weights = _weights(fmt, rows, blocks, first, of_matrix, k)

            def look(start: int, weights: Doubles = weights, last: int = first + of_matrix) -> _Distances:
                stop = min(start + step, last)
                with np.errstate(all="ignore"):  # scales and values may not be finite; those never pass
                    return piece(start, stop, weights)

            def piece(start: int, stop: int, weights: Doubles) -> _Distances:
                raw = blocks(start, stop)
                x = rows(start, stop).astype(np.float64)
                y = fmt.decode(raw).reshape(x.shape).astype(np.float64)
                if levels is not None:
                    at = slice(start * per_row, stop * per_row)
                    _check_codes(fmt, levels, x, raw, found.codes[at], found.scales[at])
                on_bytes(raw.nbytes)
                return _distances(fmt, x, y, weights)

            parts = list(pool.map(look, range(first, first + of_matrix, step)))
            d = _Distances(*(np.concatenate([getattr(p, n) for p in parts]) for n in _Distances.__annotations__))
            at = slice(first * per_row, (first + of_matrix) * per_row)
            far[at], outliers[at], most = _unlikely(d)
            worst = max(worst, most)
    outliers &= ~(found.codes | found.scales | far)
    return Judgement(_kind(found.codes), _kind(found.scales), _kind(far), _kind(outliers), worst, levels is not None)


def _kind(wrong: Bools) -> Kind:
    count = int(wrong.sum())
    return Kind(count, int(np.argmax(wrong)) if count else -1)


@dataclass
class _Found:
    codes: Bools
    scales: Bools


# ---- codes and fitted scales -----------------------------------------------------------------------------------------


def _levels(fmt: BlockFormat) -> Doubles | None:
    """Return the possible codes of a value, ascending; None for a grid, in which values do not choose codes alone."""
    if fmt.stored_bits == fmt.bits:
        return np.arange(fmt.low, fmt.low + (1 << fmt.bits), dtype=np.float64)
    if fmt.stored_bits:  # a table maps the bits to codes: random bytes show all of them
        drawn = np.random.default_rng(0).integers(0, 256, (64, fmt.block_bytes), np.uint8)
        return np.unique(fmt.codes(drawn)).astype(np.float64)
    return None


def _half_error(d: Doubles) -> Doubles:
    """Return the relative rounding error of a half with the value d."""
    with np.errstate(divide="ignore"):
        return np.maximum(2.0**-11, np.where(d == 0, 0, 2.0**-25 / np.abs(d)))


def _check_codes(fmt: BlockFormat, levels: Doubles, x: Doubles, raw: Bytes, codes: Bools, scales: Bools) -> None:
    """Mark blocks whose codes, or whose scales, fit no weights. x[rows, K], raw[rows, blocks, bytes]."""
    flat = raw.reshape(-1, fmt.block_bytes)
    shape = (-1, fmt.groups, fmt.group)
    values = x.reshape(shape)
    q = fmt.codes(flat).astype(np.float64).reshape(shape)
    d = fmt.scales(flat).astype(np.float64)[..., None]
    m = fmt.minima(flat).astype(np.float64)[..., None]
    steps = levels
    if fmt.offset:  # d·(code - offset): the minimum is not a field
        q, steps, m = q - fmt.offset, levels - fmt.offset, np.zeros_like(m)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # the quantizer's search may have used the scale before it was rounded to a half
        names = fmt.dtype.names or ()
        stored = fmt.view(flat)["d"].astype(np.float64).reshape(-1, 1, 1) if "d" in names else d
        rho = _half_error(stored)
        size = np.abs(d * q) + np.abs(values - m)
        rounded = rho * size + (_half_error(m) if fmt.legacy else rho) * np.abs(m)
        slack = 2 * rounded + 8 * _U * (size + np.abs(m))
        nearest = _nearest(steps, np.where(d == 0, 0, (values - m) / d))
        excess = np.abs(values - d * q - m) - np.abs(values - d * nearest - m)
        off = (d != 0) & ~(excess <= slack)
        some = off.any(axis=(1, 2))
        scales |= _zero_scales(values, d, m, steps)
    if not fmt.legacy:
        codes |= some
        return
    for chunk in _chunks(np.flatnonzero(some)):
        args = values[chunk, 0], q[chunk, 0]
        ends = float(steps[0]), float(steps[-1])
        sign = np.sign(d[chunk, 0, 0])[:, None]
        codes[chunk] |= ~(
            _roundable(*args, *ends, sign) if fmt.has_min else _roundable_through_zero(*args, *ends, sign)
        )
        residual = values[chunk, 0] - d[chunk, 0] * q[chunk, 0] - m[chunk, 0]
        tolerance = rounded[chunk, 0] + 8 * _U * np.abs(values[chunk, 0])
        through_zero = ~np.asarray(fmt.has_min & (m[chunk, 0, 0] != 0))
        scales[chunk] |= ~_fitted(residual, q[chunk, 0], tolerance, through_zero)


def _chunks(numbers: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    for at in range(0, len(numbers), _PAIRED):
        yield numbers[at : at + _PAIRED]


def _nearest(levels: Doubles, t: Doubles) -> Doubles:
    """Return the nearest level of each t."""
    if (np.diff(levels) == 1).all():
        return np.asarray(np.clip(np.rint(t), levels[0], levels[-1]))
    return np.asarray(levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, t)])


def _zero_scales(x: Doubles, d: Doubles, m: Doubles, levels: Doubles) -> Bools:
    """Find blocks with a scale of zero over values that the block's smallest other scale could have represented."""
    most = max(abs(levels[0]), abs(levels[-1]))
    size = np.abs(d[..., 0])
    least = np.where(size > 0, size, np.inf).min(axis=-1, keepdims=True)
    # the smallest nonzero half is 2^-24; half of it already rounds up to it
    least = np.where(np.isfinite(least), least, 2.0**-24)
    return np.asarray(((size == 0) & (np.abs(x - m).max(axis=-1) > 2 * most * least)).any(axis=-1))


_ROUND = 0.5 + 2.0**-16


def _bounds(q: Doubles, low: float, high: float) -> tuple[Doubles, Doubles]:
    """Return the interval of numbers that round to q; it is unbounded at the ends of the range of codes."""
    return np.where(q <= low, -np.inf, q - _ROUND), np.where(q >= high, np.inf, q + _ROUND)


def _roundable_through_zero(x: Doubles, q: Doubles, low: float, high: float, sign: Doubles) -> Bools:
    """Whether one s makes every s·x round to its q; x and q are [n, values], sign[n, 1] is the sign of s."""
    below, above = _bounds(q, low, high)
    x = x * np.where(sign == 0, 1, sign)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(x > 0, below / x, np.where(x < 0, above / x, -np.inf))
        most = np.where(x > 0, above / x, np.where(x < 0, below / x, np.inf))
    zeros = ((x != 0) | ((below <= 0) & (above >= 0))).all(axis=1)
    return np.asarray(zeros & (np.maximum(least.max(axis=1), 0) <= most.min(axis=1)))


def _roundable(x: Doubles, q: Doubles, low: float, high: float, _sign: Doubles) -> Bools:
    """Whether some s > 0 and t make every s·x - t round to its q.

    For a given s, each value allows an interval of t, and intervals on a line have a common point if each two of them
    have (Helly's theorem). Each pair bounds s from one side, so the possible s form an interval.
    """
    below, above = _bounds(q, low, high)
    rise = x[:, :, None] - x[:, None, :]
    need = below[:, :, None] - above[:, None, :]  # s·(x_i - x_j) >= below_i - above_j
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = need / rise
    least = np.where(rise > 0, bound, -np.inf).max(axis=(1, 2))
    most = np.where(rise < 0, bound, np.inf).min(axis=(1, 2))
    level = ((rise != 0) | (need <= 0)).all(axis=(1, 2))
    return np.asarray(level & (np.maximum(least, 0) <= most * (1 + 2.0**-20)))


def _fitted(residual: Doubles, q: Doubles, tolerance: Doubles, through_zero: Bools) -> Bools:
    """Whether weights exist for which no other scale (and minimum) is better. All arrays are [n, values]."""
    up, down = residual > -tolerance, residual < tolerance  # a residual that may be zero counts as both
    # through zero: the signs of q·residual
    more, less = (np.where(q > 0, up, down) & (q != 0)).any(axis=1), (np.where(q > 0, down, up) & (q != 0)).any(axis=1)
    one = (more & less) | (q == 0).all(axis=1)

    # with a minimum: no line a + b·q may be >= 0 on all that is up and <= 0 on all that is down
    def ends(mask: Bools) -> tuple[Doubles, Doubles]:
        return np.where(mask, q, np.inf).min(axis=1), np.where(mask, q, -np.inf).max(axis=1)

    (low_up, high_up), (low_down, high_down) = ends(up), ends(down)
    both = ((low_up < high_down) & (low_down < high_up)) | (up & down).all(axis=1)
    return np.asarray(np.where(through_zero, one, both))


# ---- distances -------------------------------------------------------------------------------------------------------


@dataclass
class _Distances:
    """Distances of each block, in few bytes, because an embedding has tens of millions of blocks.

    Args:
        weighted: squared distance relative to that of zeros, under the estimated weights, float32.
        further: whether it is further than zeros are, under these and under equal weights.
        row: the same for its whole row.
        infinite: whether it is nonzero over a source of zeros, or not finite.
        factor, equal_factor: the factors that would fit it best, under both weights, float32.
    """

    weighted: npt.NDArray[np.float32]
    further: Bools
    row: Bools
    infinite: Bools
    factor: npt.NDArray[np.float32]
    equal_factor: npt.NDArray[np.float32]


def _weights(fmt: BlockFormat, rows: Rows, blocks: Blocks, first: int, n_rows: int, k: int) -> Doubles:
    """Return float64[k]: the inverse of a column's usual squared error, relative to its block."""
    if n_rows < _FEWEST:
        return np.ones(k)
    picked = np.unique(
        np.linspace(first, first + n_rows - 1, min(n_rows, _ESTIMATED, max(_FEWEST, _HELD // k))).astype(int)
    )
    errors = np.empty((len(picked), k), np.float32)
    for i, row in enumerate(picked):
        with np.errstate(all="ignore"):
            errors[i] = _column_errors(fmt, rows, blocks, int(row), k)
    usual = np.quantile(errors, 0.75, axis=0).astype(np.float64)
    return 1 / (usual + 1e-6 * max(float(np.median(usual)), 1e-30))


def _column_errors(fmt: BlockFormat, rows: Rows, blocks: Blocks, row: int, k: int) -> Doubles:
    """Return float64[k]: squared errors of a row, relative to the mean square of their block; 1 if that is zero."""
    x = rows(row, row + 1).astype(np.float64)
    y = fmt.decode(blocks(row, row + 1)).reshape(1, k).astype(np.float64)
    size = (x**2).reshape(-1, fmt.block_size).mean(axis=1).repeat(fmt.block_size)
    return np.asarray(np.nan_to_num(((x - y) ** 2)[0] / size, nan=1.0, posinf=1e30))


def _distances(fmt: BlockFormat, x: Doubles, y: Doubles, weights: Doubles) -> _Distances:
    per_row = x.shape[1] // fmt.block_size

    def of_block(values: Doubles) -> Doubles:
        return np.asarray(values.reshape(-1, fmt.block_size).sum(axis=1))

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error, energy = of_block(weights * (x - y) ** 2), of_block(weights * x**2)
        equal_error, equal_energy = of_block((x - y) ** 2), of_block(x**2)

        def row_further(error: Doubles, energy: Doubles) -> Bools:
            sums = error.reshape(-1, per_row).sum(axis=1) > energy.reshape(-1, per_row).sum(axis=1)
            return np.asarray(sums.repeat(per_row))

        equal = equal_error / equal_energy
        return _Distances(
            (error / energy).astype(np.float32),
            (error > energy) & (equal > 1),
            row_further(error, energy) & row_further(equal_error, equal_energy),
            np.isinf(equal) | (np.isnan(equal) & (equal_error != 0)),
            (of_block(weights * x * y) / of_block(weights * y**2)).astype(np.float32),
            (of_block(x * y) / of_block(y**2)).astype(np.float32),
        )


def _unlikely(d: _Distances) -> tuple[Bools, Bools, float]:
    """Return the blocks that are too far, the outliers, and the largest deviation."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(d.weighted)
        usual = np.isfinite(logs)
        if not usual.any():
            return d.infinite, np.zeros(len(logs), np.bool_), 0.0
        middle = float(np.median(logs[usual]))
        spread = max(1.4826 * float(np.median(np.abs(logs[usual] - middle))), 0.02)
        deviation = np.where(usual, (logs - middle) / spread, 0.0)
        far = (d.further & ((deviation > _FAR) | (middle > 0))) | d.row | d.infinite
        outliers = deviation > OUTLIER
        scaled = d.weighted > _NEAR
        for factor in (d.factor, d.equal_factor):
            logs = np.log(np.abs(factor))
            finite = np.isfinite(logs)
            middle = float(np.median(logs[finite])) if finite.any() else 0.0
            scaled &= (np.abs(logs - middle) > _FACTOR) & finite
    return np.asarray(far), np.asarray(outliers | scaled), float(deviation.max())
