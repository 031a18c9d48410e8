"""A term: the contribution of a block of weights to an output. Each definition has one.

A weight is w = d_w·q_w + m_w, an activation of a block d_a·q_a. `BlockTerm` has the sum of a row's terms with its bound
and spread, from three methods of a formula: the value of a block's term, its magnitude and its roundings. `terms.codes`
has the formulas of products of codes, `terms.values` those of products of values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .accumulation import EXTRA_ROUNDINGS, Accumulation
from .narrow import HALF
from .order import Order
from .placed import Placed
from .sums import Doubles, Errors, Floats, Product, partial_sums, spread_of, walk
from .values import Activations, by_term, held, parts_apart, term_values

Bytes = npt.NDArray[np.uint8]
#: The type to which values of weights are rounded before they are multiplied; "": codes are multiplied.
Rounded = Literal["", "float32", "float16", "bfloat16"]
#: The numbers inside a term that are rounded to half.
Halves = Literal["", "scales", "products"]


@dataclass(frozen=True, kw_only=True)
class Term(ABC):
    """The formula of a block's term.

    Args:
        name: its name in a declaration.
        title: the formula in one line.
        weights: values of weights are multiplied, rounded to this type (a decoded float32 is within one rounding of d·q
            + m); "": codes are multiplied.
        order_known: `bits` states an order of the additions that a kernel may declare.
    """

    name: str
    title: str
    weights: Rounded = ""
    order_known: bool = False

    #: Whether values are multiplied, not codes.
    of_values: ClassVar[bool] = False
    #: Whether the addends of a term are known (`addends`), so that lane orders and faults can be computed.
    splits: ClassVar[bool] = False
    #: Whether d·q and m of a weight are numbers of their own, each of which is rounded, or may overflow.
    in_parts: ClassVar[bool] = False
    #: Whether its bound is so wide that outputs within it are no evidence, unless a kernel declares it.
    wide: ClassVar[bool] = False

    @abstractmethod
    def product(
        self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, x: Activations, order: Order | None
    ) -> Product:
        """Compute the product of weights uint8[n, row bytes] and activations, with its bound and spread.

        Raises ValueError for an order that the term does not state.
        """

    def reads(self, fmt: BlockFormat) -> BlockFormat:
        """Return the format as which weights are read, if the term splits them into blocks in another way."""
        return fmt

    def reads_sum(self, fmt: BlockFormat) -> bool:
        """Return whether the minima of a format, or its offset, are multiplied by the stored s."""
        return False

    def offset(self, fmt: BlockFormat) -> int:
        """Return the number that is subtracted from the codes before the integer product."""
        return 0

    def zero(self, fmt: BlockFormat) -> int:
        """Return the zero point that may be multiplied by the activations' codes separately, in lanes that cancel late.

        llama.cpp's SIMD code does so.
        """
        return 0

    def rounded(self, fmt: BlockFormat) -> Halves:
        """Return which numbers are rounded to half: scales and minima, or their products d_w·d_a and m_w·s."""
        return ""

    def round_scales(self, fmt: BlockFormat, scales: Doubles) -> Doubles:
        """Round scales or minima of weights."""
        return HALF.rounded(scales) if self.rounded(fmt) == "scales" else scales

    def round_products(self, fmt: BlockFormat, products: Doubles) -> Doubles:
        """Round products d_w·d_a or m_w·s."""
        return HALF.rounded(products) if self.rounded(fmt) == "products" else products

    def codes(self, fmt: BlockFormat, blocks: Bytes | Placed) -> Floats:
        """Return the codes that are multiplied, float32[..., block_size] of uint8[..., block bytes]."""
        codes = blocks.codes if isinstance(blocks, Placed) else fmt.codes(blocks)
        q: Floats = codes.astype(np.float32)
        if offset := self.offset(fmt):
            q -= np.float32(offset)
        return q

    def scales(self, fmt: BlockFormat, blocks: Bytes | Placed) -> tuple[Doubles, Doubles]:
        """Return the scales and minima that are multiplied, float64[nb, 1, n] of uint8[n, blocks, block bytes]."""
        d: Doubles
        least: Doubles
        if isinstance(blocks, Placed):
            d, least = blocks.scales.T[:, None, :], blocks.minima.T[:, None, :]
        else:
            d, least = by_term(fmt, fmt.scales(blocks)), by_term(fmt, fmt.minima(blocks))
        return self.round_scales(fmt, d), self.round_scales(fmt, least)

    def finite_scales(self, fmt: BlockFormat, blocks: Bytes) -> npt.NDArray[np.bool_]:
        """Return whether these are finite, for blocks uint8[n, block bytes]: bool[n]."""
        with np.errstate(all="ignore"):
            d, least = (np.isfinite(v).all(axis=(0, 1)) for v in self.scales(fmt, blocks[:, None]))
        return np.asarray(d & least)

    def is_bilinear(self, fmt: BlockFormat) -> bool:
        """Return whether the exact product is one of matrices: nothing is rounded inside an element."""
        return False

    def alike(self, fmt: BlockFormat) -> Hashable:
        """Return a key: terms with the same one have the same product and bound for a format."""
        return self.name

    def addends(self, fmt: BlockFormat, w: Bytes, x: Activations) -> tuple[tuple[Doubles, ...], Doubles | None]:
        """Return the products of values of some outputs, for those that `splits`.

        Each output has a row of weights uint8[E, row bytes] and its own activations.

        Returns:
            the parts that may be added separately, float64[nb, values, E] each, and for codes the root of the sum of
            the squares of the integers by which a block's scales are multiplied, float64[nb, E].
        """
        raise NotImplementedError

    def has_errors(self, accumulation: Accumulation) -> bool:
        """Return whether the errors of correct kernels are known besides the bound, since that is wide: `errors`."""
        return False

    def errors(self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, a: Doubles) -> Errors:
        """Return the errors of correct kernels (`closer`) for values float64[M, K] and weights uint8[n, row bytes]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Blocks:
    """The operands of nb terms, for n rows of weights and M of activations.

    Args:
        fmt: the format of the weights.
        d, least: scales and minima of weights, float64[nb, 1, n].
        sums: the integer sums Σ q_w·q_a, float64[nb, M, n].
        sizes: those of magnitudes, Σ(|q_w| + 2z)·|q_a|, float32[nb, M, n], with z of `exact`.
        x: codes, scales d_a and stored sums s of the activations.
    """

    fmt: BlockFormat
    d: Doubles
    least: Doubles
    sums: Doubles
    sizes: Floats
    x: Activations

    @cached_property
    def scale(self) -> Doubles:
        """The products of scales d_w·d_a, [nb, M, n]."""
        product: Doubles = self.x.d * self.d
        return product

    @cached_property
    def factor(self) -> Doubles:
        """The products m_w·d_a of minima and scales, [nb, M, n]."""
        product: Doubles = self.x.d * self.least
        return product

    @cached_property
    def total(self) -> Doubles:
        """Σ q_a, [nb, M, 1]."""
        sums: Doubles = self.x.q.sum(axis=-1, keepdims=True).astype(np.float64)
        return sums

    def apart(self, units: int, x: Activations) -> Blocks:
        """Return the operands of each of `units` parts of a row, side by side like tokens, [nb/units, units·M, n].

        Args:
            x: the activations of the parts.
        """
        m = self.sums.shape[1]

        def of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return parts_apart(np.broadcast_to(array, (len(array), m, array.shape[2])), units)

        return Blocks(self.fmt, of(self.d), of(self.least), of(self.sums), of(self.sizes), x)


