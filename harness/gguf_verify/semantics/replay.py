"""The bits of an order of summation that was found: its tree, and the arithmetic of a term."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .accumulation import PUBLISHED
from .definition import Semantics
from .narrow import HALF, NARROW
from .repeated import Repeated
from .summation import Fused, NoOrder, Rule, Tree, sum_in
from .sums import Doubles, Floats, Rows
from .term import Term
from .terms.values import ValueTerm
from .values import Activations, term_values

Bytes = npt.NDArray[np.uint8]

#: Elements of arrays [terms, M, n].
_ELEMENTS = 1 << 22
#: Outputs with the bits of another arithmetic which show that they were computed by it.
_ENOUGH = 16


@dataclass(frozen=True)
class FoundOrder:
    """An order that was found for one shape.

    Args:
        tree: of a row's summands.
        rule: the rule that has this tree; None if none is known.
        arithmetic: of its terms.
        aside: rows that do not have it: the same weights give other bits in them than in other rows.
        also: orders with other trees that show in no probe of single summands; none if the tree is that of a rule.
    """

    tree: Tree
    rule: Rule | Repeated | None
    arithmetic: Arithmetic
    aside: tuple[int, ...] = ()
    also: tuple[FoundOrder, ...] = field(default=(), repr=False, compare=False)

    @property
    def words(self) -> str:
        """In a phrase."""
        words = f"{self.rule or 'an order without a rule'}, of {self.arithmetic.words}"
        if not self.aside:
            return words
        rows = f"row{'s' * (len(self.aside) > 1)} {', '.join(map(str, self.aside))}"
        return f"{words}; without {rows}, where weights give other bits than in other rows"


@dataclass(frozen=True)
class Arithmetic(ABC):
    """The arithmetic of a term in float32.

    Args:
        words: its formula.
        fused: see `sum_in`.
    """

    words: str
    fused: Fused

    @abstractmethod
    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        """Add the summands of weights uint8[n, row bytes] in the order of a tree, float32[M, n]."""

    @abstractmethod
    def others(self, tree: Tree, term: Term, fmt: BlockFormat) -> Iterator[Arithmetic]:
        """Yield the known arithmetics of the same summands."""


@dataclass(frozen=True)
class ValueArithmetic(Arithmetic):
    """The arithmetic of products of values.

    Args:
        twice: whether weights are rounded to float32 before they are rounded to the definition's type.
        groups: the columns of each summand.
        fraction: F of the tensor cores that add the products of a summand and the sum before; None: they are added
            exactly, and rounded once.
    """

    twice: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    fraction: int | None = None

    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        assert isinstance(term, ValueTerm)
        values, _ = term.values(fmt, w)
        narrow = NARROW.get(term.weights, HALF)
        if self.twice:
            values = narrow.rounded(fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1))

        def summand(i: int) -> Doubles:
            columns = list(self.groups[i])
            made: Doubles = x.wide[:, columns] @ values[:, columns].T
            return made

        def step(i: int, acc: Floats) -> Floats:
            columns = list(self.groups[i])
            return add_in_tensor_cores(x.wide[:, columns], values[:, columns], acc, self.fraction or 0, narrow.least)

        return sum_in(tree, summand, self.fused, step if self.fraction else None)

    def others(self, tree: Tree, term: Term, fmt: BlockFormat) -> Iterator[Arithmetic]:
        assert isinstance(term, ValueTerm)
        return arithmetics_of_values(term, self.groups)


def arithmetics_of_values(term: ValueTerm, groups: tuple[tuple[int, ...], ...]) -> Iterator[ValueArithmetic]:
    """Yield what kernels do with products of values."""
    for twice in (True, False) if term.weights in NARROW else (False,):
        how = f"{term.weights}(float32(w))" if twice else "w"
        if max(len(columns) for columns in groups) == 1:
            yield ValueArithmetic(f"a·{how}, rounded", "", twice, groups)
            yield ValueArithmetic(f"a·{how}, fused", "second", twice, groups)
            continue
        products = f"Σ a·{how} of the {max(len(columns) for columns in groups)} products of an instruction"
        yield ValueArithmetic(f"{products}, exact, rounded once", "second", twice, groups)
        for fraction in range(PUBLISHED[1][1], PUBLISHED[1][0] - 1, -1):
            cut = f"{products}, cut off at F = {fraction} bits"
            yield ValueArithmetic(cut, "second", twice, groups, fraction)


def add_in_tensor_cores(a: Doubles, w: Doubles, acc: Floats, fraction: int, least: int) -> Floats:
    """Add the products of one instruction, a float64[M, L] and w float64[n, L], to a sum float32[M, n].

    All L + 1 terms are cut off to F bits below the largest exponent, added, and cut off to float32 (`accumulation`).
    The exponent of a product is the sum of those of its factors, which are at least `least`.
    """
    of_a, of_w = (np.where(v == 0, -5000, np.maximum(np.frexp(v)[1] - 1, least)) for v in (a, w))
    wide = acc.astype(np.float64)
    exponent = np.where(wide == 0, -5000, np.frexp(wide)[1] - 1)
    for k in range(a.shape[1]):
        exponent = np.maximum(exponent, of_a[:, k, None] + of_w[:, k])
    unit = np.ldexp(1.0, np.maximum(exponent, -900) - fraction)
    total = np.trunc(wide / unit)
    for k in range(a.shape[1]):
        total += np.trunc(a[:, k, None] * w[:, k] / unit)
    mantissa, size = np.frexp(total * unit)
    cut: Floats = np.ldexp(np.trunc(np.ldexp(mantissa, 24)), size - 24).astype(np.float32)
    return cut


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


def differing(
    of: FoundOrder, semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, y: Floats
) -> npt.NDArray[np.bool_]:
    """Return which outputs float32[M, N] have other bits than an order gives."""
    inner, taken = _inside(semantics, x)
    with np.errstate(all="ignore"):
        bits = _bits(of.tree, of.arithmetic, inner, fmt, w, taken)
    return np.asarray((bits != y) & ~(np.isnan(bits) & np.isnan(y)))  # the sign of zero is not compared


def compared(
    of: FoundOrder,
    semantics: Semantics,
    fmt: BlockFormat,
    w: Bytes,
    x: Bytes,
    y: Floats,
    further: Callable[[Rows], Iterator[tuple[Bytes, Floats]]],
) -> tuple[FoundOrder, npt.NDArray[np.bool_]]:
    """Return an order and which outputs float32[M, N] have other bits than it gives.

    Two arithmetics or trees may agree in all random products that were tried. So if other ones have all bits, they are
    the order's. Raises NoOrder if they have those of the rows that differ: another loop may compute them. An output
    that is off by an ulp may have the bits of one of about 300 arithmetics by chance, with a probability of about 1/3
    each; _ENOUGH of them have them with less than 10^-5. If there are fewer, further products of these rows decide.
    Rows that the order leaves aside are not compared.

    Args:
        further: returns activations in the definition's blocks and outputs of some rows, in further products.
    """
    of_order = np.ones(len(w), np.bool_)
    of_order[list(of.aside)] = False
    wrong = differing(of, semantics, fmt, w, x, y) & of_order
    rows = np.flatnonzero(wrong.any(axis=0))

    def made_otherwise(other: FoundOrder, count: int) -> bool:
        """Whether the rows have the bits of another order, as far as further products tell."""
        for more in further(rows) if count < _ENOUGH else ():
            if differing(other, semantics, fmt, w[rows], *more).any():
                return False
            count += int(differing(of, semantics, fmt, w[rows], *more).sum())
            if count >= _ENOUGH:
                break
        return True

    for tree in (of, *of.also) if len(rows) else ():
        for arithmetic in of.arithmetic.others(tree.tree, (semantics.inside or semantics).term, fmt):
            other = replace(tree, arithmetic=arithmetic)
            if differing(other, semantics, fmt, w[rows], x, y[:, rows]).any():
                continue
            still = differing(other, semantics, fmt, w, x, y) & of_order
            if not still.any():
                return other, still
            if made_otherwise(other, int(wrong.sum())):
                raise NoOrder(f"{len(rows):,} rows have the bits of another arithmetic: {other.words}")
    return of, wrong


def _inside(semantics: Semantics, x: Bytes) -> tuple[Semantics, Bytes]:
    """Return the definition of the product, and its activations, for a kernel that quantizes them itself."""
    inner = semantics.inside
    return (semantics, x) if inner is None else (inner, inner.bytes_of(semantics.values_of(x)))
