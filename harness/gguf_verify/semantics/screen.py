"""Products by matrix multiplication, with a bound and a spread that never exceed those of `exact.product`.

`exact.product` walks through the terms of every output, since the spread depends on each partial sum. Here the same
sums are matrix products in float64, in a tenth of the time or less. An output that passes here passes by the product
itself; `Product.of_rows` computes that one for outputs that do not. With the names of `exact`, over K values in nb
terms:

    o     = Σ_k (q_a·d_a)·(q_w·d_w) + Σ_b s·m_w                            two matrix products
    A     = Σ_b a[b] = Σ_k |q_a·d_a|·|d_w|·(|q_w| + 2z) + Σ_b |s|·|m_w|    two more, of magnitudes
    bound = γ_n·A, without the terms for underflow

The variance of the spread is u²/3·(Σ_b S[b]² + 2·Σ_b t[b]² + Σ_b (nb - b + 3)·v[b]), b from 1, where v[b] is a[b]²/32
for blocks (a[b]²/16 for terms of 16 values), and Σ a²·w² of the term for values that are not quantized. Its lower
bounds are:

    Σ_b S[b]² ≥ o², the last partial sum; and the squares of both parts, if the minima are added separately
    Σ_b t[b]² ≥ o²/nb and Σ_b (nb - b + 3)·a[b]² ≥ A²/Σ_b 1/(nb - b + 3), by Cauchy and Schwarz

and for values the last sum is itself a matrix product. A product of matrices in float64 has an error of at most γ'·A,
in any order, with γ' = (K + nb + 8)·2^-53 (Higham, §3.1). A comparison contains two such errors, so bound and spread
are lowered by 4γ'·A, and by a factor of 2^-20 for the rounding of their own formulas: some 10^-6 of either.

A definition that rounds inside a term, sums or outputs of halves, tensor cores, fused operations and an author's oracle
are not bilinear, or have other spreads: their products are computed whole. So are small ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..support.arrays import contiguous
from ..support.stages import counted
from ..support.threads import each
from .accumulation import EXTRA_ROUNDINGS, IN_FLOAT32
from .agreement import computed_on
from .definition import Semantics
from .device import Device
from .exact import product, slack_of_sums
from .lanes import with_lanes
from .order import Order
from .placed import Placed
from .sums import Doubles, Floats, Product, concatenated
from .term import blocks_of
from .terms.codes import CodeTerm
from .terms.values import ValueTerm
from .values import Activations, term_values

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

#: Tokens, and terms of all outputs, below which a product is computed whole, since that takes no longer (measured).
FEW, SMALL = 16, 1 << 20
#: Values of weights that are decoded at a time; outputs whose bits are computed at a time.
_VALUES, _TILE = 1 << 20, 1 << 16
#: Most terms of all outputs of a few rows that NumPy computes, since a device takes longer to start.
_ON_HOST = 1 << 17
#: Screens that each thread caches: of a product, of llama.cpp's, and of a kernel on llama.cpp's activations.
_MOST = 4
_RECENT = threading.local()
#: An upper bound on the relative rounding error in float64 of the formulas for bound and spread.
_ROUNDED = 2.0**-20


@counted("exact product")
def screened(
    semantics: Semantics,
    fmt: WeightFormat,
    w: Bytes,
    x: Bytes,
    order: Order | None = None,
    threads: int = 1,
    device: Device | None = None,
) -> Product:
    """Compute a product that is at least as strict as `exact.product`, and can compute that one for rows that fail.

    Args:
        semantics, fmt, w, x, order, threads, device: as in `exact.product`.

    Raises the exceptions of `exact.product`.
    """
    if not isinstance(fmt, BlockFormat) or not bilinear(semantics, fmt):
        return product(semantics, fmt, w, x, order, threads, device)
    values, nb = term_values(fmt), _terms(fmt, w.shape[1])
    if device is None and (len(x) < FEW or len(w) * len(x) * nb < SMALL):
        return product(semantics, fmt, w, x, order, threads)
    inner, slack = semantics.inside or semantics, None
    fmt = inner.term.reads(fmt)
    if semantics.inside is not None:
        slack = slack_of_sums(inner, fmt, w, semantics.values_of(x))
    with np.errstate(all="ignore"):  # infinite scales: the exact product decides
        screen = screen_of(semantics, fmt, w.shape[1], x)
    prepared = screen.x
    if device is not None:
        there = prepared if order is None else prepared.on(device)
        screen_there = screen.on(device)

        def whole(rows: Bytes | Placed, screen: Screen, x: Activations) -> Product:
            made = screen.product(rows)
            return made if order is None else replace(made, ordered=_in_order(inner, fmt, rows, x, order))

        made = computed_on(
            device,
            inner,
            fmt,
            w,
            4 * len(x),
            lambda rows: whole(rows, screen_there, there),
            lambda rows: whole(rows, screen, prepared),
        )
    else:
        made = concatenated(_parts(screen.product, w, max(1, _VALUES // (nb * values)), threads))
        if order is not None:
            bits = lambda rows: _in_order(inner, fmt, rows, prepared, order)  # noqa: E731
            parts = _parts(bits, w, max(1, _TILE // len(x)), 1)  # two threads are no faster (measured)
            made = replace(made, ordered=np.concatenate(parts, axis=1))
    if order is not None and not np.isfinite(made.exact).all():
        return product(semantics, fmt, w, x, order, threads, device)  # its sums may be finite in this order
    if slack is not None:
        made = made.loosened(slack)

    def of_rows(rows: npt.NDArray[np.intp]) -> Product:  # without the bits of a declared order, which are known
        few = len(rows) * len(x) * nb <= _ON_HOST
        return product(semantics, fmt, w[rows], x, None, threads, None if few else device)

    return with_lanes(replace(made, of_rows=of_rows), semantics, fmt, w, x)


def screen_of(semantics: Semantics, fmt: BlockFormat, row_bytes: int, x: Bytes) -> Screen:
    """Return the screen of activations uint8[M, row bytes], for any rows of weights of `row_bytes` bytes.

    The screens of the last few arrays are cached, since the rows of a matrix are multiplied by them, and then
    combinations of all rows. These arrays must not be modified.
    """
    recent: deque[tuple[Bytes, Semantics, BlockFormat, int, Screen]]
    recent = _RECENT.__dict__.setdefault("screens", deque(maxlen=_MOST))
    for of, by, kind, width, made in recent:
        if of is x and by is semantics and kind is fmt and width == row_bytes:
            return made
    made = _made_of(semantics, fmt, row_bytes, x)
    recent.append((x, semantics, fmt, row_bytes, made))
    return made


def _made_of(semantics: Semantics, fmt: BlockFormat, row_bytes: int, x: Bytes) -> Screen:
    inner, taken, nb = semantics, x, _terms(fmt, row_bytes)
    if semantics.inside is not None:
        inner, taken = semantics.inside, semantics.inside.bytes_of(semantics.values_of(x))
    fmt = inner.term.reads(fmt)
    prepared = Activations.of(inner.encoding, taken, term_values(fmt), nb)
    if isinstance(inner.term, ValueTerm):
        return _OfValues(inner.term, fmt, prepared, nb)
    assert isinstance(inner.term, CodeTerm)
    return _OfBlocks(inner.term, fmt, prepared, nb, inner.uses_sum(fmt))


def _terms(fmt: BlockFormat, row_bytes: int) -> int:
    return row_bytes // fmt.block_bytes * (fmt.block_size // term_values(fmt))


def bilinear(semantics: Semantics, fmt: BlockFormat) -> bool:
    """Return whether the product is one of matrices, and its spread that of float32 sums."""
    inner = semantics.inside or semantics
    plain = semantics.oracle is None and semantics.plain and inner.plain
    return plain and inner.term.weights in ("", "float32") and inner.term.is_bilinear(fmt)


class Screen:
    """One set of activations with any rows of weights.

    Args:
        fmt: the weights' format.
        x: the decoded activations.
        nb: terms of a row.
    """

    #: Whether codes are multiplied, and whether minima are multiplied by sums of activations.
    of_blocks = has_second = False
    #: The factors of weights and of minima, float64[M, K] and float64[M, nb].
    a: Doubles
    s: Doubles
    #: Arrays that a device needs; it derives the others.
    _arrays: tuple[str, ...]

    def __init__(self, fmt: BlockFormat, x: Activations, nb: int) -> None:
        self._fmt, self.x, self.nb, self._values = fmt, x, nb, term_values(fmt)
        self._placed: tuple[Device, Screen] | None = None

    @cached_property
    def _a_abs(self) -> Doubles:
        return np.abs(self.a)

    def on(self, device: Device) -> Screen:
        """Return the same on a device."""
        if self._placed is None or self._placed[0] is not device:
            other = copy(self)
            other.__dict__.pop("_a_abs", None)
            for name in self._arrays:
                setattr(other, name, device.put(getattr(self, name)))
            self._placed = device, other
        return self._placed[1]

    @property
    def columns(self) -> int:
        """K."""
        return int(self.a.shape[1])

    def weights(self, w: Bytes | Placed) -> tuple[Doubles, Doubles | None]:
        """Decode rows uint8[n, row bytes] to the factors of `a` and `s`, float64[n, K] and float64[n, nb] or None."""
        raise NotImplementedError

    def exact(self, w: Bytes | Placed) -> Doubles:
        """Return only the exact products of weights uint8[n, row bytes], float64[M, n]."""
        weights, least = self.weights(w)
        first: Doubles = self.a @ weights.T
        return first if least is None else first + self.s @ least.T

    def product(self, w: Bytes | Placed) -> Product:
        """Return the product of weights uint8[n, row bytes]."""
        raise NotImplementedError


class _OfBlocks(Screen):
    """Products of codes."""

    of_blocks = True
    _arrays = "a", "s", "_s_abs"

    def __init__(self, term: CodeTerm, fmt: BlockFormat, x: Activations, nb: int, uses_sum: bool) -> None:
        super().__init__(fmt, x, nb)
        self._term, self.has_second = term, uses_sum or fmt.has_min
        by_token = x.q.transpose(1, 0, 2) * x.d.transpose(1, 0, 2)
        self.a = by_token.reshape(len(by_token), -1)
        self.s = self._s_abs = np.zeros((len(self.a), 0))
        if uses_sum:
            self.s, self._s_abs = x.s[..., 0].T, np.abs(x.s_size[..., 0].T)
        elif self.has_second:
            self.s, self._s_abs = by_token.sum(axis=-1), np.abs(by_token).sum(axis=-1)

    def weights(self, w: Bytes | Placed) -> tuple[Doubles, Doubles | None]:
        weights, _, least = self._decoded(w)
        return weights.reshape(len(w), -1), least if self.has_second else None

    def _decoded(self, w: Bytes | Placed) -> tuple[Doubles, Doubles, Doubles]:
        """Return the weights float64[n, nb, 32 or 16], the scales and the minima float64[n, nb]."""
        blocks = blocks_of(self._fmt, w)
        q = self._term.codes(self._fmt, blocks).reshape(len(w), self.nb, self._values)
        d, least = (of[:, 0].T for of in self._term.scales(self._fmt, blocks))
        return q * d[..., None], d, least

    def product(self, w: Bytes | Placed) -> Product:
        nb, zero = self.nb, self._term.zero(self._fmt)
        weights, d, least = self._decoded(w)
        size = np.abs(weights)
        if zero:
            size += 2 * zero * np.abs(d)[..., None]
        first = self.a @ weights.reshape(len(w), -1).T
        total = self._a_abs @ size.reshape(len(w), -1).T
        exact, carried, added = first, first**2, nb
        if self.has_second:
            second = self.s @ least.T
            total += self._s_abs @ np.abs(least).T
            exact, added = first + second, 2 * nb
            carried = exact**2 + first**2 + second**2
        lanes = total**2 / (self._values * float((1 / (np.arange(nb, 0, -1) + 2.0)).sum()))
        return _lowered(exact, total, carried, lanes, nb, added, 1, nb * (self._values + 1))


class _OfValues(Screen):
    """Products of values."""

    _arrays = "a", "_later"

    def __init__(self, term: ValueTerm, fmt: BlockFormat, x: Activations, nb: int) -> None:
        super().__init__(fmt, x, nb)
        self._term, self.a, self.s = term, x.wide, np.zeros((len(x.wide), 0))
        self._later = self.a**2 * np.repeat(np.arange(nb, 0, -1) + 2.0, self._values)

    def weights(self, w: Bytes | Placed) -> tuple[Doubles, Doubles | None]:
        assert not isinstance(w, Placed)
        return self._term.values(self._fmt, w)[0], None

    def product(self, w: Bytes | Placed) -> Product:
        weights, _ = self.weights(w)
        exact, total = self.a @ weights.T, self._a_abs @ np.abs(weights).T
        lanes = self._later @ (weights**2).T
        k = self.columns
        return _lowered(exact, total, exact**2, lanes, self.nb, k, self._values, k)


def _lowered(
    exact: Doubles, size: Doubles, carried: Doubles, lanes: Doubles, nb: int, added: int, roundings: int, summed: int
) -> Product:
    """Return the product [M, n] of these sums.

    Args:
        size: A.
        carried, lanes: lower bounds of Σ_b S[b]² and Σ_b (nb - b + 3)·v[b].
        added: number of added terms, as `exact` counts them.
        roundings: roundings of a block.
        summed: number of terms of the sums in float64.
    """
    share = (summed + EXTRA_ROUNDINGS) * 2.0**-53
    bound = IN_FLOAT32.growth(added) * size
    spread = IN_FLOAT32.unit * np.sqrt(roundings / 3 * (carried + 2 / nb * exact**2 + lanes))
    bound, spread = (np.maximum(of * (1 - _ROUNDED) - 4 * share * size, 0.0) for of in (bound, spread))
    reach = size * (1 + _ROUNDED) + bound  # at least the reach of the product itself
    if not (reach < IN_FLOAT32.overflows).all():
        exact = np.where(reach >= IN_FLOAT32.overflows, np.copysign(np.inf, exact), exact)
    return Product(exact, bound, spread, None, scale=size / np.sqrt(summed))


def _in_order(semantics: Semantics, fmt: BlockFormat, w: Bytes | Placed, x: Activations, order: Order) -> Floats:
    """Return the bits of a declared order, float32[M, n]."""
    term = semantics.term
    if isinstance(term, ValueTerm):
        assert not isinstance(w, Placed)
        return term.bits(semantics.accumulation, fmt, w, x, order)
    assert isinstance(term, CodeTerm)
    values, blocks = term_values(fmt), blocks_of(fmt, w)
    q = contiguous(term.codes(fmt, blocks).reshape(len(w), -1, values).transpose(1, 2, 0))

    def sums(part: slice) -> Floats:
        integers: Floats = np.matmul(x.q[part], q[part])  # below 2^24
        return integers

    return term.bits(fmt, term.scales(fmt, blocks), x, order, sums)


def _parts(of: Callable[[Bytes], T], w: Bytes, step: int, threads: int) -> list[T]:
    """Apply `of` to all rows, `step` at a time, in this many threads."""

    def one(start: int) -> T:
        with np.errstate(all="ignore"):
            return of(w[start : start + step])

    return each(one, range(0, len(w), step), threads)
