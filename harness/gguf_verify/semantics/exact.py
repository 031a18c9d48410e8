"""The exact product of a definition, and bounds on the error of a correct float32 computation of it.

There are M rows of activations and N rows of weights, with nb terms in a row: blocks of 32 values, slices of 32 of
larger blocks, or groups of 16 where these have their own scale. In float64:

    term    t[b] = d_w·d_a·Σ q_w·q_a + m_w·s        result  o = Σ_b t[b]        partial sums  S[b]
            s is the activations' stored sum, or d_a·Σ q_a for the minima of superblocks
    bound   γ_n·Σ_b (|d_w·d_a|·Σ(|q_w| + 2z)·|q_a| + |m_w·s|),  γ_n = n·u/(1 - n·u),  n = nb + 8,  u = 2^-24;
            n = 2·nb + 8 where there is an s, whose terms may be added separately;
            provided that the integers Σ q_w·q_a are exact. Where each product of two values is added by itself,
            K replaces the first nb (`accumulation`, `values`)
    order   S ← fma(d_w·d_a, Σ q_w·q_a, S), then S ← fma(m_w, s, S);
            where m_w is -o·d_w, S ← fma(d_w, fma(d_a, Σ q_w·q_a, -o·s), S);
            of values S ← fma(a[k], w[k], S), where values are halves and added in half by `__hfma`

z is the zero point of formats whose codes have one, if a definition allows it to be multiplied separately, else 0: |q_w
+ z| + z is at most |q_w| + 2z.

Underflow adds three terms to the bound. First, a product that underflows loses up to η = 2^-150, times its later
factors. If 0 < |d_w·d_a| < 2^-126, which needs scales that are not halves, the term loses η·(Σ(|q_w| + 2z)·|q_a| +
|d_w| + |d_a| + 64), in any order of its factors; products of values lose η each. Second, where float32 numbers below φ
= 2^-126 are flushed to zero, as GPU compilers may do, such a term is lost as a whole, |d_w·d_a|·Σ(|q_w| + 2z)·|q_a|,
since no part of it is larger; so is a term with a scale below φ, which is a flushed operand. If neither is the case,
all products are zero or at least φ. Third, each of the n additions may flush its result, since sums cancel: n·φ. With
scales of ordinary size float64 cannot even represent this part of the bound.

The bound holds for any order of summation (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §3.1 and
§4.2). Its inner sum is per element, because SIMD code splits a block over lanes, which only cancel later.

The spread u/√3·√Σ_b(S[b]² + 2·t[b]² + L[b]) is the standard deviation of as many independent roundings, each uniform
within half an ulp. A score against it stays small at any row length, where the bound grows loose. L[b] stands for sums
in correct code that only cancel later. The integer products and the m·s terms may be summed separately, so L[b] holds
the squares of both partial sums. SIMD lanes hold, with random signs, the root of the sum of squares of their terms, at
least a[b]²/32 a block, where a[b] is the block's term of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..support.arrays import get
from ..support.errors import KernelFault
from ..support.stages import counted
from ..support.threads import each
from .agreement import computed_on
from .definition import Oracle, Semantics
from .device import Device
from .elements import element_product
from .lanes import half_errors, lanes_of, with_lanes
from .narrow import stored
from .order import Order
from .sums import (
    Doubles,
    ErrorsOf,
    Floats,
    Lanes,
    LaneSpread,
    Product,
    Rows,
    concatenated,
    gamma,
)
from .term import BlockTerm
from .values import Activations, of_values, term_values

Bytes = npt.NDArray[np.uint8]

#: Elements of one (nb, M, n) working array (measured: smaller ones cost calls, larger ones leave the cache).
_TILE = 1 << 17
#: Elements below which another thread costs more than it saves.
_WORTH_A_THREAD = _TILE >> 2
#: Values of a term if an author's oracle defines the product; values of its weights held at a time.
_OWN_TERM, _OWN_VALUES = 32, 1 << 24


@counted("exact product")
def product(
    semantics: Semantics,
    fmt: WeightFormat,
    w: Bytes,
    x: Bytes,
    order: Order | None = None,
    threads: int = 1,
    device: Device | None = None,
    keys: Bytes | None = None,
    operands: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Product:
    """Compute the product of weights and activations in a GEMM's own layout.

    Args:
        semantics: the definition.
        fmt: the weights' format.
        w: uint8[N, row bytes].
        x: uint8[M, row bytes]: activations as the definition has them (float32 bytes for `f32`, and for `f16` and
            `bf16`, which round them).
        order: also compute the bits of this order, by the fused multiply-adds above: of blocks, or of values for `f32`.
            None: no bits. Fused operations begin with these bits, and have none of their own.
        threads: the number of threads that share the rows of W.
        device: the device that computes it; None: NumPy. Products of weights that are not quantized, of an author's
            oracle and of fused operations are computed by NumPy, and then moved there.
        keys: uint8[M, …], the seed of the random operands of fused operations for each token; None: x.
        operands: those of fused operations, by name; None: random ones.

    Returns:
        a Product of `[M, N]` arrays, on the device if there is one.

    Raises KernelFault if the definition is an oracle of the kernel's author that breaks its contract; EnvironmentFault
    if the device's numbers are not NumPy's; ValueError for an order that no definition states: one in parts, of values
    that are not quantized (`f32`, float types).
    """
    if device is not None and (isinstance(fmt, ElementFormat) or not _placeable(semantics)):
        return product(semantics, fmt, w, x, order, threads, keys=keys).placed(device.put)
    if isinstance(fmt, ElementFormat):
        made = element_product(fmt.name, w, np.ascontiguousarray(x).view(np.float32), order, threads)
        return with_lanes(made, semantics, fmt, w, x)
    inner = made = unstored(semantics, fmt, w, x, order, threads, device)
    if semantics.epilogue is not None:
        of_gate = lambda other: unstored(semantics, fmt, other, x, order, threads)  # noqa: E731
        made = semantics.epilogue.applied(made, fmt, w, x if keys is None else keys, of_gate, operands=operands)
    return _with_lanes(stored(made, semantics.output), inner, semantics, fmt, w, x)


def _with_lanes(made: Product, inner: Product, semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> Product:
    """Add the spread by lane orders. Fused operations scale that spread by the same factor as the other one."""
    if made is inner:
        return with_lanes(made, semantics, fmt, w, x)
    of = lanes_of(semantics, fmt, w, x)
    if of is None:
        return made

    def behind(tokens: Rows, rows: Rows) -> LaneSpread:
        found, before, after = of.of(tokens, rows), inner.spread[tokens, rows], made.spread[tokens, rows]
        with np.errstate(all="ignore"):
            factor = np.ones(len(before)) if semantics.epilogue is None else after / before
            more = np.nan_to_num(np.maximum(found.deviation - before, 0) * factor, nan=0.0)
        return LaneSpread(after + more, found.roundings)

    return replace(made, lanes=Lanes(behind, of.most))


def _placeable(semantics: Semantics) -> bool:
    """Return whether a device can compute a product: sums and outputs are float32, and nothing else is needed."""
    return semantics.oracle is None and semantics.plain and (semantics.inside or semantics).plain


def unstored(
    semantics: Semantics,
    fmt: BlockFormat,
    w: Bytes,
    x: Bytes,
    order: Order | None,
    threads: int,
    device: Device | None = None,
) -> Product:
    """Compute the product before any fused operation, and before it is rounded to the type of the output."""
    if order is not None and semantics.accumulation.name != "float32" and not semantics.order_known:
        raise ValueError(f"no definition states the order {order} of sums in {semantics.accumulation}")
    fmt = semantics.term.reads(fmt)
    if semantics.inside is not None:
        values = semantics.values_of(x)
        of_blocks = unstored(semantics.inside, fmt, w, semantics.inside.bytes_of(values), order, threads, device)
        return of_blocks.loosened(slack_of_sums(semantics.inside, fmt, w, values))
    if semantics.oracle is not None:
        return _own_product(semantics, fmt, w, x, threads)
    term, accumulation = semantics.term, semantics.accumulation
    semantics.uses_sum(fmt)  # raises ValueError if the activations have no such sum
    m, n = x.shape[0], w.shape[0]
    nb = w.shape[1] // fmt.block_bytes * (fmt.block_size // term_values(fmt))
    prepared = Activations.of(semantics.encoding, x, term_values(fmt), nb)
    if device is not None:
        there = prepared.on(device)
        return computed_on(
            device,
            semantics,
            fmt,
            w,
            8 * m * nb,
            lambda rows: term.product(accumulation, fmt, rows, there, order),
            lambda rows: term.product(accumulation, fmt, rows, prepared, order),
        )
    step = _rows_of_tile(m * nb, n, threads)
    spans = [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def one(span: slice) -> Product:
        with np.errstate(all="ignore"):
            return term.product(accumulation, fmt, w[span], prepared, order)

    whole = concatenated(each(one, spans, threads))
    columns = nb * term_values(fmt)
    if term.has_errors(accumulation):
        errors: ErrorsOf = lambda tokens, rows: term.errors(accumulation, fmt, w[rows], prepared.wide[tokens])  # noqa: E731
        return replace(whole, errors=errors, columns=columns)
    if accumulation.name == "float16" and term.splits:
        return replace(whole, errors=half_errors(semantics, fmt, w, x), columns=columns)
    return whole


def each_block(
    semantics: Semantics,
    fmt: BlockFormat,
    w: Bytes,
    x: Bytes,
    order: Order | None,
    threads: int = 1,
    device: Device | None = None,
) -> list[Product] | None:
    """Compute the products of each block along K alone, as if each were a call: a list of products [M, N].

    Args:
        semantics, fmt, w, x, order, threads, device: as in `product`, of whole rows. The products are NumPy's.

    None if the definition's activations cannot be split into blocks, or if it rounds or fuses anything else.
    """
    encoding, term, fmt = semantics.encoding.format, semantics.term, semantics.term.reads(fmt)
    plain = semantics.plain and semantics.inside is None and semantics.oracle is None
    if not (plain and isinstance(term, BlockTerm)) or encoding is None or encoding.block_size > fmt.unit:
        return None
    semantics.uses_sum(fmt)
    in_block, m, n = fmt.block_size // term_values(fmt), len(x), len(w)
    units = w.shape[1] // fmt.block_bytes
    prepared = Activations.of(semantics.encoding, x, term_values(fmt), units * in_block)
    of_parts = prepared.apart(units)
    step = _rows_of_tile(m * units * in_block, n, threads)

    def tile(rows: Bytes, x: Activations, of_parts: Activations) -> Product:
        return term.sum_of(term.read(fmt, rows, x).apart(units, of_parts), semantics.accumulation, order)

    def one(start: int) -> Product:
        with np.errstate(all="ignore"):
            return tile(w[start : start + step], prepared, of_parts)

    if device is not None:
        there = prepared.on(device), of_parts.on(device)
        made = computed_on(
            device,
            semantics,
            fmt,
            w,
            16 * m * units * in_block,
            lambda rows: tile(rows, *there),
            lambda rows: tile(rows, prepared, of_parts),
            units,
        ).placed(get)
    else:
        made = concatenated(each(one, range(0, n, step), threads))
    return [made.rows(np.arange(u * m, (u + 1) * m)) for u in range(units)]


def _rows_of_tile(terms: int, n: int, threads: int) -> int:
    """Return how many of n rows, of this many terms each, a thread computes at a time."""
    whole, least = (max(1, elements // max(1, terms)) for elements in (_TILE, _WORTH_A_THREAD))
    return max(least, min(whole, -(-n // threads)))


def slack_of_sums(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Floats) -> Doubles | float:
    """Return how far a kernel's own sums s may move the result, float64[M, N]; x are float32[M, K].

    If Σx of a block is very near the middle of two halves, the order of its float32 additions decides between them.
    """
    if not semantics.raw_sum or not semantics.uses_sum(fmt):
        return 0.0
    fmt, size = semantics.term.reads(fmt), semantics.encoding.values_per_sum
    values = x.reshape(len(x), -1, size).astype(np.float64)
    total, error = values.sum(axis=-1), gamma(size) * np.abs(values).sum(axis=-1)
    with np.errstate(all="ignore"):
        low, high = ((total + sign * error).astype(np.float16).astype(np.float64) for sign in (-1, 1))
        apart = np.nan_to_num(high - low, posinf=0.0)  # [M, nb]; an overflow is not finite anyway
        apart[:, semantics.encoding.no_room(apart.shape[1])] = 0.0
        if not apart.any():
            return 0.0
        least = semantics.term.scales(fmt, w.reshape(len(w), -1, fmt.block_bytes))[1][:, 0]  # [nb, N]
        return np.asarray(apart @ np.abs(np.nan_to_num(least)))


def _own_product(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, threads: int) -> Product:
    """Compute the product that an author's oracle defines, with the bound of `f32` (for any order of L products).

    Raises KernelFault.
    """
    oracle = semantics.oracle
    assert oracle is not None
    given = oracle.activations(x)
    a = _padded(given)
    step = max(1, _TILE // max(1, len(a) * a.shape[1] // _OWN_TERM))
    parts: list[Product] = []

    def of_tile(tile: Doubles) -> Product:
        with np.errstate(all="ignore"):
            return of_values(a, tile, _OWN_TERM, semantics.accumulation)

    for values in map(_padded, own_weights(oracle, fmt, w, given.shape[1])):
        tiles = [values[start : start + step] for start in range(0, len(values), step)]
        parts += each(of_tile, tiles, threads)
    return concatenated(parts)


def own_weights(oracle: Oracle, fmt: BlockFormat, w: Bytes, columns: int) -> Iterator[Doubles]:
    """Yield the oracle's weights, some rows at a time: float64[n, L], with the L of the activations.

    Raises KernelFault.
    """
    rows = max(1, _OWN_VALUES // columns)
    for start in range(0, len(w), rows):
        values = oracle.weights(fmt, w[start : start + rows])
        if values.shape[1] != columns:
            raise KernelFault(
                f"the kernel's oracle gives weights of {values.shape[1]} columns and activations of {columns}"
            )
        yield values


def _padded(values: Doubles) -> Doubles:
    """Pad with columns of zeros to whole terms."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _OWN_TERM)))
