"""SOFT_MAX of rows of scores, with a scale, a mask, ALiBi slopes and sinks.

    v[i] = scale·x[i] + slope·mask[i]        y[i] = exp(v[i] - M) / (Σ_j exp(v[j] - M) + exp(sink - M))

M is the largest of all v and the sink, which is one number per head; without a sink its term is omitted. The mask, in
float32 or half, is repeated over heads and batches. A row that is fully masked, without a sink, is NaN.
(ggml-cpu/ops.cpp: ggml_compute_forward_soft_max_f32; vec.cpp: ggml_vec_soft_max_f32; ggml-cuda/softmax.cu;
vulkan-shaders/soft_max.comp; llama.cpp v0.5.0.)

M cancels, so its error does not matter. A weight exp(v - M) has the error factor exp(ε), |ε| ≤ δ, where

    δ[i]    u·(|scale·x| + |slope·mask| + |v|) + (error of the slope)·|slope·mask| + u·|v - M| + exponential's error

The quotient lies between exp(-δ[i]) / Σ_j y[j]·exp(δ[j]) and exp(δ[i]) / Σ_j y[j]·exp(-δ[j]) times y[i], which gives
the bound. Added to it are the errors of the sum and of its reciprocal, and half an ulp each for rounding the reciprocal
and the product. The CPU adds up at most 16 weights in float32, in a tree of four levels, and those sums in double: 4·u.
Other backends add in float32, where the sum's error is the smaller of its bound and SCORE_LIMIT spreads
(`arithmetic.added`). Subnormal weights and results have an error of up to 2^-149 each, twice that where powers of two
are multiplied separately, or the error of flushing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gguf_verify.llama.node import F32, Doubles, Node, NoDefinition, Operand, demand, parameters
from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, Arithmetic, added, arithmetic
from .attention_scores import mask_of, slopes
from .judging import Judged, Operation, in_range, within
from .random_inputs import floats

#: Levels of the tree by which the CPU adds up a vector of float32.
LEVELS = 4


def _judge(node: Node) -> Judged:
    node.floats(0)
    x, a = node.source(0).values, arithmetic(node.backend)
    demand(x.shape == node.output.shape, f"SOFT_MAX of {node.source(0).ne} with an output of {node.output.ne}")
    with np.errstate(all="ignore"):
        v, off = _scores(node, x)
        sink = _sinks(node, x.shape)
        most = v.max(axis=-1, keepdims=True, initial=-np.inf)
        if sink is not None:
            most = np.maximum(most, sink)
        weights, off = _weights(v, off, most, a)
        total, sum_off = _sum(weights, a)
        y_off, least = (weights * np.exp(off)).sum(-1, keepdims=True), (weights * np.exp(-off)).sum(-1, keepdims=True)
        if sink is not None:
            share, sink_off = _weights(sink, 0 * sink, most, a)
            total = total + share
            y_off, least = y_off + share * np.exp(sink_off), least + share * np.exp(-sink_off)
        exact = weights / total
        rest = sum_off + (a.division + 1) * ULP
        above = np.exp(off) * (total / least) * (1 + rest) - 1
        below = 1 - np.exp(-off) * (total / y_off) * (1 - rest)
        subnormal = 2 * a.tiny if a.flushes else 5 * a.tiny
        return within(node, "f32", exact, exact * np.maximum(above, below) + subnormal)


def _scores(node: Node, x: Doubles) -> tuple[Doubles, Doubles]:
    """Return scale·x + slope·mask, and its absolute error."""
    v = in_range(np.float64(node.number(0)) * x)
    off = UNIT_ROUNDOFF * np.abs(v)
    mask = node.optional(1)
    if mask is None:
        return v, off
    ne3, ne2, ne1, ne0 = x.shape
    mask_of(node, mask, ne1, ne0, (ne3, ne2))
    slope, slope_off = (s[:, None, None] for s in slopes(node, ne2, node.number(1)))
    tiled = np.tile(mask.values[:, :, :ne1], (ne3 // mask.shape[0], ne2 // mask.shape[1], 1, 1))
    masked = slope * tiled
    v = in_range(v + masked)
    off = off + (UNIT_ROUNDOFF + slope_off) * np.abs(masked) + UNIT_ROUNDOFF * np.abs(v)
    return v, np.where(np.isinf(v), 0.0, off)


def _sinks(node: Node, shape: tuple[int, ...]) -> Doubles | None:
    """Return one number per head, [ne2, 1, 1], or None."""
    sinks = node.optional(2)
    if sinks is None:
        return None
    if sinks.type_id != F32 or sinks.shape != (1, 1, 1, shape[1]):
        raise NoDefinition(f"SOFT_MAX with sinks of {sinks.type} {sinks.ne}")
    return sinks.values.reshape(-1, 1, 1)


def _weights(v: Doubles, off: Doubles, most: Doubles, a: Arithmetic) -> tuple[Doubles, Doubles]:
    """Return exp(v - M), and the error of its exponent."""
    below = v - most
    return np.exp(below), np.where(
        np.isinf(below), 0.0, off + UNIT_ROUNDOFF * np.abs(below) + np.log1p(a.exp_error(below))
    )


def _sum(weights: Doubles, a: Arithmetic) -> tuple[Doubles, Doubles | float]:
    """Return Σ of the weights, and its relative error."""
    if a.doubles:
        return weights.sum(axis=-1, keepdims=True), LEVELS * UNIT_ROUNDOFF
    total, bound, spread = added(weights, a.lanes)
    return total, np.where(total > 0, np.minimum(bound, SCORE_LIMIT * spread) / total, 0.0)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    for shape in ((1, 1, 1, 1), (1, 1, 3, 7), (2, 3, 5, 33), (1, 12, 4, 256), (2, 4, 2, 1100)):
        ne3, ne2, ne1, ne0 = shape
        x = Operand.of(floats(rng, shape, 1.0))
        yield Node("SOFT_MAX", (x,), Operand.blank(F32, *shape), parameters(1.0, 0.0))
        sinks = Operand.of(floats(rng, (ne2,), 1.0))
        for of in ((ne3, ne2, ne1, ne0), (1, 1, ne1 + 3, ne0), (1, ne2, ne1, ne0)):
            mask = np.where(rng.random(of) < 0.3, -np.inf, rng.standard_normal(of)).astype(np.float32)
            mask[..., ne0 // 2] = 0
            for dtype, scale, bias in ((np.float16, 0.125, 0.0), (np.float32, 1.0, 8.0), (np.float16, 30.0, 8.0)):
                sources = (x, Operand.of(mask.astype(dtype)), sinks if scale != 1 else None)
                yield Node("SOFT_MAX", sources, Operand.blank(F32, *shape), parameters(scale, bias))
    masked = Operand.of(np.full((1, 1, 5, 40), -np.inf, np.float32))
    x = Operand.of(floats(rng, (1, 2, 5, 40)))
    for sink in (None, Operand.of(floats(rng, (2,)))):
        yield Node("SOFT_MAX", (x, masked, sink), Operand.blank(F32, 1, 2, 5, 40), parameters(1.0, 0.0))


SOFT_MAX = Operation(
    axes=("sequence", "head", "token", "key"),
    op="SOFT_MAX",
    title="exp(v - M) / Σ exp(v - M), v = scale·x + slope·mask",
    judge=_judge,
    draw=_draw,
)
