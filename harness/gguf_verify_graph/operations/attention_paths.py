"""FLASH_ATTN_EXT on a device that computes it along one of several paths.

The paths of CUDA and of Vulkan are described below. With the notation of `flash_attention`, and u = 2^-11 for halves,
the error of each part is:

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
(`consistency`), so that one wrong output among right ones in float32 does not pass.

CUDA, on NVIDIA GPUs (ggml-cuda/fattn.cu, fattn-common.cuh,
fattn-vec.cuh, fattn-mma-f16.cuh, fattn-tile.cuh; v0.5.0).

The GPU, the types and the sizes select the kernel (ggml_cuda_get_best_fattn_kernel). M is 3·0.6931 above the largest
score so far.

    vec     few queries. Floating-point keys: everything in float32. Quantized keys: scale·q becomes codes of Q8_1 with
            a float32 scale d and sum s, and s[t] = Σ d_k·d·Σ q_k·q_q + m_k·s as in MMVQ. Values are decoded to float32.
    mma     tensor cores: q' = half(half(scale)·half(q)); keys and values are converted to half; s[t] is float32, p
            is half, the sums of p·v are halves, and Σ p is float32
    tile    without tensor cores, and for heads of 40 and 72 values: q' = half(scale·q), a quarter of which is
            multiplied; each product q'·k is rounded to half and added in float32; the rest as in mma

The sums of warps and blocks are added and divided in float32. mma treats exp(M - M_new) as zero where the difference is
below -20, and so drops everything added before from both sums: these p are below 2^-28, and the bound allows 2^-25 for
each. Subnormal exponentials are flushed to zero.

The bounds are those above. For codes, with A[t] = Σ |d_k|·d·Σ|q_k·q_q| + |m_k·s|, the error of the
scores is γ_n·A with n = dims/2 + 16, plus the error of the sum s, γ_8·Σ|scale·q|·|m_k|. A code that fast math may round
either way adds |d_k·q_k|·d, and its scale adds WINDOW of the whole. The spread is u·√(n/3)·A. A row without any key has
no definition.

Vulkan (vulkan-shaders/flash_attn.comp, flash_attn_base.glsl and
flash_attn_split_k_reduce.comp; ggml-vulkan.cpp, ggml_vk_flash_attn; v0.5.0).

A device without halves computes everything in float32, as does any device for bfloat16 keys without matrix cores for
them. With halves (FLOAT_TYPE is float16_t):

    q'      half(scale·q), or half(scale/c·q) with a soft cap c          k, v     rounded or decoded to half
    s[t]    q'·k[t], its soft cap and its mask in float32, or in halves (ACC_TYPE) unless parameter 3 requests float32
            (GGML_PREC_F32, which llama.cpp's models do)
    p[t]    half(exp(s[t] - M)), M = 3·0.6931 + the largest score so far
    y       half(half(1/Σ p)·Σ p·v), where Σ p is float32, and p·v and its sum are halves; that sum is multiplied by
            half(exp(M_old - M)) at each block of keys (32 or 64)

Every thread reads some of the keys, with its own M, and the threads' sums are added at the end. Where the keys are
split over workgroups, the workgroups' sums are added in float32; with scores in halves, the M and Σ p of each part are
stored as halves.

The bounds are those above. The rounding error of p is 2u, since SPIR-V lets the device choose the
rounding direction of the conversion.

Devices with integer dot products quantize the queries for Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 keys (MMQ), and devices with
matrix cores for bfloat16 round further values to bfloat16. Such a node has no definition if none of the above fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.llama.node import BF16, Bytes, Doubles, Node, NoDefinition, Operand
from gguf_verify.semantics.accumulation import IN_FLOAT16, IN_FLOAT32, SCORE_LIMIT, Accumulation, in_tensor_cores
from gguf_verify.semantics.fast_math import WINDOW
from gguf_verify.semantics.narrow import HALF
from gguf_verify.semantics.sums import UNIT_ROUNDOFF, gamma
from gguf_verify.semantics.values import alignment_of_subnormals, exact_weights, of_values

from .arithmetic import NORMAL, ULP, arithmetic
from .attention_scores import Scores, capped, format_of, from_weights, head_of, masked, over_heads, slopes
from .attention_sums import Weights, in_halves, in_lanes
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
    of_scores = from_weights(v, o, weight_off, deviation)
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


_BLOCK = 32
#: Number of keys of a whole step (FATTN_KQ_STRIDE).
_KEYS = 256
#: Types of keys that have products with Q8_1 codes.
_OF_CODES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def judge_on_cuda(node: Node) -> Judged:
    """Judge a FLASH_ATTN_EXT node. Raises NoDefinition."""
    k, mask = node.source(1), node.optional(3)
    format_of(node.source(2))
    if mask is not None and node.optional(4) is None:
        rows = mask.data[:, :, : node.source(0).ne[1]]
        if np.isneginf(rows.astype(np.float32)).all(axis=-1).any():
            raise NoDefinition("attention with a row that has no key: 0/0")
    first = (_VEC_OF_CODES, _VEC) if k.type in _OF_CODES else (_VEC,)
    return judge_by(node, first if vec_alone(node) else (*first, _MMA, _TILE))


def vec_alone(node: Node) -> bool:
    """Return whether every GPU with tensor cores (Turing or later) uses the vec kernel.

    ggml_cuda_get_best_fattn_kernel selects it for one query per head, unless several heads share keys and values of
    floating-point types.
    """
    (q, k, v), mask = (node.source(i) for i in range(3)), node.optional(3)
    of_one = q.ne[1] == 1 and q.ne[0] <= 256 and q.ne[0] % 64 == 0 and q.ne[0] != 192 and k.ne[1] % _KEYS == 0
    aligned = all(step % 16 == 0 for each in (q, k, v, mask) if each and not each.blocks for step in each.nb[1:])
    grouped = q.ne[2] >= 2 * k.ne[2] and mask is not None and not node.number(1) and aligned
    return of_one and (k.blocks or v.blocks or not grouped)


def _by_tensor_cores(q: Floats, scale: np.float32) -> Doubles:
    return HALF.rounded(HALF.rounded(np.atleast_1d(scale)) * HALF.rounded(q))


def _quarters(q: Floats, scale: np.float32) -> Doubles:
    return 4 * HALF.rounded(scaled_to_half(q, scale) / 4)


def _by_codes(q: Floats, scale: np.float32, keys: Operand) -> Scores:
    """Return the scores of quantized queries and keys."""
    fmt = format_of(keys)
    assert isinstance(fmt, BlockFormat)
    x = scaled_in_float32(q, scale).reshape(len(q), -1, _BLOCK)
    d = np.abs(x).max(axis=-1, keepdims=True) / 127
    ratio = np.divide(x, d, out=np.zeros_like(x), where=d > 0)
    codes = np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)
    either = np.abs(np.abs(ratio) % 1 - 0.5) <= WINDOW * np.abs(ratio)
    blocks = np.ascontiguousarray(keys.data[0, 0]).reshape(keys.ne[1], -1, fmt.block_bytes)
    d_k, m_k = (of(blocks)[..., 0].astype(np.float64) for of in (fmt.scales, fmt.minima))  # [keys, blocks]
    q_k = fmt.codes(blocks).astype(np.float64)
    if not fmt.has_min and not fmt.offset:
        m_k = np.zeros_like(m_k)
    weights = (d_k[..., None] * q_k).reshape(len(d_k), -1)
    a = (codes * d).reshape(len(q), -1)
    s, s_size = x.sum(axis=-1), np.abs(x).sum(axis=-1)
    exact = a @ weights.T + s @ m_k.T
    size = np.abs(a) @ np.abs(weights).T + np.abs(s) @ np.abs(m_k).T
    n = keys.ne[0] // 2 + 16
    moved = ((either * d).reshape(len(q), -1) + WINDOW * np.abs(a)) @ np.abs(weights).T
    certain = gamma(8) * (s_size @ np.abs(m_k).T) + moved
    return Scores(exact, gamma(n) * size + certain, UNIT_ROUNDOFF * np.sqrt(n / 3) * size + certain / SCORE_LIMIT)


_VEC = Path("f32", "CUDA", False, IN_FLOAT32)
_VEC_OF_CODES = Path("queries in Q8_1, f32", "CUDA", False, IN_FLOAT32, taken=_by_codes)
_MMA = Path("tensor cores, half sums", "CUDA", True, in_tensor_cores(), _by_tensor_cores, divides=True)
_TILE = Path("half products, half sums", "CUDA", True, IN_FLOAT32, _quarters, products=HALF.unit, divides=True)


#: GGML_PREC_F32.
_FLOAT32 = 10
#: Types of keys for which a device with integer dot products quantizes the queries.
_OF_CODES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
_IN_FLOATS = Path("f32", "Vulkan", False, IN_FLOAT32)
_IN_HALVES = Path("halves, f32 scores", "Vulkan", True, IN_FLOAT32, scaled_to_half, conversion=2 * HALF.unit)
_ALL_HALVES = Path("halves, half scores", "Vulkan", True, IN_FLOAT16, scaled_to_half, conversion=2 * HALF.unit)


def judge_on_vulkan(node: Node) -> Judged:
    """Judge a FLASH_ATTN_EXT node. Raises NoDefinition."""
    k = node.source(1)
    format_of(node.source(2))
    paths: tuple[Path, ...] = (_IN_FLOATS,)
    if k.type_id != BF16:
        paths = (_IN_FLOATS, _IN_HALVES if node.integer(3) == _FLOAT32 else _ALL_HALVES)
    others = k.type_id == BF16 or k.type in _OF_CODES
    return judge_by(
        node, paths, f"attention over keys of {k.type} by integer dot products or matrix cores" if others else ""
    )
