"""Hyper-connections of DeepSeek V4 and Qwen3.8-Flash-Next: DSV4_HC_PRE and DSV4_HC_POST; DSV4_HC_COMB is in `sinkhorn`.

A token has H residual streams instead of one (arXiv 2512.24880). With t the token, h and g streams, i the element:

    PRE          y[t, i]    = s·Σ_h x[t, h, i]·w[t, h]                       s is 1 or parameter 0
    PRE gated    y[t, i]    = s·Σ_h x[t, h, i]/(1 + e^(-gate[t, h, i]))      if parameter 1 is not 0
    POST         y[t, h, i] = x[t, i]·post[t, h] + Σ_g residual[t, g, i]·comb[t, g, h]
                 y[t, h, i] = x[t, i]·post[t, h] + residual[t, h, i]         without comb

Everything is float32, and every backend adds in the order of the streams (ggml-cpu/ops.cpp, ggml-cuda/dsv4-hc.cu,
vulkan-shaders/dsv4_hc_pre.comp and dsv4_hc_post.comp; llama.cpp v0.5.0). Vulkan's shaders have exactly four streams and
fused multiply-adds; other compilers may contract. A fused operation saves one rounding. Where Vulkan fuses SCALE,
SIGMOID and SCALE of `post` into POST, `post` is not an input of the node; nodes computed one by one are not fused.

    bound   the running error of the sum (`recurrence`): half an ulp of each product and of each partial sum, plus |x|
            times the error of the gate's sigmoid, from the interval of its steps (`intervals`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gguf_verify.llama.node import F32, Doubles, Node, NoDefinition, Operand, demand, parameters

from .arithmetic import arithmetic, near_overflow
from .functions import sigmoid, sigmoid_steps
from .intervals import Steps
from .judging import Judged, Operation, within
from .random_inputs import floats
from .recurrence import Running

#: Largest number of streams whose sum is followed; models have 4.
_MOST = 1024


def _sum(terms: Iterable[Running], tiny: float) -> Running:
    """Return the sum in order. Raises NoDefinition where a partial sum comes near the end of float32's range."""
    total: Running | None = None
    for term in terms:
        total = term if total is None else total.plus(term, tiny)
        for value in (term.value, total.value):
            demand(not near_overflow(value), "sums of streams beyond float32")
    if total is None:
        raise NoDefinition("a sum of no streams")
    return total


def _judged(node: Node, definition: str, y: Running) -> Judged:
    given = (y.value, y.bound, np.sqrt(y.variance + y.common))
    exact, bound, spread = (np.broadcast_to(a, y.value.shape).reshape(node.output.shape) for a in given)
    return within(node, definition, exact, bound, spread)


def _pre(node: Node) -> Judged:
    node.floats(0, 1)
    x, w, scale, gated = node.source(0), node.source(1), node.number(0), node.integer(1) != 0
    n, streams, tokens, one = x.ne
    expected = (n, streams, tokens, 1) if gated else (streams, tokens, 1, 1)
    fits = one == 1 and w.ne == expected and node.output.ne == (n, tokens, 1, 1)
    demand(fits, f"{node.op} of {x.ne} and {w.ne} to {node.output.ne}")
    demand(streams <= _MOST, f"{node.op} of {streams} streams")
    a, steps = arithmetic(node.backend), Steps.of(node.backend)
    values, given = x.values[0], w.values[0] if gated else w.values[0, 0][..., None]
    demand(not (gated and np.isinf(values).any()), f"{node.op} of infinite values with gates")

    def terms() -> Iterator[Running]:
        for h in range(streams):
            weights = _gate(steps, given[:, h]) if gated else Running(given[:, h])
            yield Running(values[:, h]).times(weights, a.tiny)

    with np.errstate(all="ignore"):
        total = _sum(terms(), a.tiny)
        if scale != 1:
            total = total.times(Running(np.full((), scale)), a.tiny)
            demand(not near_overflow(total.value), f"{node.op} beyond float32")
        return _judged(node, "gated, f32" if gated else "f32", total)


def _gate(steps: Steps, gate: Doubles) -> Running:
    """Return the sigmoid of the gate with the error of a backend's steps."""
    exact, reach = sigmoid(gate), sigmoid_steps(steps, steps.source(gate))
    off = np.maximum(reach.high - exact, exact - reach.low)
    return Running(exact, off, off**2 / 3)


