"""What a definition of a node's product is: one of `semantics` for weights of a format, and how a backend departs from
it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import ElementFormat, WeightFormat
from gguf_verify.llama.node import Array, Bytes, Doubles, NoDefinition
from gguf_verify.semantics.accumulation import IN_FLOAT16, SCORE_LIMIT
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.half_sums import sharpened
from gguf_verify.semantics.narrow import HALF, NARROW, stored
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product, concatenated
from gguf_verify.semantics.values import alignment_of_subnormals, of_values, weights_of
from gguf_verify.support.threads import each

from ._in_order import Ordered

Floats = npt.NDArray[np.float32]

#: Elements of a (K/32, M, n) working array of a product of values.
_TILE = 1 << 17
_TERM = 32
_THREADS = os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Definition:
    """A definition of products with weights of a format.

    Args:
        semantics: see `gguf_verify.semantics`.
        fmt: how the blocks of weights are read.
        name: in a table, if it is not that of `semantics`.
        multiplied: the product of weights and activations uint8[M, row bytes], in place of that of `semantics`.
        weights: what the rows of weights uint8[N, row bytes] become before they are multiplied, if anything.
        adjusted: what becomes of the product of weights and activations uint8[M, row bytes], if anything.
        slack: by how much a right product of weights and rows float32[M, K] may be further off, float64[M, N], and how
            many activations leave a choice; None for nothing.
        coarse: the tolerance is that of the coarsest tensor cores.
        ordered: the order of the sums, where it is known, and so each bit of the outputs.
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
        """Its name in a table."""
        return self.name or self.semantics.name + self.semantics.rounded_words

    @property
    def plain(self) -> bool:
        """Whether the backend departs in nothing from `semantics`."""
        return not any((self.multiplied, self.weights, self.adjusted, self.slack, self.coarse, self.ordered))

    @property
    def in_half(self) -> bool:
        """Whether sums or outputs are halves."""
        return "float16" in (self.semantics.accumulation.name, self.semantics.output)

    @property
    def alike(self) -> bool:
        """Whether the errors of a row must be of one size: see `_consistency`."""
        return self.in_half or self.coarse

    @property
    def unit(self) -> float:
        """The most that one rounding of a sum or an output takes, relative."""
        return max(self.semantics.accumulation.unit, HALF.unit if self.semantics.output == "float16" else 0.0)

    def taken(self, rows: Array) -> Bytes:
        """Rows of activations as the product takes them: values float32[M, K] encoded; blocks, uint8, as they are."""
        return rows if rows.dtype == np.uint8 else self.semantics.bytes_of(rows)

    def multiply(self, w: Bytes, a: Bytes) -> Product:
        """The product of weights uint8[N, row bytes] and activations uint8[M, row bytes].

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
    """A product that may be off by float64[M, N] more, which the gate of scores admits, too."""
    of_rows = product.of_rows
    return replace(
        product, bound=product.bound + slack, spread=product.spread + slack / product.limit,
        of_rows=None if of_rows is None else lambda rows: loosened(of_rows(rows), slack[:, rows]),
    )  # fmt: skip


def _sharpened(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, made: Product) -> Product:
    """The product with what sums in half are off by in the orders that kernels have (`semantics.half_sums`)."""
    a, off = semantics.values_of(x).astype(np.float64), None
    if isinstance(fmt, ElementFormat):
        values = fmt.decode(w).astype(np.float64)
        narrow = NARROW.get(semantics.term.weights)
        values = values if narrow is None else narrow.rounded(values)
    else:
        values, off = weights_of(semantics.term, fmt, w)
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
    """Of weights that are not quantized, by another definition than that of their type."""
    term = semantics.term
    if semantics.encoding.quantizes or term.minima_apart or term.steps:
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
    """Filled up with columns of zeros to whole terms."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _TERM)))