@dataclass(frozen=True)
class Roundings:
    """The errors inside the terms of an output, besides those relative to their magnitudes, [M, n] each.

    Args:
        lost: the largest one: products that underflow, or are flushed to zero, and roundings to fewer bits.
        underflow: the standard deviation of the part below the normal numbers of the accumulation, if not float32.
    """

    lost: Doubles | float = 0.0
    underflow: Doubles | float = 0.0


class BlockTerm(Term):
    """A term of codes of activations. A formula has three methods: `value`, `magnitude` and `roundings`."""

    @abstractmethod
    def value(self, of: Blocks) -> tuple[Doubles, ...]:
        """Return the exact terms float64[nb, M, n], in the parts that a kernel may add separately: one or two."""

    @abstractmethod
    def magnitude(self, of: Blocks) -> Doubles:
        """Return the sum of the magnitudes of all addends of each term, float64[nb, M, n]."""

    @abstractmethod
    def roundings(self, of: Blocks, accumulation: Accumulation) -> Roundings:
        """Return the errors inside the terms, if integer sums are exact."""

    def bits(
        self,
        fmt: BlockFormat,
        scales: tuple[Doubles, Doubles],
        x: Activations,
        order: Order,
        sums: Callable[[slice], Doubles | Floats],
    ) -> Floats:
        """Return the bits of a declared order, float32[M, n].

        Args:
            scales: of `Blocks`.
            sums: returns the integer sums of some terms, [terms, M, n].
        """
        raise ValueError(f"no definition states the order {order} of terms of {self.name}")

    def product(
        self, accumulation: Accumulation, fmt: BlockFormat, w: Bytes, x: Activations, order: Order | None
    ) -> Product:
        return self.sum_of(self.read(fmt, w, x), accumulation, order)

    def read(self, fmt: BlockFormat, w: Bytes | Placed, x: Activations) -> Blocks:
        """Read weights uint8[n, row bytes]."""
        blocks = blocks_of(fmt, w)
        q = self.codes(fmt, blocks).reshape(len(w), -1, term_values(fmt)).transpose(1, 2, 0)
        # float32 holds these integers exactly: 32·255·128 < 2^24.
        sums = np.matmul(x.q, q).astype(np.float64)
        sizes = np.matmul(x.q_abs, np.abs(q) + np.float32(2 * self.zero(fmt)))
        return Blocks(fmt, *self.scales(fmt, blocks), sums, sizes, x)

    def sum_of(self, of: Blocks, accumulation: Accumulation, order: Order | None) -> Product:
        """Add the terms: see `exact` for the bound and the spread."""
        bits = None if order is None else self.bits(of.fmt, (of.d, of.least), of.x, order, lambda part: of.sums[part])
        parts, magnitude, values = self.value(of), self.magnitude(of), term_values(of.fmt)
        inside = self.roundings(of, accumulation)
        term = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        exact, carried = walk(term)
        if len(parts) > 1:
            carried += walk(parts[0])[1] + walk(parts[1])[1]
        added, roundings = len(parts) * len(term), 1
        if accumulation.by_value:
            added, roundings = added + len(term) * (values - 1), values
        size = magnitude.sum(axis=0)
        lost = inside.lost + (size > 0) * accumulation.flushed * (added + EXTRA_ROUNDINGS)
        bound = accumulation.growth(added) * size + lost
        partial = None
        if len(parts) > 1 and not accumulation.independent:
            partial = partial_sums(parts[0]) + partial_sums(parts[1])
        lanes = magnitude**2 / values
        spread = spread_of(term, carried, lanes, roundings, accumulation, partial)
        scale = np.sqrt(lanes.sum(axis=0))
        made = Product(exact, bound, spread + lost, bits, scale=scale, underflow=inside.underflow)
        return held(made, size, accumulation)


