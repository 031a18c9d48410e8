"""Products of values: activations that are not quantized, by decoded weights.

For each output, in float64, with w as the term defines it: decoded (within one rounding to float32 of d·q + m), or
rounded to half or bfloat16,

    result  o = Σ_k a[k]·w[k]           bound  g(K)·Σ|a|·(|w| + e_w) + Σ|a|·e_w + τ

where g is the growth of the accumulation (`accumulation`; γ_n with n = K + 8 for float32). τ is the loss of products
that underflow, η each, and of numbers below φ that are flushed to zero: K products and as many sums, φ each, and all
terms with an operand below φ: a value a, or a weight below 2^8·φ, whose scale may be below φ (a code is below 2^8). e_w
is the largest error of w itself:

- `half_values`, `bfloat16_values`: w is rounded once, from d·q + m or from the decoded float32. If these two give
  neighbours, e_w is their distance; otherwise 0.
- `half_steps`, `bfloat16_steps`: w = d·q + m exactly, and a kernel rounds each step: the conversion of d, the scale of
  a part, the product with q, the sum with m. That is four roundings of d·q and at most as many of m, so
  e_w = ((1 + u)^4 - 1)·(|d·q| + |m|) + 2·η·(|q| + 2): the scale may underflow, which q then multiplies, and so may both
  products. u and η are those of the type. With an offset m is -offset·d, so it may be subtracted before or after.

e_w is certain, not a deviation: the spread holds 1/32 (SCORE_LIMIT) of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..support.arrays import contiguous, widened
from . import half_sums
from .accumulation import SCORE_LIMIT, Accumulation
from .definition import Semantics
from .device import Device
from .narrow import HALF, NARROW, Narrow
from .order import Order
from .rounding import half_multiply_adds, multiply_adds
from .sums import Doubles, Errors, Floats, Product, in_float32_range, partial_sums, spread_of, walk
from .term import Term

Bytes = npt.NDArray[np.uint8]
_NOTHING: Doubles = np.zeros(0)
#: The root mean square of the error of decoding a weight in steps, as a fraction of its maximum: see `closer`.
_OF_STEPS = 0.3
#: An upper bound of the magnitude of any code.
_MOST_CODE = 2.0**8


@dataclass(frozen=True)
class Activations:
    """Activations, decoded once for all tiles.

    Codes [nb, M, 32 or 16], their magnitudes, d, s and the size of s [nb, M, 1] each; or values [M, K] in float32,
    their magnitudes, and the values in float64.
    """

    q: Floats
    q_abs: Floats
    d: Doubles
    s: Doubles
    s_size: Doubles
    wide: Doubles

    @classmethod
    def of(cls, semantics: Semantics, x: Bytes, values: int, nb: int) -> Activations:
        """Decode tokens uint8[M, row bytes], in rows of nb terms; padding in a last block is dropped."""
        if not semantics.encoding.quantizes:
            floats = semantics.values_of(x)
            return cls(floats, np.abs(floats), _NOTHING, _NOTHING, _NOTHING, floats.astype(np.float64))
        a = semantics.encoding.operands(x, values)
        q = a.q[:nb]
        return cls(q, np.abs(q), a.d[:nb], a.s[:nb], a.s_size[:nb], _NOTHING)

    def apart(self, units: int) -> Activations:
        """Return those of each of `units` parts of a row on its own, as in `Terms.apart`; only for codes."""
        of = {name: parts_apart(getattr(self, name), units) for name in ("q", "q_abs", "d", "s", "s_size")}
        return replace(self, **of)

    def on(self, device: Device) -> Activations:
        """Return the same on a device."""
        there = {of.name: device.put(getattr(self, of.name)) for of in fields(self) if of.name != "q_abs"}
        return Activations(q_abs=np.abs(there["q"]), **there)


def parts_apart(array: npt.NDArray[Any], units: int) -> npt.NDArray[Any]:
    """Reshape [nb, M, …] to [nb/units, units·M, …]: the parts of a row, side by side like tokens."""
    if not array.size:
        return array
    nb, m, last = array.shape
    return array.reshape(units, nb // units, m, last).swapaxes(0, 1).reshape(nb // units, units * m, last)


def term_values(fmt: BlockFormat) -> int:
    """Return the values of a term: 32, or 16 if only 16 share a scale."""
    return min(fmt.group, 32)


def by_term(fmt: BlockFormat, of_groups: Floats) -> Doubles:
    """Convert float32[n, blocks, groups] to float64[nb, 1, n]."""
    per_group = fmt.group // term_values(fmt)
    flat = of_groups.reshape(len(of_groups), -1)
    wide: Doubles = widened(flat)
    return np.repeat(wide, per_group, axis=1).T[:, None, :]


def exact_weights(fmt: BlockFormat, blocks: Bytes) -> Doubles:
    """Return d·q + m of uint8[..., block_bytes], float64[..., block_size], without the rounding of a decoded value."""
    q = fmt.codes(blocks).astype(np.float64)
    q = q.reshape(*q.shape[:-1], fmt.groups, fmt.group)
    q *= fmt.scales(blocks)[..., None]
    q += fmt.minima(blocks)[..., None]
    return q.reshape(*q.shape[:-2], fmt.block_size)


def weights_of(term: Term, fmt: BlockFormat, w: Bytes) -> tuple[Doubles, Doubles | None]:
    """Return the values of weights uint8[n, row bytes], float64[n, K], and their largest errors; None for no error."""
    n = len(w)
    blocks = w.reshape(n, -1, fmt.block_bytes)
    narrow = NARROW.get(term.weights)
    decoded = fmt.decode(blocks).reshape(n, -1)
    if narrow is None:
        return widened(decoded), None
    exact = exact_weights(fmt, blocks).reshape(n, -1)
    if not term.steps:
        once, twice = narrow.rounded(exact), narrow.rounded(decoded)
        off = np.abs(once - twice)
        return once, off if off.any() else None
    d, m = (np.repeat(np.abs(widened(v)), fmt.group, axis=-1) for v in (fmt.scales(blocks), fmt.minima(blocks)))
    q = np.abs(fmt.codes(blocks).astype(np.float64))
    u = (1 + narrow.unit) ** 4 - 1
    return exact, (u * (d * q + m) + 2 * narrow.underflow * (q + 2)).reshape(n, -1)


def value_tile(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Activations, order: Order | None) -> Product:
    """Compute the product of values of activations and values of weights."""
    term, accumulation = semantics.term, semantics.accumulation
    wide, off = weights_of(term, fmt, w)
    result = None
    if order is not None:
        if term.weights != "float32" and not semantics.fused_in_half:
            raise ValueError(f"no definition states the order {order} for values of activations")
        result = values_in_order(semantics, fmt, w, x, order)
    made = of_values(x.wide, wide, term_values(fmt), accumulation, result)
    more = alignment_of_subnormals(x.wide, wide, NARROW.get(term.weights), accumulation, off)
    made = replace(made, bound=made.bound + more, spread=made.spread + more / SCORE_LIMIT)
    if off is None:
        return made
    slack = np.abs(x.wide) @ off.T
    more = slack * (1 + accumulation.growth(x.q.shape[1]))
    return replace(made, bound=made.bound + more, spread=made.spread + more / SCORE_LIMIT)


def in_16_bits(semantics: Semantics) -> bool:
    """Return whether values are added in half, or decoded in steps of 16 bits: then their bound is wide."""
    term = semantics.term
    return not term.minima_apart and (semantics.accumulation.name == "float16" or term.steps)


def value_errors(semantics: Semantics, fmt: BlockFormat, w: Bytes, a: Doubles) -> Errors:
    """Return the errors of correct kernels (`closer`) for values float64[M, K] and weights uint8[n, row bytes]."""
    values, off = weights_of(semantics.term, fmt, w)
    if semantics.accumulation.name == "float16":
        made = half_sums.errors(a, values)
    else:
        spread = of_values(a, values, term_values(fmt), semantics.accumulation).spread
        made = Errors(SCORE_LIMIT * spread, np.zeros_like(spread), spread)
        if not semantics.accumulation.independent:
            made = replace(made, drift=SCORE_LIMIT * spread)
        narrow = NARROW.get(semantics.term.weights)
        made = made.loosened(alignment_of_subnormals(a, values, narrow, semantics.accumulation, off))
    if off is None:
        return made
    by_block = np.stack(
        [
            np.abs(a[:, start : start + fmt.block_size]) @ off[:, start : start + fmt.block_size].T
            for start in range(0, a.shape[1], fmt.block_size)
        ]
    )
    slack = by_block.sum(axis=0) * (1 + semantics.accumulation.growth(a.shape[1]))
    if not semantics.term.steps:
        return made.loosened(slack)
    deviation = np.hypot(made.deviation, _OF_STEPS * np.sqrt((by_block**2).sum(axis=0)))
    return Errors(made.tolerance + slack, made.drift, deviation)


def values_in_order(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Activations, order: Order) -> Floats:
    """Return the bits of the declared order of decoded weights uint8[n, row bytes], float32[M, n].

    Raises ValueError.
    """
    if order.part is not None:
        raise ValueError(f"no definition states the order {order} for values of activations")
    values = fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1)
    if semantics.fused_in_half:  # w is the decoded float32, rounded to half
        return half_multiply_adds(x.wide, HALF.rounded(values))
    return multiply_adds(contiguous(x.q.T), contiguous(values.T))


def of_values(a: Doubles, w: Doubles, size: int, accumulation: Accumulation, ordered: Floats | None = None) -> Product:
    """Compute the product of values float64[M, K] and float64[n, K], with `size` values in a term."""
    by_block = a.reshape(len(a), -1, size).transpose(1, 0, 2)
    w_by_block = w.reshape(len(w), -1, size).transpose(1, 2, 0)
    term = np.matmul(by_block, w_by_block)
    exact, carried = walk(term)
    partial = None
    if accumulation.name == "float16":  # `half2` adds even and odd k separately
        even = np.matmul(by_block[:, :, ::2], w_by_block[:, ::2])
        partial = partial_sums(even) + partial_sums(term - even)
        carried = np.maximum(carried, walk(even)[1] + walk(term - even)[1])
    lanes = np.matmul(by_block**2, w_by_block**2)
    spread = spread_of(term, carried, lanes, size, accumulation, partial)
    magnitude = np.abs(a) @ np.abs(w).T
    lost = (magnitude > 0) * (accumulation.underflow + 2 * accumulation.flushed) * a.shape[1]
    lost = lost + _of_flushed_operands(a, w, accumulation.flushed)
    bound = accumulation.growth(a.shape[1]) * magnitude + lost
    underflow = a.shape[1] * accumulation.underflow if accumulation.name == "float16" else 0.0
    made = Product(exact, bound, spread + lost, ordered, scale=np.sqrt(lanes.sum(axis=0)), underflow=underflow)
    return held(made, magnitude, accumulation)


def alignment_of_subnormals(
    a: Doubles, w: Doubles, narrow: Narrow | None, accumulation: Accumulation, off: Doubles | None = None
) -> Doubles | float:
    """Return the loss in tensor cores due to subnormal factors, beyond the bound of `of_values`, float64[M, n].

    Tensor cores align products by the sum of their factors' exponents, and the exponent of a subnormal factor is that
    of the smallest normal number ν. So the product of a and w is truncated like one of max(|a|, ν)·max(|w|, ν), in the
    one step that adds it. (On an H100 and an H200 outputs have the bits of this model with L = 16, F = 25, and with
    weights of 2^-24 not those of normalized exponents: tests/gpu/test_gpu_tensor_cores.py.) Zeros have no exponent.

    Args:
        narrow: the factors' type; None if they are float32.
        off: the largest error of a weight: one that is 0 here need not be 0 in a kernel.
    """
    if narrow is None or not accumulation.fraction:
        return 0.0
    size_a, size_w = np.abs(a), np.abs(w)
    more_a = np.maximum(narrow.normal - size_a, 0.0) * (size_a > 0)
    more_w = np.maximum(narrow.normal - size_w, 0.0) * ((size_w if off is None else size_w + off) > 0)
    if not (more_a.any() or more_w.any()):
        return 0.0
    more: Doubles = accumulation.unit * (more_a @ (size_w + more_w).T + size_a @ more_w.T)
    return more


def _of_flushed_operands(a: Doubles, w: Doubles, flushed: float) -> Doubles | float:
    """Return Σ|a|·|w| of the values below `flushed`, and of the weights below 2^8 times that, [M, n]."""
    size_a, size_w = np.abs(a), np.abs(w)
    small_a, small_w = size_a * (size_a < flushed), size_w * (size_w < _MOST_CODE * flushed)
    lost: Doubles | float = 0.0
    if small_a.any():
        lost = small_a @ size_w.T
    if small_w.any():
        lost = lost + size_a @ small_w.T
    return lost


def held(p: Product, size: Doubles, accumulation: Accumulation) -> Product:
    """Return the product; not finite where the accumulator of a correct kernel may overflow.

    A correct kernel passes both gates. Its accumulator may overflow in some order, or does so in the declared one.

    Args:
        size: the sum of the magnitudes of all terms.
    """
    if p.ordered is not None:
        return in_float32_range(p)
    reach = size + np.minimum(p.bound, SCORE_LIMIT * p.spread)
    if (reach < accumulation.overflows).all():
        return p
    return replace(p, exact=np.where(reach >= accumulation.overflows, np.copysign(np.inf, p.exact), p.exact))


def apart_tile(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Activations, order: Order | None) -> Product:
    """Compute a product of values of activations, where a block's codes and its minimum are multiplied separately.

    They may also be added separately.
    """
    if order is not None:
        raise ValueError(f"no definition states the order {order} where minima are multiplied apart")
    accumulation = semantics.accumulation
    blocks, values = w.reshape(len(w), -1, fmt.block_bytes), term_values(fmt)
    q = fmt.codes(blocks).astype(np.float64).reshape(len(w), -1, values).transpose(1, 2, 0)  # [nb, 32 or 16, n]
    d, least = by_term(fmt, fmt.scales(blocks)), by_term(fmt, fmt.minima(blocks))
    a = x.wide.reshape(len(x.q), -1, values).transpose(1, 0, 2)  # [nb, M, 32 or 16]
    first, second = d * np.matmul(a, q), least * a.sum(axis=-1, keepdims=True)
    exact, carried = walk(first + second)
    carried += walk(first)[1] + walk(second)[1]
    size = np.abs(a)
    magnitude = (np.abs(d) * np.matmul(size, np.abs(q)) + np.abs(least) * size.sum(axis=-1, keepdims=True)).sum(axis=0)
    lanes = d**2 * np.matmul(a**2, q**2) + least**2 * (a**2).sum(axis=-1, keepdims=True)
    columns = x.q.shape[1]
    scales = np.maximum(1, np.abs(d) + np.abs(least)).max(axis=0)
    lost = (magnitude > 0) * (accumulation.underflow + _MOST_CODE * accumulation.flushed) * 2 * columns * scales
    # Flushed for each value: its product, the sum of its block, its scale, and the sums of blocks, of either kind.
    bound = accumulation.growth(columns + 2 * len(q)) * magnitude + lost
    partial = None if accumulation.independent else partial_sums(first) + partial_sums(second)
    spread = spread_of(first + second, carried, lanes, values, accumulation, partial)
    underflow = 2 * columns * accumulation.underflow if accumulation.name == "float16" else 0.0
    made = Product(exact, bound, spread + lost, None, scale=np.sqrt(lanes.sum(axis=0)), underflow=underflow)
    return held(made, magnitude, accumulation)
