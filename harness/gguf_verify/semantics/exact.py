"""The exact product of a definition, and how far a correct float32 computation of it may be from it.

There are M rows of activations and N rows of weights, with nb terms in a row: blocks of 32 values, slices of 32 of
larger blocks, or groups of 16 where these have a scale of their own. In float64:

    term    t[b] = d_w·d_a·Σ q_w·q_a + m_w·s        result  o = Σ_b t[b]        partial sums  S[b]
            s is the activations' stored sum, or d_a·Σ q_a for the minima of superblocks
    bound   γ_n·Σ_b (|d_w·d_a|·Σ(|q_w| + 2z)·|q_a| + |m_w·s|),  γ_n = n·u/(1 - n·u),  n = nb + 8,  u = 2^-24;
            n = 2·nb + 8 where there is an s, whose terms may be added apart
    order   S ← fma(d_w·d_a, Σ q_w·q_a, S), then S ← fma(m_w, s, S);
            where m_w is -o·d_w, S ← fma(d_w, fma(d_a, Σ q_w·q_a, -o·s), S)

z is the zero point of formats whose codes have one, where a definition lets it be multiplied apart, else 0:
|q_w + z| + z is at most |q_w| + 2z. A product that underflows also loses up to η = 2^-150, times what it is then
multiplied by. Where 0 < |d_w·d_a| < 2^-126, which needs scales that are not halves, that is
η·(Σ(|q_w| + 2z)·|q_a| + |d_w| + |d_a| + 64) for the term, in any order of its factors; for products of values it is η
each. The bound holds for any order of summation (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed.,
§3.1 and §4.2). Its inner sum is per element, because SIMD code splits a block over lanes, which cancel only later.

The spread u/√3·√Σ_b(S[b]² + 2·t[b]² + L[b]) is the standard deviation of as many independent roundings, each uniform
within half an ulp. A score against it stays small at any row length, where the bound grows loose. L[b] stands for what
correct code carries that cancels only later. The integer products and the m·s terms may be summed apart, so L[b] holds
the squares of both partial sums. SIMD lanes hold, with random signs, the root of the sum of squares of what they added,
at least a[b]²/32 a block, where a[b] is the block's term of the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, ElementFormat, WeightFormat
from ..support.errors import KernelFault
from ..support.stages import counted
from .definition import Oracle, Semantics
from .elements import element_product, exact_elements
from .order import Order
from .rounding import SMALLEST_NORMAL, add_rounded, chain_rounded, multiply_adds
from .sums import (
    EXTRA_ROUNDINGS,
    UNDERFLOW,
    UNIT_ROUNDOFF,
    Doubles,
    Floats,
    Product,
    concatenated,
    gamma,
    spread_of,
    walk,
)

__all__ = ["UNIT_ROUNDOFF", "Product", "exact_result", "gamma", "product"]

Bytes = npt.NDArray[np.uint8]

#: Elements of one (nb, M, n) working array (measured: smaller ones cost calls, larger ones leave the cache).
_TILE = 1 << 17
#: Values of a term where an author's oracle gives the product; values of its weights that are held at a time.
_OWN_TERM, _OWN_VALUES = 32, 1 << 24


@counted("exact product")
def product(
    semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, order: Order | None = None, threads: int = 1
) -> Product:
    """The product of weights and activations in a GEMM's own layout.

    Args:
        semantics: the definition.
        fmt: the weights' format.
        w: uint8[N, row bytes].
        x: uint8[M, row bytes]: activations as the definition has them (float32 bytes for `f32`, and for `f16` and
            `bf16`, which round them).
        order: also compute the bits of this order, by the fused multiply-adds above: of blocks, or of values for
            `f32`. None: no bits.
        threads: rows of W are shared out among so many threads.

    Returns:
        a Product of `[M, N]` arrays.

    Raises KernelFault where the definition is an oracle of the kernel's author, and that breaks its contract;
    ValueError for an order in parts of values that are not quantized (`f32`, float types), which no definition states.
    """
    if isinstance(fmt, ElementFormat):
        return element_product(fmt.name, w, np.ascontiguousarray(x).view(np.float32), order, threads)
    if semantics.inside is not None:
        of_blocks = product(semantics.inside, fmt, w, _encoded(semantics, x), order, threads)
        slack = _of_sums(semantics.inside, fmt, w, x)
        return replace(of_blocks, bound=of_blocks.bound + slack, spread=of_blocks.spread + slack)
    if semantics.oracle is not None:
        return _own_product(semantics.oracle, fmt, w, x, threads)
    tile = _apart_tile if semantics.minima_apart else _f32_tile if semantics.activations is None else _block_tile
    m, n = x.shape[0], w.shape[0]
    nb = w.shape[1] // fmt.block_bytes * (fmt.block_size // term_values(fmt))
    step = max(1, min(_TILE // max(1, m * nb), -(-n // threads)))
    prepared = _prepare(semantics, x, term_values(fmt))
    spans = [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def one(span: slice) -> Product:
        with np.errstate(all="ignore"):
            return tile(semantics, fmt, w[span], prepared, order)

    if threads > 1 and len(spans) > 1:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(one, spans))
    else:
        parts = [one(span) for span in spans]
    return concatenated(parts)


@dataclass(frozen=True)
class _Activations:
    """Decoded once for all tiles: codes [nb, M, 32 or 16], their magnitudes, d and s [nb, M, 1]; or values [M, K]."""

    q: Floats
    q_abs: Floats
    d: Doubles
    s: Doubles


def term_values(fmt: BlockFormat) -> int:
    """Values of a term: 32, or 16 where only so many share a scale."""
    return min(fmt.group, 32)


def _prepare(semantics: Semantics, x: Bytes, values: int) -> _Activations:
    fmt = semantics.activations
    if fmt is None:
        floats = np.ascontiguousarray(x).view(np.float32)
        nothing = np.zeros(0)
        return _Activations(floats, np.abs(floats), nothing, nothing)
    blocks = x.reshape(x.shape[0], -1, fmt.block_bytes)
    q = fmt.codes(blocks).astype(np.float32).reshape(len(x), -1, values).transpose(1, 0, 2)
    d = np.repeat(fmt.scale(blocks).astype(np.float64), fmt.block_size // values, axis=1).T[..., None]
    view = fmt.view(blocks)
    s = view["s"].astype(np.float64).T[..., None] if "s" in (view.dtype.names or ()) else np.zeros_like(d)
    return _Activations(q, np.abs(q), d, s)


def _block_tile(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: _Activations, order: Order | None) -> Product:
    blocks = w.reshape(w.shape[0], -1, fmt.block_bytes)
    values = term_values(fmt)
    q = fmt.codes(blocks).astype(np.float32)
    if semantics.integer_offset(fmt):
        q -= np.float32(fmt.offset)
    q = q.reshape(len(w), -1, values).transpose(1, 2, 0)  # [nb, 32 or 16, n]
    nb = len(q)
    d, least = _by_term(fmt, fmt.scales(blocks)), _by_term(fmt, fmt.minima(blocks))
    if semantics.half_scales(fmt):
        d, least = (v.astype(np.float16).astype(np.float64) for v in (d, least))
    # float32 holds these integers: 32·255·128 < 2^24
    sums = np.matmul(x.q, q).astype(np.float64)  # [nb, M, n]
    scale = x.d * d
    if semantics.half_products(fmt):
        scale = scale.astype(np.float16).astype(np.float64)
    first = scale * sums
    codes = np.matmul(x.q_abs, np.abs(q) + np.float32(2 * fmt.zero if semantics.zero_apart else 0))
    magnitude = np.abs(scale) * codes
    lost = _lost(scale, codes, d, x.d)
    second: Doubles | None = None
    factor: Doubles | None = None
    total: Doubles | None = None
    if semantics.uses_sum(fmt):
        second = x.s * least
        if semantics.half_products(fmt):
            second = second.astype(np.float16).astype(np.float64)
        magnitude += np.abs(second)
    elif fmt.has_min:
        factor, total = x.d * least, x.q.sum(axis=-1, keepdims=True).astype(np.float64)
        second = factor * total
        codes = x.q_abs.sum(axis=-1, keepdims=True)
        magnitude += np.abs(factor) * codes
        lost = lost + _lost(factor, codes, least, x.d)
    result = None
    if order is not None:
        if second is not None and fmt.offset and not semantics.half_products(fmt):
            shift = np.broadcast_to((-fmt.offset * x.s).astype(np.float32), sums.shape)
            streams = [d * add_rounded(x.d * sums, shift).astype(np.float64)]
        else:
            # a kernel rounds d_w·d_a and m_w·d_a to float32 first; of two halves they are exact
            streams = [_float32(scale) * sums]
            if second is not None:
                streams.append(second if factor is None or total is None else _float32(factor) * total)
        part = order.terms(len(streams[0]), values)
        for start in range(0, len(streams[0]), part):
            of_part = chain_rounded([stream[start : start + part] for stream in streams])
            result = of_part if result is None else add_rounded(of_part.astype(np.float64), result)
    term = first if second is None else first + second
    exact, carried = walk(term)
    if second is not None:
        carried += walk(first)[1] + walk(second)[1]
    added = nb if second is None else 2 * nb
    bound = gamma(added + EXTRA_ROUNDINGS) * magnitude.sum(axis=0) + lost
    return Product(exact, bound, spread_of(term, carried, magnitude**2 / values, 1) + lost, result)


def _lost(scale: Doubles, codes: Floats, d_w: Doubles, d_a: Doubles) -> Doubles | float:
    """What underflow may take from products of d_w, d_a and sums of codes, [M, n] from [nb, M, n]."""
    tiny = (scale != 0) & (np.abs(scale) < SMALLEST_NORMAL)
    if not tiny.any():
        return 0.0
    return np.asarray((tiny * UNDERFLOW * (codes + np.abs(d_w) + np.abs(d_a) + 64)).sum(axis=0))


def _by_term(fmt: BlockFormat, of_groups: Floats) -> Doubles:
    """float32[n, blocks, groups] as float64[nb, 1, n]."""
    per_group = fmt.group // term_values(fmt)
    flat = of_groups.reshape(len(of_groups), -1)
    return np.repeat(flat.astype(np.float64), per_group, axis=1).T[:, None, :]


def _float32(values: Doubles) -> Doubles:
    return values.astype(np.float32).astype(np.float64)


def _f32_tile(_: Semantics, fmt: BlockFormat, w: Bytes, x: _Activations, order: Order | None) -> Product:
    n, k = w.shape[0], x.q.shape[1]
    values = fmt.decode(w.reshape(n, -1, fmt.block_bytes)).reshape(n, k)
    result = None
    if order is not None:
        if order.part is not None:
            raise ValueError(f"no definition states the order {order} for float32 activations")
        result = multiply_adds(np.ascontiguousarray(x.q.T), np.ascontiguousarray(values.T))
    return _of_values(x.q.astype(np.float64), values.astype(np.float64), term_values(fmt), result)


def _apart_tile(_: Semantics, fmt: BlockFormat, w: Bytes, x: _Activations, order: Order | None) -> Product:
    """Float32 activations; a block's codes and its minimum are multiplied apart, and may be added up apart."""
    if order is not None:
        raise ValueError(f"no definition states the order {order} where minima are multiplied apart")
    blocks, values = w.reshape(len(w), -1, fmt.block_bytes), term_values(fmt)
    q = fmt.codes(blocks).astype(np.float64).reshape(len(w), -1, values).transpose(1, 2, 0)  # [nb, 32 or 16, n]
    d, least = _by_term(fmt, fmt.scales(blocks)), _by_term(fmt, fmt.minima(blocks))
    a = x.q.astype(np.float64).reshape(len(x.q), -1, values).transpose(1, 0, 2)  # [nb, M, 32 or 16]
    first, second = d * np.matmul(a, q), least * a.sum(axis=-1, keepdims=True)
    exact, carried = walk(first + second)
    carried += walk(first)[1] + walk(second)[1]
    size = np.abs(a)
    magnitude = (np.abs(d) * np.matmul(size, np.abs(q)) + np.abs(least) * size.sum(axis=-1, keepdims=True)).sum(axis=0)
    lanes = d**2 * np.matmul(a**2, q**2) + least**2 * (a**2).sum(axis=-1, keepdims=True)
    columns = x.q.shape[1]
    lost = (magnitude > 0) * UNDERFLOW * 2 * columns * np.maximum(1, np.abs(d) + np.abs(least)).max(axis=0)
    # of a value: its product, the sum of its block, its scale, and the sums of blocks, of either kind
    bound = gamma(columns + 2 * len(q) + EXTRA_ROUNDINGS) * magnitude + lost
    return Product(exact, bound, spread_of(first + second, carried, lanes, values) + lost, None)


