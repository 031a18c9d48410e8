"""FLASH_ATTN_EXT as llama.cpp's Vulkan backend computes it (vulkan-shaders/flash_attn.comp, flash_attn_base.glsl and
flash_attn_split_k_reduce.comp; ggml-vulkan.cpp, ggml_vk_flash_attn; v0.5.0).

A device without halves, and any with keys of bfloat16 but no matrix cores for them, has float32 throughout. With halves
(FLOAT_TYPE is float16_t)

    q'      half(scale·q), or half(scale/c·q) with a soft cap c          k, v     rounded or decoded to half
    s[t]    q'·k[t], its soft cap and its mask in float32, or in halves (ACC_TYPE) where parameter 3 does not ask for
            float32 (GGML_PREC_F32, which llama.cpp's models do)
    p[t]    half(exp(s[t] - M)), M = 3·0.6931 + the largest score so far
    y       half(half(1/Σ p)·Σ p·v), where Σ p is float32 and p·v and its sum are halves, which are multiplied by
            half(exp(M_old - M)) at each block of keys (32 or 64)

Every thread has some of the keys, with an M of its own, and the threads' sums are added at the end. Where keys are
split over workgroups their sums are added in float32; with scores in halves a part's M and Σ p are stored as halves.

With the names of `flash_attention`, and u = 2^-11 in halves:

    q'·k    in float32 or in halves (`semantics.values`), where decoded values may be off as `half_steps` are; of types
            with one product alone, d·q, rounded once
    δ[t]    as there; p's rounding is one more, of 2u, since SPIR-V leaves to the device which way it converts to half,
            and 2^-25 of a p below the normal halves. Both Σ p and Σ p·v have the same p.
    Σ p·v   `in_halves`, for one thread, which is the widest, rescaled at each 32 keys; in float32 what a sum in any
            order may be off by, γ_n·Σ|p·v|
    y       2u of 1/Σ p, u of the product, 2^-25 below the normal halves; as much again where a sink is the largest

The sharpest definition comes first; that is taken by which more than half of what it does not give exactly passes.
Devices with integer dot products quantize the queries of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 keys (MMQ), and those with
matrix cores for bfloat16 round other things to that: where none of these definitions holds, such a node has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..semantics import SCORE_LIMIT, UNIT_ROUNDOFF
from ..semantics.accumulation import IN_FLOAT16, IN_FLOAT32, Accumulation
from ..semantics.narrow import HALF
from ..semantics.values import exact_weights, of_values
from ._alibi import slopes
from ._attention_scores import Scores, capped, format_of, head_of, masked, over_heads
from ._attention_sums import Weights, in_halves
from .arithmetic import NORMAL, ULP, arithmetic
from .judging import Judged
from .node import BF16, Bytes, Doubles, Node, NoDefinition, Operand

#: By how much M is above the largest score, and keys of the smallest block.
_ABOVE, _BLOCK = float(np.float32(3) * np.float32(0.6931)), 32
#: Values of a term of `semantics`.
_TERM = 32
#: GGML_PREC_F32.
_FLOAT32 = 10
#: Keys whose queries a device with integer dot products quantizes.
_OF_CODES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@dataclass(frozen=True)
class _Path:
    """Args: halves: FLOAT_TYPE is half; scores: how they are added up and rounded (ACC_TYPE)."""

    name: str
    halves: bool
    scores: Accumulation

    @property
    def in_half(self) -> bool:
        """Scores are halves."""
        return self.scores is IN_FLOAT16


_IN_FLOATS = _Path("f32", False, IN_FLOAT32)
_IN_HALVES = _Path("halves, f32 scores", True, IN_FLOAT32)
_ALL_HALVES = _Path("halves, half scores", True, IN_FLOAT16)


def judge_on_vulkan(node: Node) -> Judged:
    """Raises NoDefinition."""
    k, v = node.source(1), node.source(2)
    format_of(v)
    paths: tuple[_Path, ...] = (_IN_FLOATS,)
    if k.type_id != BF16:
        paths = (_IN_FLOATS, _IN_HALVES if node.integer(3) == _FLOAT32 else _ALL_HALVES)
    found, undefined = [], None
    for path in paths:
        try:
            one, told = _by(path, node, f"K {k.type}, V {v.type}, {path.name}")
        except NoDefinition as e:
            undefined = e
            continue
        if one.passed or 2 * one.wrong < told:
            return one
        found.append(one)
    if undefined is not None or not found:
        raise undefined or NoDefinition(node.op)
    if k.type_id == BF16 or k.type in _OF_CODES:
        raise NoDefinition(f"attention over keys of {k.type} by integer dot products or matrix cores")
    return min(found, key=lambda one: (one.wrong, one.utilisation))


def _by(path: _Path, node: Node, name: str) -> tuple[Judged, int]:
    q, k, v = (node.source(i) for i in range(3))
    slope, relative = slopes(node, q.ne[2], node.number(1))
    if path.in_half and node.number(1) > 0:  # of a base that is rounded to half, raised to k < 2·heads
        relative = (
            relative + np.expm1(2 * np.log1p(HALF.unit) * (2 * q.ne[2])) + 2 * HALF.unit * arithmetic("Vulkan").power
        )
    unit = path.scores.unit

    def of(batch: int, head: int, rows: slice) -> tuple[Doubles, Doubles]:
        keys, values = (_held(path, head_of(each, batch, head, q.ne[2])) for each in (k, v))
        scores = _scores(path, node, q.data[batch, head, rows].astype(np.float32), *keys)
        scores = masked(node, scores, (slope, relative), unit, batch, head, rows)
        return _attended(path, node, scores, *values, head)

    return over_heads(node, name, of)


def _held(path: _Path, given: Operand) -> tuple[Doubles, Doubles | None]:
    """The values of keys or values [keys, dims] as the shader multiplies them, and what they may be off by."""
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


def _scores(path: _Path, node: Node, q: Doubles, k: Doubles, k_off: Doubles | None) -> Scores:
    """scale·(q·k), or its soft cap, before the mask."""
    scale, cap = np.float32(node.number(0)), np.float32(node.number(2))
    scaled = (q * (scale / cap if cap else scale)).astype(np.float64)
    if path.halves:
        scaled = HALF.rounded(scaled)
    made = of_values(_padded(scaled), _padded(k), _TERM, path.scores)
    off, spread, u = made.bound, made.spread, path.scores.unit
    if k_off is not None:
        slack = np.abs(scaled) @ k_off.T * (1 + path.scores.growth(k.shape[1]))
        off, spread = off + slack, spread + slack / SCORE_LIMIT
    z = Scores(made.exact, off, spread)
    return capped(z, np.float64(cap), 2 * u * arithmetic("Vulkan").tanh + 2 * u) if cap else z


def _padded(values: Doubles) -> Doubles:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _TERM)))


def _attended(
    path: _Path, node: Node, scores: Scores, v: Doubles, v_off: Doubles | None, head: int
) -> tuple[Doubles, Doubles]:  # fmt: skip
    """The result [rows, DV] and its bound."""
    if not np.isfinite(v).all():
        raise NoDefinition("attention over values that are not finite")
    a, n, s, read = arithmetic("Vulkan"), len(v), scores.s, ~np.isneginf(scores.s)
    u = HALF.unit if path.halves else UNIT_ROUNDOFF
    largest = s.max(axis=1, keepdims=True, initial=-np.inf)
    most = largest + _ABOVE
    below = np.where(read, np.abs(s - most), 0.0)
    own = UNIT_ROUNDOFF * below + a.exp_error(below) + (2 * u if path.halves else 0.0)
    if path.in_half:  # M of a part of the keys as a half
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
    growth = IN_FLOAT32.growth(n + 3 * (n // _BLOCK))
    of_values = _in_halves(s, largest, read, p, v) if path.halves else growth * (p @ np.abs(v))
    if v_off is not None:
        of_values = of_values + p @ v_off
    of_weights = growth * whole + sink_off + (u * whole if path.in_half else 0.0)
    total = of_scores + of_values + np.abs(o) * of_weights
    relative = (of_weights + weight_off.sum(axis=1, keepdims=True)) / whole
    last = (5 * u + tiny * whole) if path.halves else (a.division * ULP + 4 * u)
    final = last * np.abs(o) + 4 * tiny
    bound = total / whole / np.maximum(1 - relative, 0.0) + final
    return o, np.where(whole > 0, bound, 0.0)


def _sink(path: _Path, node: Node, most: Doubles, head: int) -> tuple[Doubles, Doubles]:
    """exp(sink - M) of each row, and what it is off by."""
    sinks = node.optional(4)
    if sinks is None:
        return np.zeros_like(most), np.zeros_like(most)
    given = sinks.values[0, 0, 0, head]
    if not np.isfinite(given):
        raise NoDefinition("attention with a sink that is not finite")
    apart = np.where(np.isinf(most), 0.0, np.clip(given - most, -600, 600))  # one alone, of whatever M
    rounded = (path.scores.unit if path.in_half else 0.0) * np.abs(given) + UNIT_ROUNDOFF * np.abs(apart)
    sink = np.exp(apart)
    return sink, sink * (np.expm1(rounded) + arithmetic("Vulkan").exp_error(apart) + UNIT_ROUNDOFF)


def _in_halves(s: Doubles, largest: Doubles, read: npt.NDArray[np.bool_], p: Doubles, v: Doubles) -> Doubles:
    """What Σ p·v may be off by, and what adding the threads' sums to each other takes: eight roundings of it."""
    then = np.maximum.accumulate(s, axis=1)
    back = np.where(read, np.exp(then - largest), 0.0)
    of_then = np.where(read, np.exp(s - then - _ABOVE), 0.0)
    rescaled = np.broadcast_to(np.arange(s.shape[1]) % _BLOCK == _BLOCK - 1, s.shape)
    off = in_halves(Weights(p, of_then, back, read, rescaled, False), v)
    tree: Doubles = 8 * HALF.unit * np.sqrt(((p @ v) ** 2 + p**2 @ v**2) * 8 / 3)
    return off + tree
