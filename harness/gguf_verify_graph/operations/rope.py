"""ROPE: pairs of values are rotated by an angle that grows with a token's position. ROPE_BACK: by minus that angle.

    y1 = s·(x1·cos θ - x2·sin θ)        y2 = s·(x1·sin θ + x2·cos θ)        other columns are copied

The columns of a pair, θ, its error dθ and s are defined below. Half values are widened to float32, and results
are rounded once (ggml-cpu/ops.cpp: rotate_pairs; llama.cpp v0.5.0).

    bound   An error dθ of the angle rotates (y1, y2) further: y1 moves by |y2|·sin dθ + |y1|·(1 - cos dθ), y2 likewise;
            from a quarter and a half turn on, by |y2| and 2·|y1|. Sine and cosine have an error of an ulp (glibc
            manual, "Errors in Math Functions"), or the one that the backend states; their products with s, those with x
            and their sum are rounded: s·(|x1·cos θ| + |x2·sin θ|)·(2^-23 + 2·u) + u·|y1|. The error of s is added.
            Copied columns have none.

The angles that ROPE rotates by, their error bounds, and YaRN's corrections.

Pair i of d/2 pairs at position p has the angle

    θ = f·p·b^(-2·k/d) / r[i]        k = i (`vision`: its place in its section)        r: frequency factors, or 1

with b = freq_base and f = freq_scale. A position is a float32, so it is rounded from 2^24 on. In the modes `mrope`,
`imrope` and `vision` a token has four positions; the pair's sector, i mod the sum of the four sections, selects one.
With YaRN (ext_factor e ≠ 0) two angles are mixed by a ramp between the dimensions l = max(0, ⌊D(beta_fast)⌋) and
h = min(d - 1, ⌈D(beta_slow)⌉), and the results are scaled:

    θ = f·α·(1 - m) + α·m,  α = θ/f        m = e·(1 - min(1, max(0, (i - l) / max(0.001, h - l))))
    D(β) = d·ln(n_ctx_orig / (2π·β)) / (2·ln b)        scale = attn_factor·(1 + 0.1·ln(1/f))

(ggml-cpu/ops.cpp: ggml_rope_cache_init, ggml_mrope_cache_init, rope_yarn; ggml.c: ggml_rope_yarn_corr_dims;
ggml-cuda/rope.cu; vulkan-shaders/rope_funcs.glsl; llama.cpp v0.5.0.)

The host computes t = powf(b, -2/d). Its error is the ulps of the power, plus ln b times the rounding error of -2/d. The
CPU then multiplies p by t k times, with a rounding each time:

    relative error of α    k·(error of t + u) on the CPU; elsewhere k·(error of t) + the power's ulps + u; plus the
                           error of the division by r
    absolute error         the relative error times α: it grows with the position

Every product and sum of YaRN adds half an ulp. Sine and cosine reduce the angle. The C library does so exactly. Other
backends state their error only between -π and π; beyond, this definition assumes a reduction in float32,
θ - 2π·round(θ/2π) with 2π and the product rounded, which adds 2·u·|θ|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import pi

import numpy as np

from gguf_verify.llama.node import F16, F32, I32, Array, Doubles, Node, NoDefinition, Operand, demand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, Arithmetic, arithmetic
from .judging import UNDERFLOW, Judged, Operation, within
from .random_inputs import floats

#: Angle from which on a reduction in float32 leaves more than 1/8 beyond the quarter turns, 2·u·|θ|, for which
#: polynomials of sine and cosine are designed: their results beyond are unknown.
_REDUCED = 2.0**20


def _judge(node: Node) -> Judged:
    given, out, a = node.source(0), node.output, arithmetic(node.backend)
    if given.type_id not in (F32, F16) or out.type_id != given.type_id or out.shape != given.shape:
        raise NoDefinition(f"{node.op} of {given.type} {given.ne} with an output of {out.type} {out.ne}")
    with np.errstate(all="ignore"):
        exact, of = given.values.copy(), rotation(node)
        if not a.doubles and not np.abs(of.angle).max(initial=0.0) <= _REDUCED:
            raise NoDefinition(f"{node.op} by angles of more than {_REDUCED:g} on {node.backend}")
        bound = np.zeros(exact.shape)
        for columns, y, off in _rotated(exact[..., of.first], exact[..., of.second], of, a, node.op == "ROPE_BACK"):
            if out.type_id == F16:  # rounding to half, which does not apply to copied columns
                off = off + 2.0**-11 * (np.abs(y) + off) + 2.0**-25
                y = np.where(np.abs(y) >= 65520, np.copysign(np.inf, y), y)
            exact[..., columns], bound[..., columns] = y, off
        widened = replace(node, output=Operand.of(out.values.astype(np.float32)))
        return within(widened, out.type.lower(), exact, bound)


def _rotated(
    x1: Doubles, x2: Doubles, of: Rotation, a: Arithmetic, back: bool
) -> Iterator[tuple[Array, Doubles, Doubles]]:
    """Return the columns of the first and second values of pairs, their expected values, and their errors."""
    angle, off = of.angle[:, None], of.off[:, None]
    if not a.doubles:
        off = off + np.where(np.abs(angle) > pi, 2 * UNIT_ROUNDOFF * np.abs(angle), 0.0)
    cos, sin = of.scale * np.cos(angle), (-1 if back else 1) * of.scale * np.sin(angle)
    across, along = np.sin(np.minimum(off, pi / 2)), 1 - np.cos(np.minimum(off, pi))
    y1, y2 = x1 * cos - x2 * sin, x1 * sin + x2 * cos
    stated = a.angle * abs(of.scale) * (np.abs(x1) + np.abs(x2))
    of_first, of_second = np.abs(x1 * cos) + np.abs(x2 * sin), np.abs(x1 * sin) + np.abs(x2 * cos)
    for columns, y, other, parts in ((of.first, y1, y2, of_first), (of.second, y2, y1, of_second)):
        rounded = parts * (ULP + 2 * UNIT_ROUNDOFF) + (UNIT_ROUNDOFF + of.scale_off) * np.abs(y) + stated
        yield columns, y, np.abs(other) * across + np.abs(y) * along + rounded + 4 * max(a.tiny, UNDERFLOW)


def _parameters(
    d: int,
    mode: int,
    base: float = 10000.0,
    scale: float = 1.0,
    yarn: tuple[float, float, float, float] | None = None,
    sections: tuple[int, int, int, int] = (0, 0, 0, 0),
    context: int = 4096,
    offset: int = 0,
) -> bytes:
    """Return the parameters of a ROPE node. Args: yarn: ext_factor, attn_factor, beta_fast, beta_slow."""
    return parameters(0, d, mode, 0, context, base, scale, *(yarn or (0.0, 1.0, 32.0, 1.0)), *sections, offset)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    def node(
        shape: tuple[int, int, int, int],
        parameters: bytes,
        most: int = 4096,
        factors: int = 0,
        half: bool = False,
        each: int = 1,
    ) -> Node:
        x = floats(rng, shape, 1.0).astype(np.float16 if half else np.float32)
        positions = Operand.of(rng.integers(0, most, each * shape[1]).astype(np.int32))
        r = Operand.of(rng.uniform(0.5, 8, factors).astype(np.float32)) if factors else None
        return Node("ROPE", (Operand.of(x), positions, r), Operand.blank(F16 if half else F32, *shape), parameters)

    for mode in (NORMAL, NEOX):
        for shape, d in (((1, 1, 1, 2), 2), ((2, 3, 2, 16), 10), ((1, 7, 4, 128), 128), ((1, 5, 3, 80), 64)):
            yield node(shape, _parameters(d, mode))
            yield node(shape, _parameters(d, mode, 500000.0), 1 << 20, d // 2)
            yield node(shape, _parameters(d, mode, 10000.0, 0.25), half=True)
            for yarn in ((1.0, 1.0, 32.0, 1.0), (0.7, 0.9, 16.0, 2.0)):
                yield node(shape, _parameters(d, mode, 1e6, 0.0625, yarn), 1 << 17)
        yield node((1, 6, 2, 64), _parameters(64, mode), 2**31 - 1)
        yield node((1, 4, 2, 96), _parameters(64, mode, offset=16), half=True)
    sections = (11, 7, 9, 3)
    for mode in (MROPE, IMROPE):
        for shape, d in (((1, 4, 3, 64), 64), ((2, 3, 2, 100), 80)):
            for factors in (0, d // 2):
                yield node(shape, _parameters(d, mode, 1e6, sections=sections), 32768, factors, each=4)
            yield node(shape, _parameters(d, mode, sections=(4, 2, 3, 0)), half=True, each=4)
    for sections in ((8, 8, 8, 8), (5, 7, 0, 0)):
        yield node((1, 6, 3, 32), _parameters(16, VISION, sections=sections), 200, each=4)
    turned = Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)
    positions = Operand.of(np.array([7, 8, 900], np.int32))
    yield Node("ROPE", (turned, positions), Operand.blank(F32, *turned.shape), _parameters(32, NEOX))


def _draw_back(rng: np.random.Generator) -> Iterator[Node]:
    for node in _draw(rng):
        yield replace(node, op="ROPE_BACK")


_AXES = ("sequence", "token", "head", "column")


#: Modes of ggml.h.
NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40
#: Largest relative error of D(β), as a share of d/(2·ln b): two logarithms with an error of one ulp each, and the
#: roundings of their arguments.
_DIMENSION_OFF = 16 * UNIT_ROUNDOFF


@dataclass(frozen=True)
class Rotation:
    """A rotation by ROPE.

    Args:
        first, second: columns of the two values of each pair.
        angle, off: angle of each pair, and its absolute error, float64[ne2, pairs].
        scale, scale_off: factor of the results, and its relative error.
    """

    first: Array
    second: Array
    angle: Doubles
    off: Doubles
    scale: float
    scale_off: float


def rotation(node: Node) -> Rotation:
    """Return the rotation of a ROPE node. Raises NoDefinition for parameters and shapes that ggml rejects."""
    ne0, tokens = node.source(0).ne[0], node.source(0).ne[2]
    d, mode, offset = node.integer(1), node.integer(2), node.integer(15)
    demand(mode in (NORMAL, NEOX, MROPE, VISION, IMROPE), f"ROPE of mode {mode}")
    if d <= 0 or d % 2 or ne0 % 2 or offset < 0 or offset % 2 or offset + d > ne0:
        raise NoDefinition(f"ROPE of {d} of {ne0} dimensions from {offset} on")
    demand(mode != VISION or (d * 2 == ne0 and not offset), f"ROPE's vision mode of {d} of {ne0} dimensions")
    pairs = d if mode == VISION else d // 2
    first = offset + (2 if mode == NORMAL else 1) * np.arange(pairs)
    second = first + (1 if mode == NORMAL else pairs)
    which, steps = _sections(node, pairs)
    positions = _positions(node, tokens, 4 if mode & MROPE else 1)[which].T
    angle, off, scale, scale_off = _angles(node, positions, steps, d)
    return Rotation(first, second, angle, off, scale, scale_off)


def _positions(node: Node, tokens: int, each: int) -> Array:
    """Return the positions, int32[each, tokens]."""
    given = node.source(1)
    if given.type_id != I32 or given.data.size != each * tokens or not given.contiguous:
        raise NoDefinition(f"ROPE with positions of {given.type} {given.ne}")
    return np.asarray(given.data).reshape(each, tokens)


def _sections(node: Node, pairs: int) -> tuple[Array, Doubles]:
    """Return which of a token's positions each pair uses, and its k: [pairs] each."""
    mode, sizes = node.integer(2), np.array([node.integer(11 + i) for i in range(4)], np.int64)
    k = np.arange(pairs, dtype=np.float64)
    if not mode & MROPE:
        return np.zeros(pairs, np.int64), k
    whole = int(sizes.sum())
    if (sizes < 0).any() or not sizes[:3].any() or whole > node.source(0).ne[0]:
        raise NoDefinition(f"ROPE with sections of {sizes.tolist()}")
    sector = np.arange(pairs) % whole
    if mode == IMROPE:
        turn = sector % 3
        return np.where(sector < 3 * sizes[turn], turn, 3), k
    starts = np.cumsum(sizes) - sizes
    which = np.searchsorted(starts[1:], sector, side="right")
    if mode == VISION:
        # backends differ in the third and fourth section, and the CPU also in empty ones
        if not sizes[0] or not sizes[1] or (pairs > sizes[0] + sizes[1] and sizes[2:].any()):
            raise NoDefinition(f"ROPE's vision mode with sections of {sizes.tolist()}")
        return which, (sector - starts[which]).astype(np.float64)
    return which, k


