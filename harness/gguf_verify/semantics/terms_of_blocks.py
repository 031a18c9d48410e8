"""Terms of blocks of weights in outputs, and the bits of sums in a declared order: see `exact`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..support.arrays import on_host, widened
from .definition import Semantics
from .narrow import HALF
from .order import Order
from .placed import Placed
from .rounding import add_rounded, chain_rounded, to_float32
from .sums import Doubles, Floats
from .values import Activations, by_term, parts_apart, term_values

Bytes = npt.NDArray[np.uint8]

#: Elements of one (terms, M, n) array of a chain (measured).
_ELEMENTS = 1 << 16
#: The same on a GPU, where a call costs more than memory does.
_ON_CARD = 1 << 24


def blocks_of(fmt: BlockFormat, w: Bytes | Placed) -> Bytes | Placed:
    """Reshape weights uint8[n, row bytes] to blocks uint8[n, blocks, block bytes]; `Placed` ones are unchanged."""
    return w if isinstance(w, Placed) else w.reshape(len(w), -1, fmt.block_bytes)


def codes_of(semantics: Semantics, fmt: BlockFormat, blocks: Bytes | Placed) -> Floats:
    """Return the codes that the definition multiplies, float32[..., block_size] of uint8[..., block bytes]."""
    codes = blocks.codes if isinstance(blocks, Placed) else fmt.codes(blocks)
    q: Floats = codes.astype(np.float32)
    if semantics.term.integer_offset(fmt):
        q -= np.float32(fmt.offset)
    return q


def scales_of(semantics: Semantics, fmt: BlockFormat, blocks: Bytes | Placed) -> tuple[Doubles, Doubles]:
    """Return the definition's scales and minima, float64[nb, 1, n] of uint8[n, blocks, block bytes]."""
    d: Doubles
    least: Doubles
    if isinstance(blocks, Placed):
        d, least = blocks.scales.T[:, None, :], blocks.minima.T[:, None, :]
    else:
        d, least = by_term(fmt, fmt.scales(blocks)), by_term(fmt, fmt.minima(blocks))
    if semantics.term.half_scales(fmt):
        d, least = HALF.rounded(d), HALF.rounded(least)
    return d, least


def finite_scales(semantics: Semantics, fmt: BlockFormat, blocks: Bytes) -> npt.NDArray[np.bool_]:
    """Return whether the definition's scales and minima of blocks uint8[n, block bytes] are finite, bool[n]."""
    with np.errstate(all="ignore"):
        of_blocks = scales_of(semantics.inside or semantics, fmt, blocks[:, None])
    d, least = (np.isfinite(v).all(axis=(0, 1)) for v in of_blocks)
    return np.asarray(d & least)


