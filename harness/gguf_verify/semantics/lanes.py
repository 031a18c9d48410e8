"""Lane orders: the orders in which kernels add a product, and the errors of an output in them.

A kernel adds the products p[k] of an output in lanes: SIMD lanes, threads, unrolled accumulators, parts of K. The
spread of `exact` assumes that terms are added in ascending k, and that the sums in lanes have random signs. Structured
data break both assumptions: activations that alternate in runs leave each lane with a sum of one sign, and a late
outlier is in every partial sum of a kernel that begins with it. So an output whose score fails is judged again, by the
orders of real kernels. For an order whose lanes hold the partial sums S[l, i] of terms t[l, i], and are added in a tree
with the sums R[j], there are n roundings, each of at most u times its operand:

    variance    V = Σ_l Σ_i (S[l, i]² + 2·t[l, i]²) + Σ_j R[j]²
    deviation   u/√3·√V, for independent roundings, each uniform within half an ulp
    most        |y - o| ≤ u·Σ|rounded values| ≤ u·√(n·V) = √(3n) deviations (Cauchy and Schwarz), to first order in u

Deviation and n are the largest of all orders below. Between the score's limit and √(3n) deviations an error is only
possible if roundings have one sign, as in rows of identical blocks: a suspicion. Beyond, none of these orders explains
it.

    lanes within a block   runs of 1 to 16 values, values that are congruent modulo 2 to 16, and runs of 4 of both
                           halves (low and high nibbles); a lane adds its values exactly, as integers
    lanes of blocks        blocks that are congruent modulo 1, 2, 8 and 32
    values                 where each value is added by itself: L lanes that take g values at a time, in turn
    beginning              a lane may begin anywhere and wrap around: with prefix sums P and the total T,
                           Σ_i S² = Σ_i (P[i] - P[r] + T·[i ≤ r])² where it begins behind r; the largest counts

If a term has two parts (a minimum or a zero point), these may be added separately, together, or in turn: the variances
of the sum and of both parts are added. Each lane may add its share of a stored s.

Sums in half are judged by one lane, and by two that take runs of 1 to 32 values in turn, if their score fails, and if
their bound has no power (`closer`). Their roundings may have one sign, so the drift of each order counts too, as in
`half_sums`: |Σ e| of the terms, and of their halves. For two parts it is that of their sum or of both, whichever is
larger. A scale d_w·d_a that underflows has an error of at most η = 2^-25, times the block's integer sum, in either
direction; each product of values of η. The tolerance is drift + 8 deviations, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
import numpy.typing as npt

from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from .accumulation import IN_FLOAT16, LANES_LIMIT, SCORE_LIMIT
from .definition import Semantics
from .elements import round_to
from .half_sums import half_grid
from .narrow import HALF
from .sums import UNIT_ROUNDOFF, Doubles, Errors, ErrorsOf, Lanes, LaneSpread, Product, Rows
from .values import Activations, by_slice, term_values

Bytes = npt.NDArray[np.uint8]

#: Products of values that are held at a time, and of all outputs that are examined.
_HELD, _MOST = 1 << 20, 1 << 23
#: Lanes of blocks; lanes of values, and the values that one takes at a time.
_BLOCK_LANES, _VALUE_LANES, _RUNS = (1, 2, 8, 32), (1, 8, 32, 256, 1024), (1, 4, 16)


@dataclass(frozen=True)
class _Parts:
    """The addends of some outputs: the products of values in one part or two, float64[nb, values, outputs] each.

    Args:
        each_value: whether values are added one by one, not as exact sums of a block's.
        integers: Σ q_w·q_a of each block float64[nb, outputs], the factor of a scale; None for values.
    """

    parts: tuple[Doubles, ...]
    each_value: bool
    integers: Doubles | None = None

    @property
    def ways(self) -> tuple[Doubles, ...]:
        """The sum of the parts, and each of them if there are two."""
        return self.parts if len(self.parts) == 1 else (self.parts[0] + self.parts[1], *self.parts)

    def orders(self) -> Iterator[tuple[Doubles, ...]]:
        """Return, in every order, the terms of each way: float64[steps, lanes, outputs]."""
        return zip(*map(_by_value if self.each_value else _by_block, self.ways), strict=True)

    def few_orders(self) -> Iterator[tuple[Doubles, ...]]:
        """Yield the same in one lane, and in two lanes that take runs in turn.

        These have the largest sums of the orders in which the addends of a lane have the same sign.
        """
        for run in (None, 1, 2, 4, 8, 16, 32):
            yield tuple(_in_turn(terms, run, self.each_value) for terms in self.ways)


def with_lanes(p: Product, semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> Product:
    """Add the spread by lane orders to a product of weights uint8[N, row bytes] and activations uint8[M, row bytes].

    Its limit is the lower one if it only holds roundings of float32 sums.
    """
    of = lanes_of(semantics, fmt, w, x)
    return p if of is None else replace(p, lanes=of, limit=LANES_LIMIT if _rounds_sums_alone(semantics) else p.limit)


def _rounds_sums_alone(semantics: Semantics) -> bool:
    inner = semantics.inside or semantics
    in_float32 = inner.accumulation.independent and semantics.output == "float32" and semantics.epilogue is None
    return in_float32 and inner.term.weights in ("", "float32")


def lanes_of(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> Lanes | None:
    """Return the spread by lane orders for weights uint8[N, row bytes] and activations uint8[M, row bytes].

    It is that of the product before any fused operation. None for sums in tensor cores, whose spread already holds the
    running error, and for a term, or an author's oracle, that does not say what is added.
    """
    inner = semantics.inside or semantics
    in_half = inner.accumulation.name == "float16"
    added = semantics.oracle is None and (inner.term.splits or isinstance(fmt, ElementFormat))
    if not added or not (inner.accumulation.independent or in_half):
        return None
    k = _columns(fmt, w)

    def of(tokens: Rows, rows: Rows) -> LaneSpread:
        if in_half:  # an error beyond the tolerance is no suspicion
            tolerance = _tolerance(*_half_sums(semantics, fmt, w[rows], x[tokens]))
            return LaneSpread(tolerance / SCORE_LIMIT, np.zeros(len(rows)))
        found = _of_outputs(lambda parts: astuple(_widest(parts)), semantics, fmt, w[rows], x[tokens])
        return LaneSpread(*found)

    return Lanes(of, max(1, _MOST // k))


def half_errors(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> ErrorsOf:
    """Return the errors of sums in half for weights uint8[N, row bytes] and activations uint8[M, row bytes].

    Only for block sums and for minima that are added separately; `half_sums` has those of values.
    """

    def of(tokens: Rows, rows: Rows) -> Errors:
        at = np.repeat(tokens, len(rows)), np.tile(rows, len(tokens))
        found = _half_sums(semantics, fmt, w[at[1]], x[at[0]])
        drift, deviation = (each.reshape(len(tokens), -1) for each in found)
        return Errors(_tolerance(drift, deviation), drift, deviation)

    return of


def _columns(fmt: WeightFormat, w: Bytes) -> int:
    return max(1, int(w.shape[1]) // fmt.block_bytes * fmt.block_size)


def _of_outputs(
    made_of: Callable[[_Parts], tuple[Doubles, ...]], semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes
) -> tuple[Doubles, ...]:
    """Apply `made_of` to the parts of outputs, each of a row of weights uint8[E, row bytes] and its own activations."""
    step, found = max(1, _HELD // _columns(fmt, w)), []
    with np.errstate(all="ignore"):
        for at in range(0, len(w), step):
            found += [made_of(parts) for parts in _parts_of(semantics, fmt, w[at : at + step], x[at : at + step])]
    return tuple(np.concatenate(each) for each in zip(*found, strict=True))


def _half_sums(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> tuple[Doubles, ...]:
    """Return drift and deviation of outputs, as in `_of_outputs`."""
    k = _columns(fmt, w)
    return _of_outputs(lambda parts: _half_errors(parts, k), semantics, fmt, w, x)


def _tolerance(drift: Doubles, deviation: Doubles) -> Doubles:
    return drift + IN_FLOAT16.deviations * deviation


def _half_errors(of: _Parts, k: int) -> tuple[Doubles, Doubles]:
    """Return drift and deviation of sums in half, each in the order in which it is largest."""
    outputs = of.parts[0].shape[-1]
    drift, squares = np.zeros(outputs), np.zeros(outputs)
    for ways in of.few_orders():
        together, *apart = (half_drift(terms) for terms in ways)
        drift = np.fmax(drift, np.fmax(together, sum(apart)) if apart else together)
        squares = np.fmax(squares, sum(variance(terms) for terms in ways))
    squares *= IN_FLOAT16.unit**2
    if of.integers is not None:
        squares += IN_FLOAT16.underflow**2 * (of.integers**2).sum(axis=0)
    return drift + k * IN_FLOAT16.underflow, np.sqrt(squares / 3)


def half_drift(terms: Doubles) -> Doubles:
    """Return |Σ e| of terms float64[steps, lanes, E] that are added in half: see `half_sums`."""
    grid = half_grid(np.cumsum(terms, axis=0))
    off = [(np.rint(added / grid) * grid - terms).sum(axis=(0, 1)) for added in (terms, HALF.rounded(terms))]
    return np.asarray(np.abs(off).max(axis=0))


def _parts_of(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> Iterator[_Parts]:
    """Yield the parts of outputs, each of a row of weights and its own activations, uint8[E, row bytes] each."""
    if isinstance(fmt, ElementFormat):
        a = round_to(fmt.name, np.ascontiguousarray(x).view(np.float32)).astype(np.float64)
        yield _Parts((by_slice(a * fmt.decode(w).astype(np.float64)),), True)
        return
    inner, taken = semantics, x
    if semantics.inside is not None:
        inner, taken = semantics.inside, semantics.inside.bytes_of(semantics.values_of(x))
    values = term_values(fmt)
    nb = w.shape[1] // fmt.block_bytes * (fmt.block_size // values)
    parts, integers = inner.term.addends(fmt, w, Activations.of(inner.encoding, taken, values, nb))
    yield _Parts(parts, inner.term.of_values or inner.accumulation.by_value, integers)


def _widest(of: _Parts) -> LaneSpread:
    """Return the largest deviation of all orders, and the roundings of the largest error, as a multiple of it."""
    outputs = of.parts[0].shape[-1]
    widest, most = np.zeros(outputs), np.zeros(outputs)
    for ways in of.orders():
        roundings, found = 0, np.zeros(outputs)
        for terms in ways:
            found += variance(terms)
            roundings += 3 * terms.shape[0] * terms.shape[1] + terms.shape[1]
        widest, most = np.fmax(widest, found), np.fmax(most, roundings * found)
    deviation = UNIT_ROUNDOFF / np.sqrt(3) * np.sqrt(widest)
    return LaneSpread(deviation, np.divide(most, widest, out=np.ones(outputs), where=widest > 0))


def _in_turn(products: Doubles, run: int | None, each_value: bool) -> Doubles:
    """Arrange products float64[nb, values, E] in two lanes that take runs of `run` values in turn, or in one lane.

    Returns float64[steps, lanes, E].
    """
    nb, values, outputs = products.shape
    terms = products.reshape(-1, outputs) if each_value else products.sum(axis=1)
    if run is None:
        return terms[:, None]
    if run < values and not each_value:
        return np.asarray(products.reshape(nb, -1, 2, run, outputs).sum(axis=(1, 3)))
    run = run if each_value else run // values
    filled = _filled(terms, 2 * run)
    return filled.reshape(-1, 2, run, outputs).swapaxes(1, 2).reshape(-1, 2, outputs)


def _filled(terms: Doubles, multiple: int) -> Doubles:
    """Append zeros along the first axis, up to a multiple; `np.pad` takes several times as long."""
    lacking = -len(terms) % multiple
    return np.concatenate([terms, np.zeros((lacking, *terms.shape[1:]))]) if lacking else terms


def _by_block(products: Doubles) -> Iterator[Doubles]:
    """Yield the terms of blocks float64[nb, values, E] in every order: float64[steps, lanes, E]."""
    nb, values, outputs = products.shape
    for lane in _within_block(values):
        sums = np.stack([products[:, lane == i].sum(axis=1) for i in range(lane.max() + 1)], axis=1)
        for lanes in _BLOCK_LANES:
            if lanes == 1 or nb >= 2 * lanes:
                filled = _filled(sums, lanes)
                yield filled.reshape(-1, lanes * sums.shape[1], outputs)


def _within_block(values: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the lane of each value of a block."""
    at = np.arange(values)
    yield np.zeros(values, np.intp)
    for size in (1, 2, 4, 8, 16):
        if size < values:
            yield at // size
            if size > 1:
                yield at % size
    if values > 16:
        yield at % 16 // 4


