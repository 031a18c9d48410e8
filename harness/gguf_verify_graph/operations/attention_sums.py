"""Running sums of attention, Σ_t p[t]·v[t] in ascending t, and bounds of their rounding errors.

p[t] are the weights exp(s[t] - M) with the final maximum M, and P[t] the partial sums. While keys are read, the maximum
is M[t] and the stored sum is exp(M - M[t])·P[t]; a key that sets a new maximum multiplies everything by
exp(M[t-1] - M[t]). In the final scale every rounding of a sum is therefore relative to P[t], whatever the maximum was.

`in_floats`: the running-error bound (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §3.3)

    u·Σ_t (|P[t]| + 3·r[t+1]·|P[t]|)        r[t]: whether key t may set a new maximum

where the 3 stands for half an ulp of the product and an ulp of the exponential (the rounding of its argument adds up
to u·|s[t] - M| and belongs to the score). A sum that is split into parts has the parts' partial sums: each is a
difference of two P, or zero, and so at most the distance of P[t] from the least or the largest P so far. There any key
may set a new maximum of its part, and a second |P[t]| allows for joining parts: seven half ulps for each part of eight
keys or more. Repeated weights and rows of V cause roundings that all go in one direction, so no standard deviation is
used. For large nodes P[t] is computed only before every block of keys; within a block, |P| is at most that value plus
the magnitudes of the block's terms.

`in_lanes`: for a device that adds in float32 in an unknown order. The error of any order is at most
γ_n·Σ_t |p[t]·v[t]|; correct outputs over 600 random keys had 1/140 to 1/700 of that. Kernels give every L-th key, or
every L-th block of keys, to one lane, L = 1, 2, 4, … 32, in ascending order, cut into parts anywhere, and then add
lanes and parts in pairs (flash_attn.comp, fattn-vec.cuh; llama.cpp v0.5.0). The bound is the largest running-error
bound of these orders, with the roundings for new maxima and for joining at each block of keys.

`in_halves`: VKQ16 is rounded to half at each key, u = 2^-11, and where it is rescaled. A processor with arithmetic in
halves (AVX512-FP16) also rounds p[t] and the factor to half; others do not. The running-error bound for halves is so
wide that errors of one per cent pass, so the tolerance is the drift plus eight standard deviations of the other errors
(`semantics.accumulation`: IN_FLOAT16.deviations):

    spread²     Σ_t (u·P[t])²·(1 + 2·r[t+1])/3 + Σ_t (u·p[t]·v[t])²/3 + the errors of subnormal halves
    drift       |Σ_t e[t]|,  e[t] = round(a[t]) - a[t] on the grid of halves at P[t], in the scale of M[t], the largest
                of the addends a[t] = p[t]·v[t], half(p[t])·v[t] and half(half(p[t])·v[t]);
                and |Σ_t (half(p[t]) - p[t])·v[t]|

The drift is the part of the rounding errors that goes in one direction: the stored sum is on the grid, so the rounding
error depends on the addend alone, and where keys are alike and the addend is near the middle of a step, on each of its
bits. Addends below half a step are lost altogether. The tolerance is at most the growth of a sum in any order,
(1 + u)^n - 1 times the sum of all magnitudes with n = 3·keys + 2 roundings, plus the errors of subnormal halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import Doubles, NoDefinition
from gguf_verify.semantics.accumulation import IN_FLOAT16, IN_FLOAT32
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

#: Number of elements of an array [rows, keys, DV] processed at once, so that they fit in a cache; and largest size of a
#: head for which all P of a sum in float32 are computed.
_AT_ONCE, _ALL = 1 << 18, 1 << 22
#: Bits of a float32's exponent; spacing of halves at 1, and of subnormal halves.
_EXPONENT, _STEP, _LEAST = np.uint32(0x7F800000), np.float32(2.0**-10), np.float32(2.0**-24)
#: Number of lanes that share keys; roundings of a lane's sum at each block of keys, three for a new maximum and four
#: for joining it to another part; roundings of the sum of all lanes: eight times two sums are joined, with four each.
_LANES, _AT_A_BLOCK, _JOINED = (1, 2, 4, 8, 16, 32), 7.0, 32.0
#: A key with exp(M[t] - M) below this does not count.
_GONE = 2.0**-100
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """Weights of attention, [rows, keys].

    Args:
        p: exp(s - M), and 0 where the mask excludes a key.
        of_then: exp(s - M[t]), with the largest score up to key t.
        back: exp(M[t] - M).
        read: keys that the mask keeps.
        next_record: whether the next key that is read may set a new maximum.
        split: whether sums may be split into parts at any key.
    """

    p: Doubles
    of_then: Doubles
    back: Doubles
    read: npt.NDArray[np.bool_]
    next_record: npt.NDArray[np.bool_]
    split: bool


def in_floats(w: Weights, v: Doubles) -> Doubles:
    """Return the running-error bound of a float32 sum of v [keys, DV], as [rows, DV]."""
    roundings = (2.0 if w.split else 1.0) * w.read + 3.0 * w.next_record
    return UNIT_ROUNDOFF * _carried(w.p, v, roundings, w.split)


def in_lanes(p: Doubles, v: Doubles, block: int) -> Doubles:
    """Return the largest error over several orders of a float32 sum of v [keys, DV] with weights p [rows, keys].

    Args:
        block: least number of keys for which one maximum is taken.
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
    """Return Σ_t roundings[rows, t]·|P[t]|, or that of sums in parts, as [rows, DV]."""
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
    """Return the error of a sum of v [keys, DV] in halves, [rows, DV]. Raises NoDefinition where it may overflow."""
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
    """Yield, for some keys at a time: their slice, the largest |P| of the sum or of its parts [rows, keys, DV], and v.

    float32 suffices, since these are only magnitudes.
    """
    total = low = high = np.zeros((len(p), v.shape[1]), np.float32)
    factors, values = p.astype(np.float32), v.astype(np.float32)
    step = max(1, _AT_ONCE // max(1, total.size))
    for first in range(0, len(v), step):
        of = slice(first, first + step)
        sums = factors[:, of, None] * values[None, of]
        sums[:, 0] += total
        np.cumsum(sums, axis=1, out=sums)
        total = sums[:, -1].copy()
        if split:  # starting at any earlier key
            below = np.minimum(np.minimum.accumulate(sums, axis=1), low[:, None])
            above = np.maximum(np.maximum.accumulate(sums, axis=1), high[:, None])
            low, high = below[:, -1].copy(), above[:, -1].copy()
            yield of, np.maximum(sums - below, above - sums), values[None, of]
        else:
            yield of, np.abs(sums, out=sums), values[None, of]


def _over_keys(factors: Doubles, sizes: Floats) -> Doubles:
    """Return Σ_t of factors [rows, keys] times sizes [rows, keys, DV]."""
    total: Doubles = np.matmul(factors[:, None].astype(np.float32), sizes)[:, 0].astype(np.float64)
    return total
