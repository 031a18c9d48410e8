"""Running sums of attention, Σ_t p[t]·v[t] in ascending t, and what their roundings may add up to.

p[t] are weights exp(s[t] - M) of the final maximum M, and P[t] the partial sums. While keys are read the maximum is
M[t] and the sum held is exp(M - M[t])·P[t]; where a key sets a new maximum, all is multiplied by exp(M[t-1] - M[t]).
Seen from the end, every rounding of a sum is relative to P[t], whatever was the maximum then.

`in_floats`: the running-error bound (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §3.3)

    u·Σ_t (|P[t]| + 3·r[t+1]·|P[t]|)        r[t]: whether key t may set a new maximum

where the three are half an ulp of the product and an ulp of the exponential (what rounding its argument takes adds up
to u·|s[t] - M| and belongs to the score). A sum that is split into parts has the partial sums of those: each is a
difference of two P, at most what P[t] is from the least or the largest P so far, or zero. There any key may be a new
maximum of its part, and a second |P[t]| leaves room for joining parts: seven half ulps for each, of eight keys or more.
Weights and V that repeat make roundings that all go one way, so no standard deviation is taken. Of large nodes P[t] is
looked at before every block of keys alone; within a block |P| is at most that and the magnitudes of the block's terms.

`in_lanes`: of a device that is known to add in float32, but not in which order. No order is off by more than
γ_n·Σ_t |p[t]·v[t]|, of which right outputs over 600 drawn keys had 1/140 to 1/700. Kernels have every L-th key in one
lane, or every L-th block of keys, L = 1, 2, 4, … 32, in ascending order, cut anywhere in parts, and then add lanes and
parts in pairs (flash_attn.comp, fattn-vec.cuh; llama.cpp v0.5.0). The largest running-error bound of these orders
counts, with the roundings of new maxima and of joining at each block of keys.

`in_halves`: VKQ16 is rounded to half at each key, u = 2^-11, and where it is rescaled. A processor with arithmetic of
halves (AVX512-FP16) also rounds p[t] and the factor to half; others do not. The running-error bound of a half is so
wide that faults of a per cent fit in, so the tolerance is the drift and eight standard deviations of the rest
(`semantics.accumulation`: IN_FLOAT16.deviations):

    spread²     Σ_t (u·P[t])²·(1 + 2·r[t+1])/3 + Σ_t (u·p[t]·v[t])²/3 + what subnormal halves take
    drift       |Σ_t e[t]|,  e[t] = round(a[t]) - a[t] on the grid of halves at P[t], in the scale of M[t], the largest
                of the addends a[t] = p[t]·v[t], half(p[t])·v[t] and half(half(p[t])·v[t]);
                and |Σ_t (half(p[t]) - p[t])·v[t]|

The drift is that part of the roundings that goes one way: what is held is on the grid, so what is rounded off depends
on the addend alone, and where keys are alike and it is near the middle of a step, on each bit of it. Addends below half
a step are lost altogether. The tolerance is never more than the growth of a sum in any order, (1 + u)^n - 1 times the
sum of all magnitudes, of n = 3·keys + 2 roundings, beside subnormal ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import Doubles, NoDefinition
from gguf_verify.semantics.accumulation import IN_FLOAT16, IN_FLOAT32
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

#: Elements of an array [rows, keys, DV] that are walked through at once, which a cache holds; of a head up to which all
#: P of a sum in float32 are looked at.
_AT_ONCE, _ALL = 1 << 18, 1 << 22
#: Bits of a float32's exponent; the distance of halves at 1, and of subnormal ones.
_EXPONENT, _STEP, _LEAST = np.uint32(0x7F800000), np.float32(2.0**-10), np.float32(2.0**-24)
#: Lanes that share keys; roundings of what a lane holds at each block of keys, three of them of a new maximum and four
#: of joining it to another part; and of all lanes' sums, if eight times two of them are joined, each with such four.
_LANES, _AT_A_BLOCK, _JOINED = (1, 2, 4, 8, 16, 32), 7.0, 32.0
#: exp(M[t] - M) below which a key counts for nothing.
_GONE = 2.0**-100
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """Of rows of queries, [rows, keys].

    Args:
        p: exp(s - M), and 0 where the mask leaves a key out.
        of_then: exp(s - M[t]), with the largest score up to then.
        back: exp(M[t] - M).
        read: keys that are not left out.
        next_record: whether the next key that is read may set a new maximum.
        split: sums may be split into parts at any key.
    """

    p: Doubles
    of_then: Doubles
    back: Doubles
    read: npt.NDArray[np.bool_]
    next_record: npt.NDArray[np.bool_]
    split: bool


def in_floats(w: Weights, v: Doubles) -> Doubles:
    """The running-error bound of a sum of v [keys, DV] in float32, [rows, DV]."""
    roundings = (2.0 if w.split else 1.0) * w.read + 3.0 * w.next_record
    return UNIT_ROUNDOFF * _carried(w.p, v, roundings, w.split)


def in_lanes(p: Doubles, v: Doubles, block: int) -> Doubles:
    """What a sum of v [keys, DV] with weights p [rows, keys] in float32 may be off by, [rows, DV], if the order is not
    known: the most of some orders.

    Args:
        block: keys, at least, of which a maximum is taken at a time.
    """
    keys, sizes = len(v), p @ np.abs(v)
    most = np.zeros_like(sizes)
    for run, lanes in ((r, n) for r in (1, block) for n in _LANES if r == 1 or (n > 1 and keys > r)):
        of_lane = max(1, block // lanes) if run == 1 else block
        carried, joined = np.zeros_like(sizes), np.zeros_like(sizes)
        lane = np.arange(keys) // run % lanes
        for weights, values in ((p[:, lane == i], v[lane == i]) for i in range(lane.max(initial=0) + 1)):
            roundings = 1 + _AT_A_BLOCK * (np.arange(len(values)) % of_lane == of_lane - 1)
            carried += _carried(weights, values, np.broadcast_to(roundings, weights.shape), True)
            joined += np.abs(weights @ values)
        most = np.maximum(most, carried + _JOINED * joined)
    in_any_order: Doubles = IN_FLOAT32.growth(keys + 3 * (keys // block)) * sizes
    return np.minimum(UNIT_ROUNDOFF * (most + sizes), in_any_order)


def _carried(p: Doubles, v: Doubles, roundings: Doubles, split: bool) -> Doubles:
    """Σ_t of roundings[rows, t] times |P[t]|, or its size in parts, [rows, DV]."""
    rows, (keys, dims) = len(p), v.shape
    carried = np.zeros((rows, dims))
    if rows * v.size <= _ALL:
        for of, held, _ in _partial_sums(p, v, split):
            carried += _over_keys(roundings[:, of], held)
        return carried
    total, low, high = (np.zeros((rows, dims)) for _ in range(3))
    step = max(16, keys // 256)
    for first in range(0, keys, step):
        of = slice(first, first + step)
        size = p[:, of] @ np.abs(v[of])
        low, high = np.minimum(low, total - size), np.maximum(high, total + size)
        reached = high - low if split else np.abs(total) + size
        carried += roundings[:, of].sum(axis=1)[:, None] * reached
        total = total + p[:, of] @ v[of]
    return carried


def in_halves(w: Weights, v: Doubles) -> Doubles:
    """What a sum of v [keys, DV] in halves may be off by, [rows, DV]. Raises NoDefinition where it may overflow."""
    rows, dims = len(w.p), v.shape[1]
    u, eta = IN_FLOAT16.unit, IN_FLOAT16.underflow
    drift, variance = np.zeros((3, rows, dims)), np.zeros((rows, dims))
    counts = w.read & (w.back > _GONE)
    back = np.where(counts, w.back, 0.0)
    to_then = np.divide(1.0, back, out=np.zeros_like(back), where=counts).astype(np.float32)
    rounded = w.of_then.astype(np.float16).astype(np.float64)
    lost = (rounded - w.of_then) * back
    times = u**2 * (1.0 * w.read + 2.0 * w.next_record)
    for of, held, values in _partial_sums(w.p, v, w.split):
        variance += _over_keys(times[:, of], held * held)
        held *= to_then[:, of, None]
        if not held.max(initial=0.0) * (1 + 64 * u) < IN_FLOAT16.overflows:
            raise NoDefinition("attention whose sums in half may overflow")
        grid = np.maximum((held.view(np.uint32) & _EXPONENT).view(np.float32) * _STEP, _LEAST)
        own, in_half = (p[:, of, None].astype(np.float32) * values for p in (w.of_then, rounded))
        addends = (own, own), (in_half, in_half), (in_half.astype(np.float16).astype(np.float32), in_half)
        for total, (added, meant) in zip(drift, addends, strict=True):
            total += _over_keys(back[:, of], np.rint(added / grid) * grid - meant)
    squares = w.p**2 @ v**2
    sizes = w.p @ np.abs(v)
    subnormal = 3 * eta * (back.sum(axis=1)[:, None] + back @ np.abs(v))
    spread = np.sqrt((variance + u**2 * squares) / 3) + subnormal / IN_FLOAT16.deviations
    tolerance = np.abs(drift).max(axis=0) + np.abs(lost @ v) + IN_FLOAT16.deviations * spread
    growth = np.expm1((3 * w.read.sum(axis=1) + 2) * np.log1p(u))[:, None]
    least: Doubles = np.minimum(tolerance, growth * sizes + subnormal)
    return least


def _partial_sums(p: Doubles, v: Doubles, split: bool) -> Iterator[tuple[slice, Floats, Floats]]:
    """Some keys at a time: which, the most that their sums hold, |P| [rows, keys, DV] or of parts, and their v. float32
    is enough, for these are sizes."""
    total = low = high = np.zeros((len(p), v.shape[1]), np.float32)
    factors, values = p.astype(np.float32), v.astype(np.float32)
    step = max(1, _AT_ONCE // max(1, total.size))
    for first in range(0, len(v), step):
        of = slice(first, first + step)
        sums = factors[:, of, None] * values[None, of]
        sums[:, 0] += total
        np.cumsum(sums, axis=1, out=sums)
        total = sums[:, -1].copy()
        if split:  # from any earlier key on
            below = np.minimum(np.minimum.accumulate(sums, axis=1), low[:, None])
            above = np.maximum(np.maximum.accumulate(sums, axis=1), high[:, None])
            low, high = below[:, -1].copy(), above[:, -1].copy()
            yield of, np.maximum(sums - below, above - sums), values[None, of]
        else:
            yield of, np.abs(sums, out=sums), values[None, of]


def _over_keys(factors: Doubles, sizes: Floats) -> Doubles:
    """Σ_t of factors [rows, keys] times sizes [rows, keys, DV]."""
    total: Doubles = np.matmul(factors[:, None].astype(np.float32), sizes)[:, 0].astype(np.float64)
    return total
