"""`half_products`: as `sums`, with products of scales and of minima rounded to half, as `__hmul2` does."""

from __future__ import annotations

from ...formats import BlockFormat
from ..term import Term


def _stores_one_minimum(fmt: BlockFormat) -> bool:
    return fmt.has_min and fmt.min_times_sum


HALF_PRODUCTS = Term(
    name="half_products",
    title="half(d_w·d_a)·Σ q_w·q_a + half(m_w·s) of blocks with a minimum; the others as `sums`",
    half_products=_stores_one_minimum,
)