@dataclass(frozen=True)
class Terms:
    """Terms of n rows of weights and M of activations, with nb terms in a row.

    Args:
        d, least: scales and minima float64[nb, 1, n].
        sums: the integer sums Σ q_w·q_a, float64[nb, M, n].
        sizes: those of magnitudes, Σ(|q_w| + 2z)·|q_a|, float32[nb, M, n], with z of `exact`.
        scale: d_w·d_a, [nb, M, n].
        second: the term of the minima, [nb, M, n]; None for none.
        factor, total: m_w·d_a [nb, M, n] and Σ q_a [nb, M, 1], if the second term is their product.
    """

    d: Doubles
    least: Doubles
    sums: Doubles
    sizes: Floats
    scale: Doubles
    second: Doubles | None
    factor: Doubles | None
    total: Doubles | None

    @classmethod
    def of(cls, semantics: Semantics, fmt: BlockFormat, w: Bytes | Placed, x: Activations) -> Terms:
        """Compute the terms of weights uint8[n, row bytes]."""
        traits = semantics.term
        blocks = blocks_of(fmt, w)
        q = codes_of(semantics, fmt, blocks).reshape(len(w), -1, term_values(fmt)).transpose(1, 2, 0)
        d, least = scales_of(semantics, fmt, blocks)
        # float32 holds these integers exactly: 32·255·128 < 2^24.
        sums = np.matmul(x.q, q).astype(np.float64)
        sizes = np.matmul(x.q_abs, np.abs(q) + np.float32(2 * fmt.zero if traits.zero_apart else 0))
        scale = x.d * d
        if traits.half_products(fmt):
            scale = HALF.rounded(scale)
        second: Doubles | None = None
        factor: Doubles | None = None
        total: Doubles | None = None
        if semantics.uses_sum(fmt):
            second = x.s * least
            if traits.half_products(fmt):
                second = HALF.rounded(second)
        elif fmt.has_min:
            factor, total = x.d * least, x.q.sum(axis=-1, keepdims=True).astype(np.float64)
            second = factor * total
        return cls(d, least, sums, sizes, scale, second, factor, total)

    def apart(self, units: int) -> Terms:
        """Return the terms of each of `units` parts of a row, side by side like tokens, [nb/units, units·M, n]."""
        m = self.sums.shape[1]

        def of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            whole = np.broadcast_to(array, (len(array), m, array.shape[2]))
            return parts_apart(whole, units)

        second, factor, total = (None if v is None else of(v) for v in (self.second, self.factor, self.total))
        return Terms(of(self.d), of(self.least), of(self.sums), of(self.sizes), of(self.scale), second, factor, total)

    def in_order(self, semantics: Semantics, fmt: BlockFormat, x: Activations, order: Order) -> Floats:
        """Return the bits of the declared order, float32[M, n]."""
        return in_order(semantics, fmt, (self.d, self.least), x, order, lambda part: self.sums[part])


def in_order(
    semantics: Semantics,
    fmt: BlockFormat,
    scales: tuple[Doubles, Doubles],
    x: Activations,
    order: Order,
    sums: Callable[[slice], Doubles],
) -> Floats:
    """Return the bits of a declared order, float32[M, n], some terms at a time, so that their arrays stay in the cache.

    Args:
        scales: d and least of `Terms`.
        sums: returns the integer sums of some terms, float64[terms, M, n].
    """
    d, least = scales
    nb, outputs = len(d), x.q.shape[1] * d.shape[2]
    has_second, halves = semantics.uses_sum(fmt), semantics.term.half_products(fmt)
    shift = -fmt.offset * x.s if has_second and fmt.offset and not halves else None  # halves times a power of two

    def products(b: slice) -> list[Doubles]:
        """Return the addends of some terms, one fused multiply-add for each."""
        of_codes = sums(b)
        if shift is not None:
            start = np.broadcast_to(shift[b].astype(np.float32), of_codes.shape)
            return [d[b] * widened(add_rounded(x.d[b] * of_codes, start))]
        # A kernel first rounds d_w·d_a and d_a·Σ q_a to float32; for halves these are exact.
        first = _rounded(x.d[b] * d[b], halves) * of_codes
        if has_second:
            second = x.s[b] * least[b]
            return [first, HALF.rounded(second) if halves else second]
        if fmt.has_min:
            total = x.q[b].sum(axis=-1, keepdims=True).astype(np.float64)
            return [first, to_float32(x.d[b] * total) * least[b]]
        return [first]

    result: Floats | None = None
    part = order.terms(nb, term_values(fmt))
    step = max(1, (_ELEMENTS if on_host(d) else _ON_CARD) // max(1, outputs))
    for start in range(0, nb, part):
        acc: Floats | None = None
        stop = min(start + part, nb)
        for at in range(start, stop, step):
            acc = chain_rounded(products(slice(at, min(at + step, stop))), acc)
        assert acc is not None
        result = acc if result is None else add_rounded(widened(acc), result)
    assert result is not None
    return result


def _rounded(scale: Doubles, to_half: bool) -> Doubles:
    """Round a product of scales as the definition does, and then to float32."""
    return to_float32(HALF.rounded(scale) if to_half else scale)
