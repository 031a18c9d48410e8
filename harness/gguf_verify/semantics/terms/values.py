"""Products of values: activations that are not quantized, by decoded weights. See `semantics.values` for the bound.

The largest error e_w of a weight itself:

- `half_values`, `bfloat16_values`: w is rounded once, from d·q + m or from the decoded float32. If these two give
  neighbours, e_w is their distance; otherwise 0.
- `half_steps`, `bfloat16_steps`: w = d·q + m exactly, and a kernel rounds each step: the conversion of d, the scale of
  a part, the product with q, the sum with m. That is four roundings of d·q and at most as many of m, so
  e_w = ((1 + u)^4 - 1)·(|d·q| + |m|) + 2·η·(|q| + 2): the scale may underflow, which q then multiplies, and so may both
  products. u and η are those of the type. With an offset m is -offset·d, so it may be subtracted before or after.

e_w is certain, not a deviation: the spread holds 1/32 (SCORE_LIMIT) of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...support.arrays import contiguous, widened
from .. import half_sums
from ..accumulation import SCORE_LIMIT, Accumulation
from ..narrow import HALF, NARROW
from ..order import Order
from ..rounding import half_multiply_adds, multiply_adds
from ..sums import Doubles, Errors, Floats, Product
from ..term import Term
from ..values import Activations, alignment_of_subnormals, by_slice, exact_weights, of_values, term_values

Bytes = npt.NDArray[np.uint8]
#: The root mean square of the error of decoding a weight in steps, as a fraction of its maximum: see `closer`.
_OF_STEPS = 0.3


class ValueTerm(Term):
    """A product of values, with weights that are rounded once."""

    of_values = splits = True

    def is_bilinear(self, fmt: BlockFormat) -> bool:
        return True

    def alike(self, fmt: BlockFormat) -> Hashable:
        return self.weights, self.wide

    def values(self, fmt: BlockFormat, w: Bytes) -> tuple[Doubles, Doubles | None]:
        """Return the values of weights uint8[n, row bytes], float64[n, K], and their largest errors, if any."""
        blocks = w.reshape(len(w), -1, fmt.block_bytes)
        decoded = fmt.decode(blocks).reshape(len(w), -1)
        narrow = NARROW.get(self.weights)
        if narrow is None:
            return widened(decoded), None
        once, twice = narrow.rounded(exact_weights(fmt, blocks).reshape(len(w), -1)), narrow.rounded(decoded)
        off = np.abs(once - twice)
        return once, off if off.any() else None

    def product(
        self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, x: Activations, order: Order | None
    ) -> Product:
        wide, off = self.values(fmt, w)
        bits = None
        if order is not None:
            if self.weights != "float32" and not (self.order_known and accumulation.name == "float16"):
                raise ValueError(f"no definition states the order {order} for values of activations")
            bits = self.bits(accumulation, fmt, w, x, order)
        made = of_values(x.wide, wide, term_values(fmt), accumulation, bits)
        more = alignment_of_subnormals(x.wide, wide, NARROW.get(self.weights), accumulation, off)
        made = replace(made, bound=made.bound + more, spread=made.spread + more / SCORE_LIMIT)
        if off is None:
            return made
        more = np.abs(x.wide) @ off.T * (1 + accumulation.growth(x.q.shape[1]))
        return replace(made, bound=made.bound + more, spread=made.spread + more / SCORE_LIMIT)

    def bits(self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, x: Activations, order: Order) -> Floats:
        """Return the bits of the declared order of decoded weights uint8[n, row bytes], float32[M, n].

        Sums in half are added by a fused multiply-add of halves. Raises ValueError for an order in parts.
        """
        if order.part is not None:
            raise ValueError(f"no definition states the order {order} for values of activations")
        values = fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1)
        if accumulation.name == "float16":  # w is the decoded float32, rounded to half
            return half_multiply_adds(x.wide, HALF.rounded(values))
        return multiply_adds(contiguous(x.q.T), contiguous(values.T))

    def addends(self, fmt: BlockFormat, w: Bytes, x: Activations) -> tuple[tuple[Doubles, ...], Doubles | None]:
        return (by_slice(x.wide * self.values(fmt, w)[0]),), None

    def has_errors(self, accumulation: Accumulation) -> bool:
        return accumulation.name == "float16"

    def errors(self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, a: Doubles) -> Errors:
        values, off = self.values(fmt, w)
        if accumulation.name == "float16":
            made = half_sums.errors(a, values)
        else:
            spread = of_values(a, values, term_values(fmt), accumulation).spread
            made = Errors(SCORE_LIMIT * spread, np.zeros_like(spread), spread)
            if not accumulation.independent:
                made = replace(made, drift=SCORE_LIMIT * spread)
            made = made.loosened(alignment_of_subnormals(a, values, NARROW.get(self.weights), accumulation, off))
        if off is None:
            return made
        by_block = np.stack(
            [
                np.abs(a[:, start : start + fmt.block_size]) @ off[:, start : start + fmt.block_size].T
                for start in range(0, a.shape[1], fmt.block_size)
            ]
        )
        return self._with_errors(made, by_block, 1 + accumulation.growth(a.shape[1]))

    def _with_errors(self, made: Errors, by_block: Doubles, growth: float) -> Errors:
        """Add the errors of weights, Σ|a|·e_w of each block float64[blocks, M, n]."""
        return made.loosened(by_block.sum(axis=0) * growth)


class _InSteps(ValueTerm):
    """Each step of the decoding may be rounded: the exact product is that of d·q + m, with a slack for the steps."""

    in_parts = wide = True

    def values(self, fmt: BlockFormat, w: Bytes) -> tuple[Doubles, Doubles | None]:
        narrow, blocks = NARROW[self.weights], w.reshape(len(w), -1, fmt.block_bytes)
        d, m = (np.repeat(np.abs(widened(v)), fmt.group, axis=-1) for v in (fmt.scales(blocks), fmt.minima(blocks)))
        q = np.abs(fmt.codes(blocks).astype(np.float64))
        off = ((1 + narrow.unit) ** 4 - 1) * (d * q + m) + 2 * narrow.underflow * (q + 2)
        return exact_weights(fmt, blocks).reshape(len(w), -1), off.reshape(len(w), -1)

    def has_errors(self, accumulation: Accumulation) -> bool:
        return True

    def _with_errors(self, made: Errors, by_block: Doubles, growth: float) -> Errors:
        deviation = np.hypot(made.deviation, _OF_STEPS * np.sqrt((by_block**2).sum(axis=0)))
        return Errors(made.tolerance + by_block.sum(axis=0) * growth, made.drift, deviation)


VALUES = ValueTerm(name="values", title="Σ a·w, w dequantized to float32", weights="float32", order_known=True)
HALF_VALUES = ValueTerm(name="half_values", title="Σ a·half(w)", weights="float16", order_known=True)
BFLOAT16_VALUES = ValueTerm(name="bfloat16_values", title="Σ a·bfloat16(w)", weights="bfloat16")
HALF_STEPS = _InSteps(
    name="half_steps", title="Σ a·w, w dequantized by half arithmetic, each step rounded to half", weights="float16"
)
BFLOAT16_STEPS = _InSteps(
    name="bfloat16_steps",
    title="Σ a·w, w dequantized by bfloat16 arithmetic, each step rounded to bfloat16",
    weights="bfloat16",
)
