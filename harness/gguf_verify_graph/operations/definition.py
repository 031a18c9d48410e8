"""A definition of a node's product: one of `semantics` for weights of a format, and a backend's deviations from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.element import ElementFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.llama.node import Array, Bytes, Doubles, NoDefinition
from gguf_verify.semantics.accumulation import IN_FLOAT16, SCORE_LIMIT
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.half_sums import sharpened
from gguf_verify.semantics.narrow import HALF, NARROW, stored
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product, concatenated
from gguf_verify.semantics.terms.values import ValueTerm
from gguf_verify.semantics.values import alignment_of_subnormals, of_values
from gguf_verify.support.threads import each

from .in_order import Ordered

Floats = npt.NDArray[np.float32]

#: Number of elements of a (K/32, M, n) working array of a product of values.
_TILE = 1 << 17
_TERM = 32
_THREADS = os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Definition:
    """A definition of products with weights of a format.

    Args:
        semantics: see `gguf_verify.semantics`.
        fmt: format of the blocks of weights.
        name: name in tables, if not that of `semantics`.
        multiplied: computes the product of weights and activations uint8[M, row bytes], instead of `semantics`.
        weights: transforms the rows of weights uint8[N, row bytes] before the multiplication, if given.
        adjusted: changes the product of weights and activations uint8[M, row bytes], if given.
        slack: additional error that a correct product of weights and rows float32[M, K] may have, float64[M, N], and
            the number of activations that leave a choice; None for none.
        coarse: whether the tolerance is that of the coarsest tensor cores.
        ordered: the order of the sums, where known, which determines every bit of the outputs.
    """

    semantics: Semantics
    fmt: WeightFormat
    name: str = ""
    multiplied: Callable[[Bytes, Bytes], Product] | None = None
    weights: Callable[[Bytes], Bytes] | None = None
    adjusted: Callable[[Bytes, Bytes, Product], Product] | None = None
    slack: Callable[[Bytes, Floats], tuple[Doubles, int]] | None = None
    coarse: bool = False
    ordered: Ordered | None = None

    @property
    def title(self) -> str:
        """Return the name in tables."""
        return self.name or self.semantics.name + self.semantics.rounded_words

    @property
    def plain(self) -> bool:
        """Return whether the backend follows `semantics` without deviations."""
        return not any((self.multiplied, self.weights, self.adjusted, self.slack, self.coarse, self.ordered))

    @property
    def in_half(self) -> bool:
        """Return whether sums or outputs are halves."""
        return "float16" in (self.semantics.accumulation.name, self.semantics.output)

    @property
    def alike(self) -> bool:
        """Return whether the errors of a row must be of similar size; see `consistency`."""
        return self.in_half or self.coarse

    @property
    def unit(self) -> float:
        """Return the largest relative error of one rounding of a sum or an output."""
        return max(self.semantics.accumulation.unit, HALF.unit if self.semantics.output == "float16" else 0.0)

    def taken(self, rows: Array) -> Bytes:
        """Return rows of activations as the product reads them: float32[M, K] encoded, uint8 blocks unchanged."""
        return rows if rows.dtype == np.uint8 else self.semantics.bytes_of(rows)

    def multiply(self, w: Bytes, a: Bytes) -> Product:
        """Return the product of weights uint8[N, row bytes] and activations uint8[M, row bytes].

        Raises NoDefinition where sums or outputs in half may overflow, so that no finite value is defined.
        """
        rows = w if self.weights is None else self.weights(w)
        made = _product(self.semantics, self.fmt, rows, a) if self.multiplied is None else self.multiplied(rows, a)
        if self.adjusted is not None:
            made = self.adjusted(rows, a, made)
        if self.in_half and not np.isfinite(made.exact).all():
            raise NoDefinition("sums in half that may overflow")
        if self.multiplied is None and self.adjusted is None and self.semantics.accumulation is IN_FLOAT16:
            return _sharpened(self.semantics, self.fmt, rows, a, made)
        return made


def loosened(product: Product, slack: Doubles) -> Product:
    """Return the product with its bound, and the limit of its scores, widened by float64[M, N]."""
    of_rows = product.of_rows
    return replace(
        product,
        bound=product.bound + slack,
        spread=product.spread + slack / product.limit,
        of_rows=None if of_rows is None else lambda rows: loosened(of_rows(rows), slack[:, rows]),
    )


def _sharpened(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, made: Product) -> Product:
    """Return the product with the errors of half sums in the orders that kernels use (`semantics.half_sums`)."""
    a, off = semantics.values_of(x).astype(np.float64), None
    if isinstance(fmt, ElementFormat):
        values = fmt.decode(w).astype(np.float64)
        narrow = NARROW.get(semantics.term.weights)
        values = values if narrow is None else narrow.rounded(values)
    else:
        assert isinstance(semantics.term, ValueTerm)
        values, off = semantics.term.values(fmt, w)
    slack: Doubles | float = 0.0
    if off is not None:
        slack = np.abs(a) @ off.T * (1 + semantics.accumulation.growth(a.shape[1]))
    if semantics.output == "float16":
        slack = slack + HALF.half_ulp(np.abs(made.exact) + np.minimum(made.bound, SCORE_LIMIT * made.spread))
    return sharpened(made, a, values, slack)


def _product(semantics: Semantics, fmt: WeightFormat, w: Bytes, a: Bytes) -> Product:
    if isinstance(fmt, ElementFormat) and semantics is not llama_cpu_semantics(fmt):
        return _of_elements(semantics, fmt, w, a)
    return screened(semantics, fmt, w, a, threads=_THREADS)


def _of_elements(semantics: Semantics, fmt: ElementFormat, w: Bytes, x: Bytes) -> Product:
    """Return the product of unquantized weights by another definition than that of their type."""
    term = semantics.term
    if semantics.encoding.quantizes or term.in_parts:
        raise NoDefinition(f"{semantics.name} with weights of {fmt.name}")
    a = _padded(semantics.values_of(x).astype(np.float64))
    narrow = NARROW.get(term.weights)

    def tile(rows: Bytes) -> Product:
        with np.errstate(all="ignore"):
            values = _padded(fmt.decode(rows).astype(np.float64))
            values = values if narrow is None else narrow.rounded(values)
            made = of_values(a, values, _TERM, semantics.accumulation)
            more = alignment_of_subnormals(a, values, narrow, semantics.accumulation)
            return replace(made, bound=made.bound + more, spread=made.spread + more / SCORE_LIMIT)

    step = max(1, _TILE // max(1, len(a) * a.shape[1] // _TERM))
    made = concatenated(each(tile, [w[start : start + step] for start in range(0, len(w), step)], _THREADS))
    return stored(made, semantics.output)


def _padded(values: Doubles) -> Doubles:
    """Return the values padded with columns of zeros to whole terms."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _TERM)))