def _post(node: Node) -> Judged:
    node.floats(0, 1, 2)
    x, residual, post, comb = *(node.source(i) for i in range(3)), node.optional(3)
    n, tokens, _, _ = x.ne
    streams = residual.ne[1]
    fits = x.ne == (n, tokens, 1, 1) and residual.ne == (n, streams, tokens, 1) and post.ne == (streams, tokens, 1, 1)
    fits = fits and node.output.ne == residual.ne and (comb is None or comb.ne == (streams, streams, tokens, 1))
    demand(fits, f"{node.op} of {x.ne}, {residual.ne} and {post.ne} to {node.output.ne}")
    demand(streams <= _MOST, f"{node.op} of {streams} streams")
    a = arithmetic(node.backend)
    if comb is not None:
        node.floats(3)

    def terms() -> Iterator[Running]:
        yield Running(x.values[0, 0][:, None]).times(Running(post.values[0, 0][..., None]), a.tiny)
        if comb is None:
            yield Running(residual.values[0])
            return
        values, weights = residual.values[0], comb.values[0]
        for g in range(streams):
            yield Running(values[:, g, None]).times(Running(weights[:, g, :, None]), a.tiny)

    with np.errstate(all="ignore"):
        return _judged(node, "f32" if comb is not None else "own residual, f32", _sum(terms(), a.tiny))


# ---- Random nodes ----------------------------------------------------------------------------------------------------

#: Number of elements, streams and tokens.
_SIZES = ((1, 4, 1), (31, 4, 17), (128, 1, 5), (65, 2, 3), (7, 3, 4), (33, 5, 2), (16, 65, 3), (1100, 4, 2))


def _draw_pre(rng: np.random.Generator) -> Iterator[Node]:
    def node(x: Operand, w: Operand, scale: float, gated: bool) -> Node:
        return Node("DSV4_HC_PRE", (x, w), Operand.blank(F32, x.ne[2], x.ne[0]), parameters(scale, int(gated)))

    for n, streams, tokens in _SIZES:
        x = Operand.of(floats(rng, (tokens, streams, n)))
        yield node(x, Operand.of(floats(rng, (tokens, streams), 1.0)), 1.0, False)
        for scale, factor in ((1 / streams, 1.0), (-3.7, 8.0)):
            gate = floats(rng, (tokens, streams, n), 1.0) * np.float32(factor)
            yield node(x, Operand.of(gate), scale, True)
    turned = Operand.of(floats(rng, (4, 17, 31))).permuted(0, 2, 1, 3)
    yield node(turned, Operand.of(floats(rng, (4, 17))).permuted(1, 0, 2, 3), 1.0, False)
    yield node(turned, Operand.of(floats(rng, (31, 4, 17))).permuted(2, 1, 0, 3), 0.25, True)
    gate = np.tile(np.array([0.0, 1e-30, 20, 87, 88.5, 89, 100, 1e10, np.inf], np.float32), (2, 4, 5))
    gate[:, 1::2] *= -1
    yield node(Operand.of(floats(rng, gate.shape, 1.0)), Operand.of(gate), 0.25, True)


def _draw_post(rng: np.random.Generator) -> Iterator[Node]:
    for n, streams, tokens in _SIZES:
        x, residual = Operand.of(floats(rng, (tokens, n))), Operand.of(floats(rng, (tokens, streams, n)))
        post, comb = (Operand.of(floats(rng, (tokens, *s), 1.0)) for s in ((streams,), (streams, streams)))
        for sources in ((x, residual, post, comb), (x, residual, post)):
            yield Node("DSV4_HC_POST", sources, Operand.blank(F32, tokens, streams, n))
    turned = (
        Operand.of(floats(rng, (31, 17))).permuted(1, 0, 2, 3),
        Operand.of(floats(rng, (4, 17, 31))).permuted(0, 2, 1, 3),
        Operand.of(floats(rng, (4, 17))).permuted(1, 0, 2, 3),
        Operand.of(floats(rng, (17, 4, 4))).permuted(1, 0, 2, 3),
    )
    yield Node("DSV4_HC_POST", turned, Operand.blank(F32, 17, 4, 31))


DSV4_HC_PRE = Operation(
    op="DSV4_HC_PRE",
    title="s·Σ x·w over streams, w = σ(gate) where gated",
    judge=_pre,
    draw=_draw_pre,
    axes=("i3", "i2", "token", "i0"),
)
DSV4_HC_POST = Operation(
    op="DSV4_HC_POST",
    title="x·post + Σ residual·comb over streams",
    judge=_post,
    draw=_draw_post,
    axes=("i3", "token", "stream", "i0"),
)