def _of_values(a: Doubles, w: Doubles, size: int, ordered: Floats | None = None) -> Product:
    """The product of values float64[M, K] and float64[n, K], with `size` values in a term."""
    by_block = a.reshape(len(a), -1, size).transpose(1, 0, 2)
    w_by_block = w.reshape(len(w), -1, size).transpose(1, 2, 0)
    term = np.matmul(by_block, w_by_block)
    exact, carried = walk(term)
    spread = spread_of(term, carried, np.matmul(by_block**2, w_by_block**2), size)
    magnitude = np.abs(a) @ np.abs(w).T
    lost = (magnitude > 0) * UNDERFLOW * a.shape[1]
    bound = gamma(a.shape[1] + EXTRA_ROUNDINGS) * magnitude + lost
    return Product(exact, bound, spread + lost, ordered)


def _encoded(semantics: Semantics, x: Bytes) -> Bytes:
    """Float32 bytes uint8[M, 4·K] as the kernel must quantize them."""
    assert semantics.inside is not None
    return semantics.inside.bytes_of(np.ascontiguousarray(x).view(np.float32))


def _of_sums(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> Doubles | float:
    """How far a kernel's own sums s may move the result, float64[M, N]; x are float32 bytes.

    Where Σx of a block is very near the middle of two halves, the order of its float32 additions decides between
    them.
    """
    if not semantics.raw_sum or not semantics.uses_sum(fmt):
        return 0.0
    values = np.ascontiguousarray(x).view(np.float32).reshape(len(x), -1, 32).astype(np.float64)
    total, error = values.sum(axis=-1), gamma(32) * np.abs(values).sum(axis=-1)
    with np.errstate(all="ignore"):
        low, high = ((total + sign * error).astype(np.float16).astype(np.float64) for sign in (-1, 1))
        apart = np.nan_to_num(high - low, posinf=0.0)  # [M, nb]; what overflows is not finite anyway
        if not apart.any():
            return 0.0
        least = _by_term(fmt, fmt.minima(w.reshape(len(w), -1, fmt.block_bytes)))[:, 0]  # [nb, N]
        if semantics.half_scales(fmt):
            least = least.astype(np.float16).astype(np.float64)
        return np.asarray(apart @ np.abs(np.nan_to_num(least)))


def _own_product(oracle: Oracle, fmt: BlockFormat, w: Bytes, x: Bytes, threads: int) -> Product:
    """The product that an author's oracle gives, with the bound of `f32`, which holds for any order of L products.

    Raises KernelFault.
    """
    given = oracle.activations(x)
    a = _padded(given)
    step = max(1, _TILE // max(1, len(a) * a.shape[1] // _OWN_TERM))
    parts: list[Product] = []
    for values in map(_padded, _own_weights(oracle, fmt, w, given.shape[1])):
        tiles = [values[start : start + step] for start in range(0, len(values), step)]
        with np.errstate(all="ignore"), ThreadPoolExecutor(threads) as pool:
            parts += pool.map(lambda tile: _of_values(a, tile, _OWN_TERM), tiles)
    return concatenated(parts)


def _own_weights(oracle: Oracle, fmt: BlockFormat, w: Bytes, columns: int) -> Iterator[Doubles]:
    """The oracle's weights, some rows at a time: float64[n, L], with the L of the activations. Raises KernelFault."""
    rows = max(1, _OWN_VALUES // columns)
    for start in range(0, len(w), rows):
        values = oracle.weights(fmt, w[start : start + rows])
        if values.shape[1] != columns:
            raise KernelFault(
                f"the kernel's oracle gives weights of {values.shape[1]} columns and activations of {columns}"
            )
        yield values


def _padded(values: Doubles) -> Doubles:
    """Filled up with columns of zeros to whole terms."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _OWN_TERM)))


def exact_weights(fmt: BlockFormat, blocks: Bytes) -> Doubles:
    """d·q + m of uint8[..., block_bytes], float64[..., block_size], not rounded as a decoded value is."""
    q = fmt.codes(blocks).astype(np.float64)
    q = q.reshape(*q.shape[:-1], fmt.groups, fmt.group)
    q *= fmt.scales(blocks)[..., None]
    q += fmt.minima(blocks)[..., None]
    return q.reshape(*q.shape[:-2], fmt.block_size)


def exact_result(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes, threads: int = 1) -> Doubles:
    """The exact result of `product` alone, float64[M, N], by two matrix products, for passes that judge nothing."""
    if isinstance(fmt, ElementFormat):
        return exact_elements(fmt.name, w, np.ascontiguousarray(x).view(np.float32), threads)
    if semantics.inside is not None:
        return exact_result(semantics.inside, fmt, w, _encoded(semantics, x), threads)
    if semantics.oracle is not None:
        own = semantics.oracle.activations(x)
        return np.concatenate([own @ v.T for v in _own_weights(semantics.oracle, fmt, w, own.shape[1])], axis=1)
    if semantics.half_products(fmt) or semantics.half_scales(fmt):  # no matrix product rounds inside blocks
        return product(semantics, fmt, w, x, threads=threads).exact
    n, k = w.shape[0], w.shape[1] // fmt.block_bytes * fmt.block_size
    step = max(1, _TILE * 8 // k)
    spans = [slice(start, start + step) for start in range(0, n, step)]
    if semantics.activations is None:
        a, s = np.ascontiguousarray(x).view(np.float32).astype(np.float64), None
    else:
        blocks = x.reshape(x.shape[0], -1, semantics.activations.block_bytes)
        d = semantics.activations.scale(blocks).astype(np.float64)
        a = (semantics.activations.codes(blocks) * d[..., None]).reshape(x.shape[0], k)
        view = semantics.activations.view(blocks)
        s = view["s"].astype(np.float64) if semantics.uses_sum(fmt) else None

    def one(span: slice) -> Doubles:
        blocks = w[span].reshape(len(w[span]), -1, fmt.block_bytes)
        with np.errstate(all="ignore"):
            if semantics.activations is None and not semantics.minima_apart:
                return np.asarray(a @ fmt.decode(blocks).reshape(len(blocks), k).astype(np.float64).T)
            if s is None:
                return np.asarray(a @ exact_weights(fmt, blocks).reshape(len(blocks), k).T)
            values = fmt.codes(blocks) * fmt.scale(blocks).astype(np.float64)[..., None]
            minimum = fmt.minimum(blocks).astype(np.float64)
            return np.asarray(a @ values.reshape(len(blocks), k).T + s @ minimum.T)

    if threads > 1 and len(spans) > 1:
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(one, spans)), axis=1)
    return np.concatenate([one(span) for span in spans], axis=1)