def _angles(node: Node, positions: Array, k: Doubles, d: int) -> tuple[Doubles, Doubles, float, float]:
    base, scale, mix, factor = (np.float64(node.number(i)) for i in (5, 6, 7, 8))
    demand(bool(0 < base < np.inf and 0 < scale < np.inf), f"ROPE of the base {base} and the scale {scale}")
    a, u = arithmetic(node.backend), UNIT_ROUNDOFF
    exponent = np.float32(-2) / np.float32(d)
    t_off = arithmetic("CPU").power * ULP + abs(float(exponent) + 2 / d) * abs(math.log(base))
    chain = k * (t_off + u) if a.doubles else k * t_off + a.power * ULP + u
    share = np.exp(-2 * k / d * math.log(base))
    p = positions.astype(np.float32).astype(np.float64)
    alpha, off = p * share, np.abs(p) * share * np.expm1(chain)
    factors = node.optional(2)
    if factors is not None:
        if factors.type_id != F32 or factors.ne[0] < len(k) or not factors.contiguous:
            raise NoDefinition(f"ROPE with factors of {factors.type} {factors.ne}")
        r = factors.values.reshape(-1)[: len(k)]
        alpha, off = alpha / r, off / np.abs(r) + a.division * ULP * np.abs(alpha / r)
    angle, angle_off = scale * alpha, scale * (off + (u * np.abs(alpha) if scale != 1 else 0.0))
    if mix == 0:
        return angle, angle_off, float(factor), 0.0
    ramp, ramp_off = _ramp(node, len(k), d, float(mix))
    other, rest = (1 - ramp) * angle, ramp * alpha
    mixed = other + rest
    angle_off = np.abs(1 - ramp) * angle_off + np.abs(ramp) * off + np.abs(angle - alpha) * ramp_off
    angle_off = angle_off + u * (2 * np.abs(other) + np.abs(rest) + np.abs(mixed))
    log = math.log(1 / scale)
    grown = 1 + float(np.float32(0.1)) * log
    log_off = u + abs(log) * a.logarithm * ULP + a.near_one
    scale_off = (0.1 * log_off + u * abs(0.1 * log)) / abs(grown) + 2 * u if grown else np.inf
    return mixed, angle_off, float(factor) * grown, float(scale_off)


