"""Attention, head by head: pairing of rows; soft cap, mask and ALiBi slopes of scores, with their errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gguf_verify.formats.tensor_types import WeightFormat, tensor_type
from gguf_verify.llama.node import F16, F32, Doubles, Node, NoDefinition, Operand, demand
from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify.semantics.narrow import HALF

from .arithmetic import ULP, arithmetic
from .consistency import admitted
from .judging import Judged, within

#: Largest number of scores [rows, keys] held at a time.
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Scores:
    """Scores of queries over keys, float64[rows, keys]: exact values, their error bounds and their spread."""

    s: Doubles
    off: Doubles
    spread: Doubles


def check(node: Node, q: Operand, k: Operand, v: Operand) -> None:
    """Check the types and shapes of an attention node. Raises NoDefinition."""
    batches, heads, tokens, _ = q.shape
    shared = all(each.ne[3] == batches and each.ne[2] > 0 and heads % each.ne[2] == 0 for each in (k, v))
    fits = 0 < k.ne[0] == q.ne[0] and 0 < k.ne[1] == v.ne[1] and node.output.shape == (batches, tokens, heads, v.ne[0])
    if q.type_id != F32 or not shared or not fits:
        raise NoDefinition(f"attention of {q.type} {q.ne} over {k.type} {k.ne} and {v.type} {v.ne}")
    mask, sinks = node.optional(3), node.optional(4)
    if mask is not None:
        mask_of(node, mask, tokens, k.ne[1], (batches, heads))
        demand(mask.type_id == F16, f"attention with a mask of {mask.type}")
    if sinks is not None and (sinks.type_id != F32 or sinks.shape != (1, 1, 1, heads)):
        raise NoDefinition(f"attention with sinks of {sinks.type} {sinks.ne}")
    format_of(k)


def over_heads(
    node: Node, definition: str, of: Callable[[int, int, slice], tuple[Doubles, Doubles]], alike: bool = False
) -> Judged:
    """Judge a node head by head.

    Args:
        definition: its name in tables.
        of: returns the exact result [rows, DV] and its bound for a batch, a head and some of its queries.
        alike: whether sums are halves, so that the errors of a row must be of similar size (`consistency`).
    """
    batches, heads, tokens, _ = node.source(0).shape
    exact, bound = (np.zeros(node.output.shape) for _ in range(2))
    step = max(1, _AT_ONCE // max(1, node.source(1).ne[1]))
    with np.errstate(all="ignore"):
        for batch in range(batches):
            for head in range(heads):
                for first in range(0, tokens, step):
                    rows = slice(first, min(first + step, tokens))
                    exact[batch, rows, head], bound[batch, rows, head] = of(batch, head, rows)
        if alike:
            inexact = node.output.data != exact.astype(np.float32)
            off = np.where(inexact, np.abs(node.output.data - exact), 0.0)
            as_rows = -1, exact.shape[3]
            left = admitted(off.reshape(as_rows), bound.reshape(as_rows), exact.reshape(as_rows), HALF.unit)
            bound = left.reshape(bound.shape)
        return within(node, definition, exact, bound)


def format_of(operand: Operand) -> WeightFormat:
    """Return the format of an operand. Raises NoDefinition for a type without products."""
    known = tensor_type(operand.type_id)
    if known is None or known.weights is None:
        raise NoDefinition(f"attention over {operand.type}")
    return known.weights


def head_of(operand: Operand, batch: int, head: int, heads: int) -> Operand:
    """Return the head of K or V, [keys, dims], that a head of the queries uses."""
    return Operand.of(np.array(operand.data[batch, head // (heads // operand.ne[2])]), operand.type_id)


def capped(z: Scores, cap: np.float64, relative: float) -> Scores:
    """Return c·tanh(z); `relative` is the relative error of the tanh and its product with c."""
    tanh = np.tanh(z.s)
    own = relative * np.abs(tanh)
    slope = np.minimum(1, (1 - tanh**2) * np.exp(2 * np.minimum(z.off, 1)))
    off, spread = slope * z.off + own, slope * z.spread + own / np.sqrt(3)
    return Scores(cap * tanh, np.abs(cap) * off, np.abs(cap) * spread)


def from_weights(v: Doubles, o: Doubles, off: Doubles, spread: Doubles) -> Doubles:
    """Return the error [rows, DV] of Σ p·v, for a result o, that comes from the errors of the weights p [rows, keys].

    An error of p[t] moves the result by v[t] - o. Independent errors are limited to SCORE_LIMIT standard deviations.
    """
    hard = off @ np.abs(v) + np.abs(o) * off.sum(axis=1, keepdims=True)
    variances = spread**2
    squares = variances @ v**2 - 2 * o * (variances @ v) + o**2 * variances.sum(axis=1, keepdims=True)
    error: Doubles = np.minimum(hard, SCORE_LIMIT * np.sqrt(np.maximum(squares, 0.0)))
    return error


def masked(
    node: Node, scores: Scores, slopes: tuple[Doubles, Doubles], unit: float, batch: int, head: int, rows: slice
) -> Scores:
    """Return the scores with the mask added.

    Args:
        slopes: the slope of each head, and its relative error.
        unit: largest relative error of one rounding of the product and the sum.

    Raises NoDefinition if a score that the mask keeps is not finite.
    """
    mask, s, off, spread = node.optional(3), scores.s, scores.off, scores.spread
    if mask is not None:
        given = mask.data[batch % mask.ne[3], head % mask.ne[2], rows].astype(np.float64)
        added = slopes[0][head] * given
        s = np.where(np.isneginf(added), -np.inf, s + added)
        more = unit * (np.abs(added) + np.abs(s)) + slopes[1][head] * np.abs(added)
        off, spread = off + more, spread + more / np.sqrt(3)
        left_out = np.isneginf(added)
        off, spread = np.where(left_out, 0.0, off), np.where(left_out, 0.0, spread)
        s_read = np.where(left_out, 0.0, s)
    else:
        s_read = s
    if not np.isfinite(s_read).all():
        raise NoDefinition("attention whose scores are not finite")
    return Scores(s, off, spread)


def slopes(node: Node, heads: int, max_bias: float) -> tuple[Doubles, Doubles]:
    """Return the slope of each head, and its relative error: float64[heads] each.

    With b = max_bias and n the largest power of two that is at most the number of heads, head h has

        m^k    m = 2^(-b/n), k = h + 1 if h < n       m = 2^(-b/(2n)), k = 2·(h - n) + 1 for the others

    and 1 where b is not positive. The exponents are exact. m is a float32 power; raising it to k multiplies its
    error by k.
    """
    if not max_bias > 0 or not heads:
        return np.ones(heads), np.zeros(heads)
    n, h = 1 << (heads.bit_length() - 1), np.arange(heads)
    k = np.where(h < n, h + 1, 2 * (h - n) + 1)
    exponents = k * np.where(h < n, max_bias / n, max_bias / 2 / n)
    return np.exp2(-exponents), (ULP * arithmetic("CPU").power) * k + ULP * arithmetic(node.backend).power


def mask_of(node: Node, mask: Operand, rows: int, columns: int, sizes: tuple[int, int]) -> None:
    """Check that `mask` is a mask of scores [sizes, at least rows, columns] whose batches divide `sizes`.

    Raises NoDefinition.
    """
    ne3, ne2, ne1, ne0 = mask.shape
    fits = ne0 == columns and ne1 >= rows and ne2 > 0 < ne3 and sizes[1] % ne2 == 0 and sizes[0] % ne3 == 0
    demand(mask.type_id in (F16, F32) and fits, f"{node.operation} with a mask of {mask.type} {mask.ne}")
