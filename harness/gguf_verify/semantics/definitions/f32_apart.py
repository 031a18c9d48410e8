"""`f32_apart`: as `f32`, but offsets and minima are multiplied by sums of activations, as in d·Σ q·a - 8·d·Σ a.

The exact product is that of `f32`, with weights that are not rounded. The two sums of a block cancel, so errors are
larger if an activation is large: a value A among small ones leaves up to about u·8·d·A, even if its weight is zero.
Every result that `f32` admits is admitted, too.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ...formats.block import BlockFormat
from ..accumulation import Accumulation
from ..definition import Semantics
from ..encodings.values import FLOAT32
from ..order import Order
from ..sums import Doubles, Product, partial_sums, spread_of, walk
from ..terms.values import Bytes, ValueTerm
from ..values import MOST_CODE, Activations, by_slice, by_term, held, term_values


class _Apart(ValueTerm):
    in_parts = True

    def is_bilinear(self, fmt: BlockFormat) -> bool:
        return False

    def alike(self, fmt: BlockFormat) -> Hashable:
        return self.name

    def product(
        self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, x: Activations, order: Order | None
    ) -> Product:
        """Compute the product; a block's codes and its minimum may also be added separately."""
        if order is not None:
            raise ValueError(f"no definition states the order {order} where minima are multiplied apart")
        blocks, values = w.reshape(len(w), -1, fmt.block_bytes), term_values(fmt)
        q = fmt.codes(blocks).astype(np.float64).reshape(len(w), -1, values).transpose(1, 2, 0)  # [nb, 32 or 16, n]
        d, least = by_term(fmt, fmt.scales(blocks)), by_term(fmt, fmt.minima(blocks))
        a = x.wide.reshape(len(x.q), -1, values).transpose(1, 0, 2)  # [nb, M, 32 or 16]
        first, second = d * np.matmul(a, q), least * a.sum(axis=-1, keepdims=True)
        exact, carried = walk(first + second)
        carried += walk(first)[1] + walk(second)[1]
        size = np.abs(a)
        terms = np.abs(d) * np.matmul(size, np.abs(q)) + np.abs(least) * size.sum(axis=-1, keepdims=True)
        magnitude = terms.sum(axis=0)
        lanes = d**2 * np.matmul(a**2, q**2) + least**2 * (a**2).sum(axis=-1, keepdims=True)
        columns = x.q.shape[1]
        scales = np.maximum(1, np.abs(d) + np.abs(least)).max(axis=0)
        lost = (magnitude > 0) * (accumulation.underflow + MOST_CODE * accumulation.flushed) * 2 * columns * scales
        # Flushed for each value: its product, the sum of its block, its scale, and the sums of blocks, of either kind.
        bound = accumulation.growth(columns + 2 * len(q)) * magnitude + lost
        partial = None if accumulation.independent else partial_sums(first) + partial_sums(second)
        spread = spread_of(first + second, carried, lanes, values, accumulation, partial)
        underflow = 2 * columns * accumulation.underflow if accumulation.name == "float16" else 0.0
        made = Product(exact, bound, spread + lost, None, scale=np.sqrt(lanes.sum(axis=0)), underflow=underflow)
        return held(made, magnitude, accumulation)

    def addends(self, fmt: BlockFormat, w: Bytes, x: Activations) -> tuple[tuple[Doubles, ...], Doubles | None]:
        blocks = w.reshape(len(w), -1, fmt.block_bytes)
        d, least = (
            np.repeat(of(blocks).astype(np.float64).reshape(len(w), -1), fmt.group, axis=1)
            for of in (fmt.scales, fmt.minima)
        )
        codes = fmt.codes(blocks).astype(np.float64).reshape(len(w), -1)
        return (by_slice(d * codes * x.wide), by_slice(least * x.wide)), None

    def has_errors(self, accumulation: Accumulation) -> bool:
        return False


VALUES_APART = _Apart(
    name="values_apart",
    title="d_w·Σ q_w·a + m_w·Σ a, with m_w = -offset·d_w or the minimum",
    weights="float32",
)
F32_APART = Semantics(
    name="f32_apart",
    title="d·Σ q·a + m·Σ a in float32, with m = -offset·d or the minimum",
    source="W4A16 kernels that multiply the offset or the minimum by Σ a",
    encoding=FLOAT32,
    term=VALUES_APART,
    any_format=True,
)
