"""Products of codes: d_w·d_a·Σ q_w·q_a + m_w·s, or m_w·d_a·Σ q_a for minima that are not multiplied by a stored s."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...support.arrays import on_host, widened
from ..accumulation import Accumulation
from ..order import Order
from ..rounding import add_rounded, chain_rounded, to_float32
from ..sums import Doubles, Floats
from ..term import Blocks, BlockTerm, Halves, Roundings, blocks_of, underflow_loss
from ..values import Activations, term_values

Bytes = npt.NDArray[np.uint8]

#: Elements of one (terms, M, n) array of a chain (measured).
_ELEMENTS = 1 << 16
#: The same on a GPU, where a call costs more than memory does.
_ON_GPU = 1 << 24


class CodeTerm(BlockTerm):
    """A product of codes. Minima and offsets of blocks are multiplied by s, minima of superblocks by d_a·Σ q_a.

    Subclasses change the offset, the minima that are multiplied by s, or the numbers that are rounded.
    """

    splits = True

    def meets_sum(self, fmt: BlockFormat) -> bool:
        """Return whether a minimum or offset of the format is multiplied by s, if it has one."""
        return fmt.min_times_sum

    def reads_sum(self, fmt: BlockFormat) -> bool:
        fmt = self.reads(fmt)
        return not self.offset(fmt) and self.meets_sum(fmt) and (fmt.has_min or fmt.offset != 0)

    def is_bilinear(self, fmt: BlockFormat) -> bool:
        return self.rounded(fmt) != "products"

    def alike(self, fmt: BlockFormat) -> Hashable:
        return self.reads_sum(fmt), self.offset(fmt), self.zero(fmt), self.rounded(fmt)

    def value(self, of: Blocks) -> tuple[Doubles, ...]:
        first = self.round_products(of.fmt, of.scale) * of.sums
        if self.reads_sum(of.fmt):
            return first, self.round_products(of.fmt, of.x.s * of.least)
        return (first, of.factor * of.total) if of.fmt.has_min else (first,)

    def magnitude(self, of: Blocks) -> Doubles:
        size: Doubles = np.abs(self.round_products(of.fmt, of.scale)) * of.sizes
        if self.reads_sum(of.fmt):
            # A stored s is rounded by the definition, so |m·s| is its magnitude; the parts of a computed s may cancel.
            second = self.round_products(of.fmt, of.x.s * of.least)
            size += np.where(of.x.s_size == np.abs(of.x.s), np.abs(second), of.x.s_size * np.abs(of.least))
        elif of.fmt.has_min:
            size += np.abs(of.factor) * of.x.q_abs.sum(axis=-1, keepdims=True)
        return size

    def roundings(self, of: Blocks, accumulation: Accumulation) -> Roundings:
        """In half the loss of a term below the normal halves is η for each of its two roundings, and η of a scale below
        the normal halves, times the block's integer sum, with random signs.
        """
        scale = self.round_products(of.fmt, of.scale)
        lost = underflow_loss(accumulation, scale, of.sizes, of.d, of.x.d)
        products, terms = [(scale, of.sums)], len(of.sums)
        if self.reads_sum(of.fmt):
            terms *= 2
        elif of.fmt.has_min:
            codes = of.x.q_abs.sum(axis=-1, keepdims=True)
            lost = lost + underflow_loss(accumulation, of.factor, codes, of.least, of.x.d)
            products, terms = [*products, (of.factor, of.total)], terms * 2
        if accumulation.name != "float16":
            return Roundings(lost)
        square = sum(
            (np.where(np.abs(scale) < accumulation.normal, total, 0.0) ** 2).sum(axis=0) for scale, total in products
        )
        return Roundings(lost, accumulation.underflow * (2 * terms + np.sqrt(square)))

    def bits(
        self,
        fmt: BlockFormat,
        scales: tuple[Doubles, Doubles],
        x: Activations,
        order: Order,
        sums: Callable[[slice], Doubles],
    ) -> Floats:
        """Return the bits of a declared order, some terms at a time, so that their arrays stay in the cache."""
        d, least = scales
        nb, outputs, reads_sum = len(d), x.q.shape[1] * d.shape[2], self.reads_sum(fmt)
        shift = -fmt.offset * x.s if reads_sum and fmt.offset else None

        def products(b: slice) -> list[Doubles]:
            """Return the addends of some terms, one fused multiply-add for each."""
            of_codes = sums(b)
            if shift is not None:
                start = np.broadcast_to(shift[b].astype(np.float32), of_codes.shape)
                return [d[b] * widened(add_rounded(x.d[b] * of_codes, start))]
            # A kernel first rounds d_w·d_a and d_a·Σ q_a to float32; for halves these are exact.
            first = to_float32(self.round_products(fmt, x.d[b] * d[b])) * of_codes
            if reads_sum:
                return [first, self.round_products(fmt, x.s[b] * least[b])]
            if fmt.has_min:
                total = x.q[b].sum(axis=-1, keepdims=True).astype(np.float64)
                return [first, to_float32(x.d[b] * total) * least[b]]
            return [first]

        result: Floats | None = None
        part = order.terms(nb, term_values(fmt))
        step = max(1, (_ELEMENTS if on_host(d) else _ON_GPU) // max(1, outputs))
        for start in range(0, nb, part):
            acc: Floats | None = None
            stop = min(start + part, nb)
            for at in range(start, stop, step):
                acc = chain_rounded(products(slice(at, min(at + step, stop))), acc)
            assert acc is not None
            result = acc if result is None else add_rounded(widened(acc), result)
        assert result is not None
        return result

    def addends(self, fmt: BlockFormat, w: Bytes, x: Activations) -> tuple[tuple[Doubles, ...], Doubles | None]:
        values, blocks = term_values(fmt), blocks_of(fmt, w)
        q = self.codes(fmt, blocks).reshape(len(w), -1, values).transpose(1, 2, 0).astype(np.float64)
        d, least = self.scales(fmt, blocks)  # [nb, 1, E]
        q_a, d_a, s = (of.transpose(0, 2, 1) for of in (x.q.astype(np.float64), x.d, x.s))
        scale = self.round_products(fmt, d_a * d)
        first, integers = scale * q_a * q, (q_a * q).sum(axis=1)
        if self.reads_sum(fmt):
            return (first, np.broadcast_to(least * s / values, first.shape)), integers
        if fmt.has_min:
            return (first, least * d_a * q_a), np.hypot(integers, q_a.sum(axis=1))
        if zero_point := self.zero(fmt):
            zero = zero_point * scale * q_a
            return (first + zero, -zero), np.hypot(integers, zero_point * q_a.sum(axis=1))
        return (first,), integers


class IntegerTerm(CodeTerm):
    """The offset is subtracted from the codes before the integer product."""

    def offset(self, fmt: BlockFormat) -> int:
        return fmt.offset


class _ZeroApart(IntegerTerm):
    def zero(self, fmt: BlockFormat) -> int:
        return fmt.zero


class _HalfScales(IntegerTerm):
    """MMQ of llama.cpp since 2025: scales and minima of superblocks, multiplied out, are rounded to half."""

    def meets_sum(self, fmt: BlockFormat) -> bool:
        return True

    def rounded(self, fmt: BlockFormat) -> Halves:
        return "scales" if fmt.has_min and not fmt.min_times_sum else ""


SUMS = CodeTerm(
    name="sums",
    title="d_w·d_a·Σ q_w·q_a + m_w·s; with an offset, d_w·(d_a·Σ q_w·q_a - offset·s); minima of superblocks: "
    "m_w·d_a·Σ q_a",
    order_known=True,
)
INTEGERS = IntegerTerm(
    name="integers",
    title="d_w·d_a·Σ (q_w - offset)·q_a; with a minimum + m_w·s; minima of superblocks: m_w·d_a·Σ q_a",
)
INTEGERS_APART = _ZeroApart(
    name="integers_apart",
    title="as `integers`; the zero point of codes may be multiplied apart, in lanes that cancel late",
)
MMQ_TERM = _HalfScales(
    name="mmq",
    title="d_w·d_a·Σ (q_w - offset)·q_a; with a minimum + m_w·s; d_w and m_w of superblocks are rounded to half",
)