def blocks_of(fmt: BlockFormat, w: Bytes | Placed) -> Bytes | Placed:
    """Reshape weights uint8[n, row bytes] to blocks uint8[n, blocks, block bytes]; `Placed` ones are unchanged."""
    return w if isinstance(w, Placed) else w.reshape(len(w), -1, fmt.block_bytes)


def underflow_loss(
    accumulation: Accumulation, scale: Doubles, codes: Floats, d_w: Doubles, d_a: Doubles
) -> Doubles | float:
    """Return the possible underflow loss of products of d_w, d_a and sums of codes, [M, n] from [nb, M, n].

    In half a product of one scale and a sum of codes may underflow even if the product of both scales does not.

    Args:
        scale: d_w·d_a.
    """
    tiny = (scale != 0) & (codes > 0)
    flushed = [(of != 0) & (np.abs(of) < accumulation.flushed) for of in (d_w, d_a)]
    gone = (flushed[0] | flushed[1]) & np.isfinite(scale)
    if accumulation.name != "float16":
        tiny &= np.abs(scale) < accumulation.normal
        if not (tiny.any() or gone.any()):
            return 0.0
    often = codes + np.abs(d_w) + np.abs(d_a) + 64
    lost: Doubles = np.where(tiny, accumulation.underflow * often, 0.0).sum(axis=0)
    if accumulation.flushed:
        lost += np.where(tiny | gone, np.abs(scale) * codes, 0.0).sum(axis=0)
    return lost
