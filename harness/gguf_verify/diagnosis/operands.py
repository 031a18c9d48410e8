"""A product split into codes, scales and sums, from which a fault can be composed.

With terms b of 32 values (of 16 if only 16 share a scale), in float64:

    y = Σ_b d[b]·e[b]·Σ_i q[b,i]·a[b,i] + m[b]·s[b]

q, d and m are the weights' codes, scale and minimum; a and e are the activations' codes and scale. The minimum is
multiplied by s: their stored sum, or e·Σ a. If a definition subtracts the offset from the codes, q does not contain it
and m is zero. In `f32`, a are the values and e is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..semantics.definition import Semantics
from ..semantics.narrow import NARROW
from ..semantics.values import term_values

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """Outputs that a fault predicts.

    Args:
        exact: float64[M, N]; not finite where the kernel's outputs would not be.
        bound: the largest effect of rounding.
        known: the outputs that the fault predicts; None for all.
    """

    exact: Doubles
    bound: Doubles
    known: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Parts:
    """The operands of one product.

    Args:
        semantics: its definition.
        fmt: the weights' format.
        q: weights' codes, float64[N, terms, values].
        d, m: their scales and minima, float64[N, terms].
        a: activations' codes, float64[M, terms, values].
        e, s: their scales and sums, float64[M, terms].
    """

    semantics: Semantics
    fmt: BlockFormat
    q: Doubles
    d: Doubles
    m: Doubles
    a: Doubles
    e: Doubles
    s: Doubles

    @property
    def per_block(self) -> int:
        """Terms in a block of weights."""
        return self.fmt.block_size // int(self.q.shape[2])

    @property
    def half_products(self) -> bool:
        """Whether products of scales and minima are rounded to half."""
        return self.semantics.term.rounded(self.fmt) == "products"

    def predicted(self) -> Predicted:
        """Return the outputs of these operands, with the bound of `semantics.exact`."""
        terms, values = self.q.shape[1:]
        with np.errstate(all="ignore"):
            if self.half_products:
                first, second = self.terms()
                exact = (first + second).sum(axis=0)
                operands = (np.abs(v) for v in (self.q, self.d, self.m, self.a, self.e, self.s))
                first, second = Parts(self.semantics, self.fmt, *operands).terms()
                size = (first + second).sum(axis=0)
            else:
                exact = self._dot(self.q, self.d, self.a, self.e) + self.s @ self.m.T
                size = self._magnitude()
        added = terms * (values if self.semantics.activations is None else 2 if self.m.any() else 1)
        share = self.semantics.accumulation.growth(added)
        narrow = NARROW.get(self.semantics.term.weights)  # the weights in these operands are not rounded
        if narrow is not None:
            share += 4 * narrow.unit * (1 + share)
        return Predicted(exact, share * size)

    def limited(
        self, rows: npt.NDArray[np.bool_] | None = None, tokens: npt.NDArray[np.bool_] | None = None
    ) -> Predicted:
        """Return `predicted` for only these rows, bool[N], and tokens, bool[M]."""
        made = self.predicted()
        known = np.ones(made.exact.shape, bool)
        known &= True if rows is None else rows
        known &= True if tokens is None else tokens[:, None]
        return replace(made, known=known)

    def _magnitude(self) -> Doubles:
        """Return the sum of magnitudes in the bound, [M, N]."""
        if self.semantics.activations is None:  # a kernel of `f32` multiplies decoded values
            values = np.abs(self.q * self.d[..., None] + self.m[..., None])
            return np.asarray(np.abs(self.a).reshape(len(self.a), -1) @ values.reshape(len(values), -1).T)
        q = np.abs(self.q) + 2 * self.semantics.term.zero(self.fmt)
        size = self._dot(q, np.abs(self.d), np.abs(self.a), np.abs(self.e))
        s = self.s if self.semantics.uses_sum(self.fmt) else self.e * np.abs(self.a).sum(axis=-1)
        return np.asarray(size + np.abs(s) @ np.abs(self.m).T)

    def _dot(self, q: Doubles, d: Doubles, a: Doubles, e: Doubles) -> Doubles:
        left = (a * e[..., None]).reshape(len(a), -1)
        return np.asarray(left @ (q * d[..., None]).reshape(len(q), -1).T)

    def terms(self) -> tuple[Doubles, Doubles]:
        """Return the terms d·e·Σ q·a and m·s, float64[terms, M, N] each."""
        sums = np.matmul(self.a.transpose(1, 0, 2), self.q.transpose(1, 2, 0))
        scale = self.e.T[:, :, None] * self.d.T[:, None, :]
        second = self.s.T[:, :, None] * self.m.T[:, None, :]
        scale, second = (self.semantics.term.round_products(self.fmt, v) for v in (scale, second))
        return scale * sums, second

    def with_sums(self) -> Parts:
        """Return the operands with s = e·Σ a after a change of a and e, if the definition does not store s."""
        return self if self.semantics.uses_sum(self.fmt) else replace(self, s=self.e * self.a.sum(axis=-1))


def weight_parts(semantics: Semantics, fmt: BlockFormat, rows: Bytes) -> tuple[Doubles, Doubles, Doubles]:
    """Return q, d and m of weights uint8[N, row bytes]."""
    n, size, term = len(rows), term_values(fmt), semantics.term
    with np.errstate(all="ignore"):
        blocks = np.ascontiguousarray(rows).reshape(n, -1, fmt.block_bytes)
        q = term.codes(fmt, blocks).astype(np.float64).reshape(n, -1, size)
        d, m = (np.ascontiguousarray(v[:, 0].T) for v in term.scales(fmt, blocks))
    if not fmt.has_min and (term.offset(fmt) or not fmt.offset):
        m = np.zeros_like(m)
    return q, d, m


def activation_parts(semantics: Semantics, fmt: BlockFormat, x: Bytes) -> tuple[Doubles, Doubles, Doubles]:
    """Return a, e and s of activations uint8[M, row bytes], as the definition has them."""
    m, size = len(x), term_values(fmt)
    if not semantics.encoding.quantizes:
        a = semantics.values_of(x).astype(np.float64).reshape(m, -1, size)
        return a, np.ones(a.shape[:2]), a.sum(axis=-1)
    with np.errstate(all="ignore"):
        given = semantics.encoding.operands(np.ascontiguousarray(x), size)
        a = np.ascontiguousarray(given.q.transpose(1, 0, 2)).astype(np.float64)
        e = np.ascontiguousarray(given.d[..., 0].T)
        s = np.ascontiguousarray(given.s[..., 0].T) if semantics.uses_sum(fmt) else e * a.sum(axis=-1)
    return a, e, s


def parts_of(semantics: Semantics, fmt: BlockFormat, rows: Bytes, x: Bytes) -> Parts:
    """Split the product of weights uint8[N, row bytes] and activations uint8[M, row bytes]."""
    fmt = semantics.term.reads(fmt)
    return Parts(semantics, fmt, *weight_parts(semantics, fmt, rows), *activation_parts(semantics, fmt, x))