def _ramp(node: Node, pairs: int, d: int, mix: float) -> tuple[Doubles, Doubles]:
    """Return YaRN's m of each pair, and its absolute error: float64[pairs] each."""
    context, base, a = node.integer(4), node.number(5), arithmetic(node.backend)
    ends = []
    for beta in (node.number(9), node.number(10)):
        if context <= 0 or not 0 < beta < math.inf or math.log(base) == 0:
            raise NoDefinition(f"YaRN with a context of {context}, β = {beta} and the base {base}")
        size = d / (2 * math.log(base))
        of = size * math.log(context / (2 * math.pi * beta))
        off = abs(size) * _DIMENSION_OFF + 8 * UNIT_ROUNDOFF * abs(of)
        demand(math.floor(of - off) == math.floor(of + off), f"YaRN whose dimension {of} is too near to an integer")
        ends.append(of)
    low, high = max(0, math.floor(ends[0])), min(d - 1, math.ceil(ends[1]))
    y = (np.arange(pairs) - low) / max(float(np.float32(0.001)), high - low)
    ramp = mix * (1 - np.clip(y, 0, 1))
    between = (y > 0) & (y < 1)
    return ramp, UNIT_ROUNDOFF * np.abs(ramp) + np.where(between, abs(mix) * (2 * a.division + 1) * UNIT_ROUNDOFF, 0.0)


ROPE = Operation(op="ROPE", title="pairs of values rotated by a token's position", judge=_judge, draw=_draw, axes=_AXES)
ROPE_BACK = Operation(op="ROPE_BACK", title="ROPE by minus its angle", judge=_judge, draw=_draw_back, axes=_AXES)
