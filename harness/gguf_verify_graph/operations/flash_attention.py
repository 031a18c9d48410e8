"""FLASH_ATTN_EXT: attention of queries over keys and values in one node, as llama.cpp's CPU backend computes it.

`attention_paths` covers other backends.

    s[t] = scale·(q·k[t])        or c·tanh(scale/c·(q·k[t])) with c = logit_softcap        plus slope·mask[t]
    y    = Σ_t exp(s[t] - M)·v[t] / (Σ_t exp(s[t] - M) + exp(sink - M))

Heads of queries share those of K and of V. Keys with mask -inf are excluded; a row without any key is 0. Types and
sizes select one of three paths (ggml-cpu/ops.cpp, ggml_compute_forward_flash_attn_ext_f16; llama.cpp v0.5.0):

    tiled    K and V both float32 or both half, at least 64 queries: queries stay float32, K and V are widened, sums are
             float32, and a tile of 64 keys has one maximum, and one sum of weights in double (…_ext_tiled)
    split    K and V as for `tiled`, one query in one batch, at least 512 keys: each thread takes a part of the keys, as
             in `keys`, and the parts are added in float32
    keys     queries are converted to `vec_dot_type` of K's type (half, bfloat16, Q8_0 and so on); keys in order

In the last two the sum of v is in halves where V is half (VKQ16), otherwise in float32; the sum of weights is float32.
The score's product is K's product of `semantics`; b and g are its bound and spread. In float32:

    δ[t]    |scale|·b + u·(|scale·q·k|, twice with a soft cap) + (tanh's ulps, its slope) + u·(|slope·mask| + |s|)
            + the slope's error + u·|s[t] - M| + the exponential's error; its spread likewise, with g and u/√3
    bound   Σ_t p[t]·δ[t]·|v[t] - y|, or SCORE_LIMIT·√(Σ_t (p[t]·spread[t])²·(v[t] - y)²) if that is less; plus the
            error of the sum of v, and |y| times the errors of the sum of weights (`attention_sums`) and of the sink's
            weight; all divided by the sum of weights; half an ulp each for adding the sink, the quotient and the
product
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.llama.node import F16, F32, Doubles, Node, NoDefinition, Operand, demand, parameters
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, arithmetic
from .attention_paths import judge_on_cuda, judge_on_vulkan
from .attention_scores import Scores, capped, check, format_of, from_weights, head_of, masked, over_heads, slopes
from .attention_sums import Weights, in_floats, in_halves
from .judging import UNDERFLOW, Judged, Operation
from .random_inputs import random_blocks, typed

#: Least number of queries for tiles, and keys of a tile; least number of keys at which a single query's are split.
_TILE, _SPLIT = 64, 512


def _judge(node: Node) -> Judged:
    q, k, v = (node.source(i) for i in range(3))
    check(node, q, k, v)
    if node.backend == "Vulkan":
        return judge_on_vulkan(node)
    if node.backend == "CUDA":
        return judge_on_cuda(node)
    demand(node.backend == "CPU", f"FLASH_ATTN_EXT on {node.backend}")
    path, name = _path(q, k, v)
    slope = slopes(node, q.ne[2], node.number(1))

    def of(batch: int, head: int, rows: slice) -> tuple[Doubles, Doubles]:
        scores = masked(node, _scores(node, path, batch, head, rows), slope, UNIT_ROUNDOFF, batch, head, rows)
        return _attended(node, path, scores, head_of(v, batch, head, q.ne[2]).values[0, 0], head)

    return over_heads(node, name, of)


def _path(q: Operand, k: Operand, v: Operand) -> tuple[str, str]:
    """Return the CPU's path, and the definition's name."""
    plain, kinds = k.type_id == v.type_id and k.type_id in (F32, F16), f"K {k.type}, V {v.type}"
    sums = "half sums" if v.type_id == F16 else "f32 sums"
    if plain and q.ne[1] == 1 == q.ne[3] and k.ne[1] >= _SPLIT:
        return "split", f"{kinds}, split, {sums}"
    if plain and q.ne[1] >= _TILE:
        return "tiled", f"{kinds}, tiles, f32 sums"
    return "keys", f"{kinds}, {sums}"


def _scores(node: Node, path: str, batch: int, head: int, rows: slice) -> Scores:
    """Return scale·(q·k), or its soft cap, before the mask."""
    q, k = node.source(0), node.source(1)
    queries = np.array(q.data[batch, head, rows])
    keys = np.ascontiguousarray(k.data[batch, head // (q.ne[2] // k.ne[2])])
    fmt = format_of(k)
    if path == "tiled":
        keys, fmt = keys.astype(np.float32), ELEMENTS["F32"]
    definition = llama_cpu_semantics(fmt)
    raw = keys.view(np.uint8).reshape(len(keys), -1)
    made = product(definition, fmt, raw, definition.bytes_of(queries))
    scale, cap, u = np.float64(node.number(0)), np.float64(node.number(2)), UNIT_ROUNDOFF
    if cap:
        scale = scale / cap
    z = scale * made.exact
    rounded = (2 if cap else 1) * u * np.abs(z)
    off, spread = np.abs(scale) * made.bound + rounded, np.abs(scale) * made.spread + rounded / np.sqrt(3)
    scores = Scores(z, off, spread)
    return capped(scores, cap, arithmetic("CPU").tanh * ULP + u) if cap else scores


def _attended(node: Node, path: str, scores: Scores, v: Doubles, head: int) -> tuple[Doubles, Doubles]:
    """Return the result [rows, DV] and its bound."""
    sinks, u = node.optional(4), UNIT_ROUNDOFF
    s, read = scores.s, ~np.isneginf(scores.s)
    if not np.isfinite(v).all():
        used = np.ones(len(v), bool) if path == "tiled" else np.any(read, axis=0)
        if not np.isfinite(v[used]).all():
            raise NoDefinition("attention over values that are not finite")
        v = np.where(used[:, None], v, 0.0)
    most = s.max(axis=1, keepdims=True, initial=-np.inf)
    sink, sink_off = np.zeros_like(most), np.zeros_like(most)
    if sinks is not None:
        given = sinks.values[0, 0, 0, head]
        if not np.isfinite(given):
            raise NoDefinition("attention with a sink that is not finite")
        apart, most = np.abs(given - most), np.maximum(most, given)
        sink = np.exp(given - most)
        sink_off = np.where(np.isinf(apart), 0.0, sink * (u * apart + arithmetic("CPU").exp_error(apart) + u))
    w = _weights(scores, read, most, path)
    below = np.where(read, np.abs(s - most), 0.0)
    own = u * below + arithmetic("CPU").exp_error(below)
    off, spread = scores.off + own, scores.spread + own / np.sqrt(3)
    whole = w.p.sum(axis=1, keepdims=True) + sink
    o = np.where(whole > 0, w.p @ v / whole, 0.0)
    weight_off = w.p * np.expm1(off)
    of_scores = from_weights(v, o, weight_off, w.p * spread)
    halves = node.source(2).type_id == F16 and path != "tiled"
    of_values = in_halves(w, v) if halves else in_floats(w, v)
    if halves and path == "split":  # parts are added in float32
        of_values = of_values + in_floats(w, v)
    of_weights = _sum_off(w, path) + sink_off + u * whole
    total = of_scores + of_values + np.abs(o) * (of_weights + 2 * u * whole)
    relative = (of_weights + weight_off.sum(axis=1, keepdims=True)) / whole
    least = (2 * len(v) + 4) * UNDERFLOW * (1 + np.abs(v).max(axis=0, initial=0.0))
    bound = total / whole / np.maximum(1 - relative, 0.0) + least
    return o, np.where(whole > 0, bound, 0.0)


def _weights(scores: Scores, read: npt.NDArray[np.bool_], most: Doubles, path: str) -> Weights:
    s = scores.s
    then = np.maximum.accumulate(s, axis=1)
    back = np.where(read, np.exp(then - most), 0.0)
    # a key may set a new maximum if it exceeds the largest score before it, within the errors of both
    surely = np.maximum.accumulate(np.where(read, s - scores.off, -np.inf), axis=1)
    before = np.concatenate([np.full((len(s), 1), -np.inf), surely[:, :-1]], axis=1)
    record = read & (s + scores.off > before) if path == "keys" else read
    if path == "tiled":  # at most once per tile
        record = np.broadcast_to(np.arange(s.shape[1]) % _TILE == 0, s.shape)
    following = np.concatenate([record[:, 1:], np.zeros((len(s), 1), bool)], axis=1)
    p = np.where(read, np.exp(s - most), 0.0)
    return Weights(p, np.where(read, np.exp(s - then), 0.0), back, read, following, path == "split")


def _sum_off(w: Weights, path: str) -> Doubles:
    """Return the error of the sum of weights, [rows, 1]."""
    if path != "tiled":
        return in_floats(w, np.ones((w.p.shape[1], 1)))
    sums = np.cumsum(w.p, axis=1)
    ends = np.append(sums[:, _TILE - 1 :: _TILE], sums[:, -1:], axis=1)
    off: Doubles = 4 * UNIT_ROUNDOFF * (sums[:, -1:] + ends.sum(axis=1, keepdims=True))
    return off


#: Types of keys and of values, in addition to float32 and half.
_OTHER_TYPES = (
    ("BF16", "BF16"), ("F16", "F32"), ("F32", "F16"), ("Q8_0", "Q8_0"), ("Q4_0", "F16"), ("Q5_1", "Q4_1"),
    ("F16", "Q8_0"), ("Q4_K", "Q6_K"),
)  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """Sizes and parameters of a node: batches, heads of queries, of keys and values, queries, keys, dims of K, of V.

    `float32` requests GGML_PREC_F32, as models do.
    """

    batches: int = 1
    heads: int = 4
    shared: int = 2
    tokens: int = 3
    keys: int = 37
    dims: int = 64
    out: int = 64
    scale: float = 0.125
    bias: float = 0.0
    cap: float = 0.0
    masks: tuple[int, int] | None = None
    sinks: bool = False
    constant: bool = False
    turned: bool = False
    float32: bool = False


def _random_tensor(rng: np.random.Generator, kind: str, shape: tuple[int, ...], constant: bool = False) -> Operand:
    values = rng.standard_normal(shape).astype(np.float32)
    if constant:
        values[...] = np.abs(values[..., :1, :])
    if kind in ELEMENTS:
        return typed(values, ELEMENTS[kind].type_id)
    fmt = FORMATS[kind]
    return Operand.of(random_blocks(rng, fmt, shape), fmt.type_id)


def _random_node(rng: np.random.Generator, k: str, v: str, of: _Kind) -> Node:
    queries = Operand.of(rng.standard_normal((of.batches, of.heads, of.tokens, of.dims)).astype(np.float32))
    if of.turned:  # the layout in models: heads inside tokens
        data = np.ascontiguousarray(queries.data.transpose(0, 2, 1, 3))
        queries = Operand.of(data).permuted(0, 2, 1, 3)
    keys = _random_tensor(rng, k, (of.batches, of.shared, of.keys, of.dims), of.constant)
    values = _random_tensor(rng, v, (of.batches, of.shared, of.keys, of.out), of.constant)
    mask = sinks = None
    if of.masks is not None:
        shape = (*of.masks, of.tokens + 2, of.keys)
        scores = np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))
        if of.tokens > 1:  # a row with one key or none
            scores[:, :, of.tokens // 2, 1:] = -np.inf
        mask = Operand.of(scores.astype(np.float16))
    if of.sinks:
        sinks = Operand.of(rng.standard_normal(of.heads).astype(np.float32) * 3)
    output = Operand.blank(F32, of.batches, of.tokens, of.heads, of.out)
    given = parameters(of.scale, of.bias, of.cap, 10 * of.float32)
    return Node("FLASH_ATTN_EXT", (queries, keys, values, mask, sinks), output, given)


def random_attention(rng: np.random.Generator) -> Iterator[Node]:
    """Yield nodes of every path, type and parameter."""
    kinds = (
        _Kind(), _Kind(heads=6, shared=1, tokens=1, keys=1, dims=32, out=16), _Kind(turned=True, sinks=True),
        _Kind(batches=2, tokens=5, keys=130, dims=40, out=72, masks=(1, 1)), _Kind(masks=(1, 4), bias=8.0, heads=12),
        _Kind(masks=(1, 1), cap=30.0, scale=1.0, sinks=True), _Kind(keys=256, constant=True, tokens=2),
        _Kind(dims=128, out=128, tokens=2, keys=300, masks=(1, 1)), _Kind(scale=2.0, keys=90),
        _Kind(tokens=66, keys=150, masks=(1, 1), sinks=True), _Kind(tokens=64, keys=64, cap=20.0, scale=1.0),
        _Kind(tokens=1, keys=600, masks=(1, 1)), _Kind(tokens=1, keys=700, dims=128, out=128, sinks=True),
        _Kind(tokens=1, keys=520, constant=True),
    )  # fmt: skip
    for kind in ("F16", "F32"):
        for i, each in enumerate(kinds):
            yield _random_node(rng, kind, kind, replace(each, float32=i % 2 == 0))
    for k, v in _OTHER_TYPES:
        scale = 1.0 if k in FORMATS else 0.125
        dims = 256 if k == "Q4_K" else 64
        tokens, masks = (65, (1, 1)) if k == "Q8_0" or v == "F32" else (3, None)
        yield _random_node(rng, k, v, _Kind(dims=dims, out=dims, tokens=tokens, keys=70, scale=scale, masks=masks))


FLASH_ATTN_EXT = Operation(
    axes=("sequence", "token", "head", "column"),
    op="FLASH_ATTN_EXT",
    title="Σ exp(s - M)·v / Σ exp(s - M), s = scale·(q·k) + slope·mask",
    judge=_judge,
    draw=random_attention,
)