def _by_value(products: Doubles) -> Iterator[Doubles]:
    """Yield values float64[nb, values, E] in every order: float64[steps, lanes, E]."""
    outputs = products.shape[-1]
    flat = products.reshape(-1, outputs)
    for lanes in _VALUE_LANES:
        for run in _RUNS if lanes > 1 else (1,):
            if lanes == 1 or len(flat) >= 2 * lanes * run:
                filled = _filled(flat, lanes * run)
                turns = filled.reshape(-1, lanes, run, outputs).swapaxes(1, 2)
                yield turns.reshape(-1, lanes, outputs)


def variance(terms: Doubles) -> Doubles:
    """Return V of terms float64[steps, lanes, E], each lane of which begins where its partial sums are largest."""
    steps = len(terms)
    partial = np.cumsum(terms, axis=0)
    total = partial[-1]
    before, count = np.cumsum(partial, axis=0), np.arange(1, steps + 1)[:, None, None]
    # Σ_i (P[i] - P[r] + T·[i ≤ r])² for every r
    squares = (partial**2).sum(axis=0) - 2 * partial * before[-1] + steps * partial**2
    squares += 2 * total * (before - count * partial) + count * total**2
    held = squares.max(axis=0).sum(axis=0) + 2 * np.einsum("ile,ile->e", terms, terms)
    level = total
    while len(level) > 1:
        level = _filled(level, 2)
        level = level[0::2] + level[1::2]
        held += (level**2).sum(axis=0)
    return np.asarray(held)
