"""The bits of an order of summation that was found: its tree, and the arithmetic of a term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .definition import Semantics
from .repeated import Repeated
from .summation import Fused, Rule, Tree, sum_in
from .sums import Floats
from .term import Term
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
    """The arithmetic of a term in float32: here the product of two values.

    Args:
        words: its formula.
        fused: see `sum_in`.
    """

    words: str
    fused: Fused

    def add(self, tree: Tree, term: Term, fmt: BlockFormat, w: Bytes, x: Activations) -> Floats:
        """Add the summands of weights uint8[n, row bytes] in the order of a tree, float32[M, n]."""
        assert isinstance(term, ValueTerm)
        values, _ = term.values(fmt, w)
        return sum_in(tree, lambda i: x.wide[:, i, None] * values[:, i], self.fused)


#: The arithmetics of products of values.
OF_VALUES = (Arithmetic("a·w, rounded", ""), Arithmetic("a·w, fused", "second"))


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


def _inside(semantics: Semantics, x: Bytes) -> tuple[Semantics, Bytes]:
    """Return the definition of the product, and its activations, for a kernel that quantizes them itself."""
    inner = semantics.inside
    return (semantics, x) if inner is None else (inner, inner.bytes_of(semantics.values_of(x)))
