"""FLASH_ATTN_EXT on a device that computes it along one of several paths.

The paths are those of `_attention_on_vulkan` and `_attention_on_cuda`. With the notation of `flash_attention`, and
u = 2^-11 for halves, the error of each part is:

    q'·k    the bound of a product in float32 or in halves (`semantics.values`); decoded values have the error of
            `half_steps`; for types with a single product d·q, one rounding
    δ[t]    as in `flash_attention`; for p in half also its rounding, and 2^-25 for a p below the normal halves. Σ p and
            Σ p·v use the same p.
    Σ p·v   in halves `in_halves` for one thread (the widest case), rescaled after every 32 keys, and γ_n·Σ p for the
            sum of p; in float32 `in_lanes` for both
    y       in halves 2u for 1/Σ p, u for the product and 2^-25 below the normal halves, and the same again where a sink
            is the largest score; otherwise the error of the quotient and of the product before it

The outputs show which path a node took: it is judged by the first path that all outputs pass. Paths in float32 come
before paths in halves, whose tolerance is wider. In halves the errors of a row must also be of similar size
(`_consistency`), so that one wrong output among right ones in float32 does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import BlockFormat
from gguf_verify.llama.node import Bytes, Doubles, Node, NoDefinition, Operand
from gguf_verify.semantics.accumulation import IN_FLOAT16, IN_FLOAT32, SCORE_LIMIT, Accumulation
from gguf_verify.semantics.narrow import HALF
from gguf_verify.semantics.sums import UNIT_ROUNDOFF
from gguf_verify.semantics.values import alignment_of_subnormals, exact_weights, of_values

from ._alibi import slopes
from ._attention_scores import Scores, capped, format_of, head_of, masked, over_heads
from ._attention_sums import Weights, in_halves, in_lanes
from .arithmetic import NORMAL, ULP, arithmetic
from .judging import Judged

#: Distance of M above the largest score, and the number of keys of the smallest block.
ABOVE, _BLOCK = float(np.float32(3) * np.float32(0.6931)), 32
#: Number of values of a term in `semantics`.
_TERM = 32
Floats = npt.NDArray[np.float32]


def scaled_in_float32(q: Floats, scale: np.float32) -> Doubles:
    return (q * scale).astype(np.float64)


def scaled_to_half(q: Floats, scale: np.float32) -> Doubles:
    return HALF.rounded(scaled_in_float32(q, scale))


@dataclass(frozen=True)
class Path:
    """One way of computing attention.

    Args:
        name: its name in tables.
        backend: ggml's name.
        halves: whether keys, values, p and the sums of p·v are halves.
        scores: how the products q'·k are accumulated and rounded.
        queries: returns q' as float64 from queries float32[rows, dims] and their scale.
        products: largest relative error from rounding each product q'·k by itself; below the normal halves 2^-23.
        conversion: largest relative error from rounding p to half.
        divides: whether the sums are divided in float32 rather than in halves.
        taken: replaces the computation of q'·k: returns the scores and their errors from queries, scale and keys.
    """

    name: str
    backend: str
    halves: bool
    scores: Accumulation
    queries: Callable[[Floats, np.float32], Doubles] = scaled_in_float32
    products: float = 0.0
    conversion: float = HALF.unit
    divides: bool = False
    taken: Callable[[Floats, np.float32, Operand], Scores] | None = None

    @property
    def in_half(self) -> bool:
        """Whether scores are halves."""
        return self.scores is IN_FLOAT16


def judge_by(node: Node, paths: Sequence[Path], undefined_where_wrong: str = "") -> Judged:
    """Judge a node by the path that it took; see the module's docstring.

    Args:
        paths: the candidates, those in float32 first.
        undefined_where_wrong: reason to raise NoDefinition if no path explains the output.

    Raises NoDefinition.
    """
    k, v = node.source(1), node.source(2)
    found: list[Judged] = []
    undefined = None
    for path in paths:
        try:
            one = _by(path, node, f"K {k.type}, V {v.type}, {path.name}")
        except NoDefinition as e:
            undefined = e
            continue
        if one.passed:
            return one
        found.append(one)
    if undefined is not None or not found:
        raise undefined or NoDefinition(node.op)
    if undefined_where_wrong:
        raise NoDefinition(undefined_where_wrong)
    return min(found, key=lambda one: (one.wrong, one.utilisation))


def _by(path: Path, node: Node, name: str) -> Judged:
    q, k, v = (node.source(i) for i in range(3))
    slope, relative = slopes(node, q.ne[2], node.number(1))
    if path.in_half and node.number(1) > 0:  # base rounded to half, then raised to k < 2·heads
        of_power = 2 * HALF.unit * arithmetic(path.backend).power
        relative = relative + np.expm1(2 * np.log1p(HALF.unit) * (2 * q.ne[2])) + of_power
    unit = path.scores.unit

    def of(batch: int, head: int, rows: slice) -> tuple[Doubles, Doubles]:
        queries, keys = q.data[batch, head, rows].astype(np.float32), head_of(k, batch, head, q.ne[2])
        scores = masked(node, _scores(path, node, queries, keys), (slope, relative), unit, batch, head, rows)
        return _attended(path, node, scores, *_held(path, head_of(v, batch, head, q.ne[2])), head)

    return over_heads(node, name, of, alike=path.halves)


def _held(path: Path, given: Operand) -> tuple[Doubles, Doubles | None]:
    """Return keys or values [keys, dims] as they are multiplied, and their errors (None if exact)."""
    fmt, decoded = format_of(given), given.values[0, 0]
    if not path.halves:
        return decoded, None
    if not isinstance(fmt, BlockFormat) or not fmt.has_min:
        return HALF.rounded(decoded), None
    blocks: Bytes = np.ascontiguousarray(given.data[0, 0]).reshape(len(decoded), -1, fmt.block_bytes)
    d, least = (np.repeat(np.abs(of(blocks).astype(np.float64)), fmt.group, axis=-1) for of in (fmt.scales, fmt.minima))
    codes = np.abs(fmt.codes(blocks).astype(np.float64))
    off = np.expm1(4 * np.log1p(HALF.unit)) * (d * codes + least) + 2 * HALF.underflow * (codes + 2)
    return exact_weights(fmt, blocks).reshape(decoded.shape), off.reshape(decoded.shape)


def _scores(path: Path, node: Node, q: Floats, keys: Operand) -> Scores:
    """Return scale·(q·k), or its soft cap, before the mask."""
    scale, cap = np.float32(node.number(0)), np.float32(node.number(2))
    scale = scale / cap if cap else scale
    z = _products(path, q, scale, keys) if path.taken is None else path.taken(q, scale, keys)
    u = path.scores.unit
    return capped(z, np.float64(cap), 2 * u * arithmetic(path.backend).tanh + 2 * u) if cap else z


def _products(path: Path, q: Floats, scale: np.float32, keys: Operand) -> Scores:
    k, k_off = _held(path, keys)
    scaled = path.queries(q, scale)
    made = of_values(_padded(scaled), _padded(k), _TERM, path.scores)
    off, spread = np.minimum(made.bound, SCORE_LIMIT * made.spread), made.spread  # as in the gate of products
    cut = alignment_of_subnormals(scaled, k, HALF, path.scores, k_off)
    off, spread = off + cut, spread + cut / SCORE_LIMIT
    if k_off is not None:
        slack = np.abs(scaled) @ k_off.T * (1 + path.scores.growth(k.shape[1]))
        off, spread = off + slack, spread + slack / SCORE_LIMIT
    if path.products:
        least = 2 * _LEAST_PRODUCT * k.shape[1]
        off = off + path.products * (np.abs(scaled) @ np.abs(k).T) + least
        spread = np.hypot(spread, path.products * np.sqrt(scaled**2 @ (k**2).T / 3)) + least / SCORE_LIMIT
    return Scores(made.exact, off, spread)


#: Four times half the spacing of subnormal halves: the tile kernel multiplies a quarter of each query.
_LEAST_PRODUCT = 4 * HALF.underflow


def _padded(values: Doubles) -> Doubles:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _TERM)))


def _attended(
    path: Path, node: Node, scores: Scores, v: Doubles, v_off: Doubles | None, head: int
) -> tuple[Doubles, Doubles]:
    """Return the result [rows, DV] and its bound."""
    if not np.isfinite(v).all():
        raise NoDefinition("attention over values that are not finite")
    a, n, s, read = arithmetic(path.backend), len(v), scores.s, ~np.isneginf(scores.s)
    u = HALF.unit if path.halves else UNIT_ROUNDOFF
    largest = s.max(axis=1, keepdims=True, initial=-np.inf)
    most = largest + ABOVE
    below = np.where(read, np.abs(s - most), 0.0)
    own = UNIT_ROUNDOFF * below + a.exp_error(below) + (path.conversion if path.halves else 0.0)
    if path.in_half:  # each part of the keys stores its M as a half
        own = own + u * np.abs(np.where(np.isinf(most), 0.0, most))
    tiny = HALF.underflow if path.halves else NORMAL
    off, spread = scores.off + own, scores.spread + own / np.sqrt(3)
    p = np.where(read, np.exp(s - most), 0.0)
    sink, sink_off = _sink(path, node, most, head)
    whole = p.sum(axis=1, keepdims=True) + sink
    o = np.where(whole > 0, p @ v / whole, 0.0)
    weight_off, deviation = p * np.expm1(off) + tiny * read, p * spread + tiny * read
    hard = weight_off @ np.abs(v) + np.abs(o) * weight_off.sum(axis=1, keepdims=True)
    scored = deviation**2
    squares = scored @ v**2 - 2 * o * (scored @ v) + o**2 * scored.sum(axis=1, keepdims=True)
    of_scores = np.minimum(hard, SCORE_LIMIT * np.sqrt(np.maximum(squares, 0.0)))
    if path.halves:
        of_values, of_sum = _in_halves(s, largest, read, p, v), IN_FLOAT32.growth(n + 3 * (n // _BLOCK)) * whole
    else:
        of_values, of_sum = in_lanes(p, v, _BLOCK), in_lanes(p, np.ones((n, 1)), _BLOCK) + UNIT_ROUNDOFF * whole
    if v_off is not None:
        of_values = of_values + p @ v_off
    of_weights = of_sum + sink_off + (u * whole if path.in_half else 0.0)
    total = of_scores + of_values + np.abs(o) * of_weights
    least = (p * np.exp(-off)).sum(axis=1, keepdims=True) + sink - of_weights - tiny * read.sum(axis=1, keepdims=True)
    in_halves_too = path.halves and not path.divides
    last = (5 * u + tiny * whole) if in_halves_too else (a.division * ULP + 4 * UNIT_ROUNDOFF)
    final = last * np.abs(o) + 4 * (tiny if in_halves_too else NORMAL)
    bound = total / np.maximum(least, 0.0) + final
    return o, np.where(whole > 0, bound, 0.0)


def _sink(path: Path, node: Node, most: Doubles, head: int) -> tuple[Doubles, Doubles]:
    """Return exp(sink - M) of each row, and its error."""
    sinks = node.optional(4)
    if sinks is None:
        return np.zeros_like(most), np.zeros_like(most)
    given = sinks.values[0, 0, 0, head]
    if not np.isfinite(given):
        raise NoDefinition("attention with a sink that is not finite")
    apart = np.where(np.isinf(most), 0.0, np.clip(given - most, -600, 600))  # a sink alone: any M gives the same result
    rounded = (path.scores.unit if path.in_half else 0.0) * np.abs(given) + UNIT_ROUNDOFF * np.abs(apart)
    sink = np.exp(apart)
    return sink, sink * (np.expm1(rounded) + arithmetic(path.backend).exp_error(apart) + UNIT_ROUNDOFF)


def _in_halves(s: Doubles, largest: Doubles, read: npt.NDArray[np.bool_], p: Doubles, v: Doubles) -> Doubles:
    """Return the error of Σ p·v, including the addition of the threads' sums, which takes eight roundings."""
    then = np.maximum.accumulate(s, axis=1)
    back = np.where(read, np.exp(then - largest), 0.0)
    of_then = np.where(read, np.exp(s - then - ABOVE), 0.0)
    rescaled = np.broadcast_to(np.arange(s.shape[1]) % _BLOCK == _BLOCK - 1, s.shape)
    off = in_halves(Weights(p, of_then, back, read, rescaled, False), v)
    tree: Doubles = 8 * HALF.unit * np.sqrt(((p @ v) ** 2 + p**2 @ v**2) * 8 / 3)
    return off + tree
