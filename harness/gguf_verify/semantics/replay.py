"""The bits of an order of summation that was found: its tree, and the arithmetic of a term."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .definition import Semantics
from .repeated import Repeated
from .rounding import to_float32
from .summation import Fused, Rule, Tree, sum_in
from .sums import Doubles, Floats
from .term import Blocks, Term
from .terms.codes import CodeTerm
from .terms.values import ValueTerm
from .values import Activations, term_values

Bytes = npt.NDArray[np.uint8]

#: Elements of arrays [terms, M, n].
_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class FoundOrder:
    """An order that was found for one shape.

    Args:
        tree: of a row's summands.
        rule: the rule that has this tree; None if none is known.
        arithmetic: of its terms.
    """

    tree: Tree
    rule: Rule | Repeated | None
    arithmetic: Arithmetic

    @property
    def words(self) -> str:
        """In a phrase."""
        return f"{self.rule or 'an order without a rule'}, of {self.arithmetic.words}"


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a term in float32.

    Args:
        words: its formula.
        fused: see `sum_in`.
        first: returns a term float64[terms, M, n] without its last rounding; None for the products of values.
    """

    words: str
    fused: Fused
    first: Callable[[Blocks], Doubles] | None = None

    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        """Add the summands of weights uint8[n, row bytes] in the order of a tree, float32[M, n]."""
        return sum_in(tree, _summands(self, term, fmt, w, x), self.fused)


def arithmetics_of_values() -> Iterator[Arithmetic]:
    """Yield what kernels do with a product of values."""
    yield Arithmetic("a·w, rounded", "")
    yield Arithmetic("a·w, fused", "second")


def arithmetics(fmt: BlockFormat, term: CodeTerm) -> Iterator[Arithmetic]:
    """Yield what kernels do with a term."""
    offset = fmt.offset if term.reads_sum(fmt) else 0

    def scaled(of: Blocks) -> Doubles:
        return to_float32(of.scale)

    products: dict[str, Callable[[Blocks], Doubles]] = {
        "(d_w·d_a)·Σ": lambda of: scaled(of) * of.sums,
        "d_w·(d_a·Σ)": lambda of: of.d * to_float32(of.x.d * of.sums),
        "d_a·(d_w·Σ)": lambda of: of.x.d * to_float32(of.d * of.sums),
    }
    if offset:
        products = {
            f"d_w·fma(d_a, Σ, -{offset}·s)": lambda of: of.d * to_float32(of.x.d * of.sums - offset * of.x.s),
            f"d_w·(d_a·Σ - {offset}·s)": lambda of: of.d * to_float32(to_float32(of.x.d * of.sums) - offset * of.x.s),
            f"(d_w·d_a)·Σ - (d_w·{offset}·s)": lambda of: (
                to_float32(scaled(of) * of.sums) - to_float32(offset * of.x.s * of.d)
            ),
        }
    fusing: tuple[tuple[Fused, str], ...] = (("", "rounded"), ("second", "fused"))
    if parts_of(fmt, term) == 2:
        fusing = (*fusing, ("first", "fused with m·s"))
    for formula, first in products.items():
        for fused, how in fusing:
            yield Arithmetic(f"{formula}, {how}", fused, first)


def parts_of(fmt: BlockFormat, term: CodeTerm) -> int:
    return 2 if term.reads_sum(fmt) and fmt.has_min else 1


def _bits(tree: Tree, arithmetic: Arithmetic, semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> Floats:
    """Return the bits of an order, float32[M, n], of activations in the definition's blocks."""
    term, blocks = semantics.term, w.shape[1] // fmt.block_bytes
    terms = blocks * (fmt.block_size // term_values(fmt)) if semantics.encoding.quantizes else blocks
    prepared = Activations.of(semantics.encoding, x, term_values(fmt), terms)
    step = max(1, _ELEMENTS // (blocks * len(x)))
    made: list[Floats] = []
    for start in range(0, len(w), step):
        made.append(arithmetic.add(tree, term, fmt, w[start : start + step], prepared))
    return np.concatenate(made, axis=1)


def _summands(
    arithmetic: Arithmetic, term: Term, fmt: BlockFormat, w: Bytes, x: Activations
) -> Callable[[int], Doubles]:
    """Return the function that returns a summand of all outputs, float64[M, n]."""
    if arithmetic.first is None:
        assert isinstance(term, ValueTerm)
        values, _ = term.values(fmt, w)
        return lambda i: x.wide[:, i, None] * values[:, i]
    assert isinstance(term, CodeTerm)
    of, parts = term.read(fmt, w, x), parts_of(fmt, term)
    first = np.broadcast_to(arithmetic.first(of), of.sums.shape)
    second = np.broadcast_to(of.x.s * of.least, of.sums.shape) if parts == 2 else first
    return lambda i: (first, second)[i % parts][i // parts]


def differing(
    of: FoundOrder, semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, y: Floats
) -> npt.NDArray[np.bool_]:
    """Return which outputs float32[M, N] have other bits than an order gives."""
    inner, taken = _inside(semantics, x)
    with np.errstate(all="ignore"):
        bits = _bits(of.tree, of.arithmetic, inner, fmt, w, taken)
    return np.asarray((bits != y) & ~(np.isnan(bits) & np.isnan(y)))  # the sign of zero is not compared


def _inside(semantics: Semantics, x: Bytes) -> tuple[Semantics, Bytes]:
    """Return the definition of the product, and its activations, for a kernel that quantizes them itself."""
    inner = semantics.inside
    return (semantics, x) if inner is None else (inner, inner.bytes_of(semantics.values_of(x)))
