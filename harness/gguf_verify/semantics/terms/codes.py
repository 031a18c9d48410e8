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
from .compiled import Add, Compiled, Second

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
        sums: Callable[[slice], Doubles | Floats],
    ) -> Floats:
        """Return the bits of a declared order, some terms at a time, so that their arrays stay in the cache."""
        second = self._second(fmt, scales[1], x)
        if (compiled := Compiled.of(self, fmt, scales[0], x, second)) is not None:
            made = self._sum(compiled, fmt, scales[0], x, second, order, sums)
            if np.isfinite(made).all():  # else NumPy decides what is infinite, and what is NaN
                return made
        return self._sum(self.add, fmt, scales[0], x, second, order, sums)

    def _sum(
        self,
        add: Add,
        fmt: BlockFormat,
        d: Doubles,
        x: Activations,
        second: Second,
        order: Order,
        sums: Callable[[slice], Doubles | Floats],
    ) -> Floats:
        nb, outputs = len(d), x.q.shape[1] * d.shape[2]
        result: Floats | None = None
        part = order.terms(nb, term_values(fmt))
        step = max(1, (_ELEMENTS if on_host(d) else _ON_GPU) // max(1, outputs))
        for start in range(0, nb, part):
            acc: Floats | None = None
            stop = min(start + part, nb)
            for at in range(start, stop, step):
                b = slice(at, min(at + step, stop))
                acc = add(fmt, d[b], x.d[b], second.terms(b), sums(b), acc)
            assert acc is not None
            result = acc if result is None else add_rounded(widened(acc), result)
        assert result is not None
        return result

    def _second(self, fmt: BlockFormat, least: Doubles, x: Activations) -> Second:
        if self.reads_sum(fmt):
            return Second(-fmt.offset * x.s) if fmt.offset else Second(x.s, least)
        if fmt.has_min:  # a kernel first rounds d_w·d_a and d_a·Σ q_a to float32; for halves these are exact
            total = x.q.sum(axis=-1, keepdims=True).astype(np.float64)
            return Second(to_float32(x.d * total), least)
        return Second()

    def add(
        self, fmt: BlockFormat, d: Doubles, d_a: Doubles, second: Second, sums: Doubles | Floats, acc: Floats | None
    ) -> Floats:
        """Add some terms to `acc`, float32[M, n], one fused multiply-add for each addend; None: to zero.

        Args:
            d, d_a: scales, float64[terms, 1, n] and [terms, M, 1].
            sums: the integer sums, [terms, M, n].
        """
        z, m_w, sums = second.z, second.m_w, sums.astype(np.float64, copy=False)
        if z is not None and m_w is None:
            start = np.broadcast_to(z.astype(np.float32), sums.shape)
            return chain_rounded([d * widened(add_rounded(d_a * sums, start))], acc)
        streams = [to_float32(self.round_products(fmt, d_a * d)) * sums]
        if z is not None and m_w is not None:
            streams.append(self.round_products(fmt, z * m_w) if self.reads_sum(fmt) else z * m_w)
        return chain_rounded(streams, acc)

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
