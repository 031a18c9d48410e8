"""State-space models: SSM_CONV and SSM_SCAN.

    SSM_CONV    y[c, t] = Σ_k x[c, t + k]·w[c, k]                 k < d_conv, for each channel c and token t
    SSM_SCAN    Δ = softplus(dt);  S ← S·exp(Δ·A) + B·(x·Δ);  y = Σ_n S[n]·C[n]      for each head, channel and token

A has one value per head (Mamba-2) or one per head and state (Mamba-1); B and C belong to groups of consecutive heads;
`ids` selects the initial state of each sequence. The output has all y, followed by K new states of each sequence: slot
s is the state s tokens before the end. Slots before the first token stay unwritten.

Everything is float32: softplus(x) = log(1 + e^x), and x above 20, by the C library's functions, and sums in one scalar
loop, or by vectors where d_state fills them (ggml-cpu/ops.cpp, ggml-impl.h: ggml_compute_softplus_f32;
ggml-cuda/ssm-scan.cu, vulkan-shaders/ssm_scan.comp; llama.cpp v0.5.0). For more than 128 tokens of Mamba-2, CUDA
computes products of half matrices instead: that is not defined here.

    softplus    e^x has its ulps as error, and 1 + e^x is rounded: in the logarithm these become absolute errors of
                e^x/(1 + e^x)·ulps and u; its own ulps are added.
    decay       the error of exp(Δ·A) is e^(error of Δ·A) - 1 plus its own ulps. It is common to all states of a head,
                as that of x·Δ is. Both depend on one Δ: the variance of its error counts twice, since
                (a + b)² ≤ 2·a² + 2·b².
    state, y    running errors (`recurrence`)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gguf_verify.llama.node import F32, I32, Doubles, Node, Operand, demand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, arithmetic, summed
from .judging import Judged, Operation, within
from .random_inputs import floats
from .recurrence import Running, exp_error, joined, stacked

#: CUDA uses another algorithm for more tokens (SSM_SSD_MIN_TOKENS).
_STEPS = 128


def _conv(node: Node) -> Judged:
    node.floats(0, 1)
    a = arithmetic(node.backend)
    x, w = node.source(0).values, node.source(1).values
    demand(len(x) == 1 and w.shape[:2] == (1, 1), "SSM_CONV of these shapes")
    x, w = x[0], w[0, 0]
    (sequences, channels, length), (rows, taps) = x.shape, w.shape
    tokens = length - taps + 1
    demand(rows == channels and node.output.shape == (1, sequences, tokens, channels), "SSM_CONV of these shapes")
    total, magnitude, squares = (np.zeros((sequences, channels, tokens)) for _ in range(3))
    with np.errstate(all="ignore"):
        for k in range(taps):
            term = x[:, :, k : k + tokens] * w[:, k, None]
            total, magnitude, squares = total + term, magnitude + np.abs(term), squares + term**2
        bound, spread = summed(total, magnitude, squares, taps, 1)
    turned = (each.transpose(0, 2, 1)[None] for each in (total, bound + 2 * taps * a.tiny, spread + a.tiny))
    return within(node, "f32", *turned)


def _softplus(dt: Doubles, backend: str) -> Running:
    a = arithmetic(backend)
    power = np.exp(np.minimum(dt, 20.0))
    passed = dt > 20.0
    value = np.where(passed, dt, np.log1p(power))
    bound = power / (1 + power) * exp_error(backend, dt) + UNIT_ROUNDOFF
    bound = np.where(passed, 0.0, bound + a.logarithm * ULP * np.abs(value) + a.near_one + a.tiny)
    return Running(value, bound, common=2 * bound**2)


def _decay(exponent: Running, backend: str) -> Running:
    value = np.exp(exponent.value)
    error = np.expm1(exponent.bound) + exp_error(backend, exponent.value) * np.exp(exponent.bound)
    own = (value * exp_error(backend, exponent.value)) ** 2
    spread = value**2 * (exponent.variance + exponent.common) + own
    return Running(value, value * error + arithmetic(backend).tiny, common=spread)


def _scan(node: Node) -> Judged:
    node.floats(0, 1, 2, 3, 4, 5)
    tiny = arithmetic(node.backend).tiny
    s, x, dt, rates, b, c = (node.source(i).values for i in range(6))
    ids = node.source(6)
    (sequences, tokens, heads, channels), states = x.shape, s.shape[3]
    groups, slots = b.shape[2], node.integer(0) or 1  # releases without this parameter keep one state
    demand(ids.type_id == I32 and ids.shape == (1, 1, 1, sequences), "SSM_SCAN without one state for each sequence")
    chosen = ids.data[0, 0, 0]
    fits = (
        s.shape[1:3] == (heads, channels)
        and dt.shape == (1, sequences, tokens, heads)
        and b.shape == c.shape
        and b.shape == (sequences, tokens, groups, states)
        and rates.shape[:3] == (1, 1, heads)
        and rates.shape[3] in (1, states)
        and groups > 0
        and heads % groups == 0
        and slots >= 1
    )
    size = x.size + slots * sequences * heads * channels * states
    demand(fits and node.output.shape == (1, 1, 1, size), "SSM_SCAN of these shapes")
    demand(bool(((chosen >= 0) & (chosen < len(s))).all()), "SSM_SCAN of a state out of range")
    quick = node.backend == "CUDA" and rates.shape[3] == 1 and tokens > _STEPS and slots == 1
    demand(not quick, "SSM_SCAN by products of matrices, as CUDA does of many tokens")
    per = heads // groups
    ys: list[Running] = []
    past: list[Running] = []
    state = Running(s[chosen])
    with np.errstate(all="ignore"):
        for t in range(tokens):
            step = _softplus(dt[0, :, t], node.backend).at((..., None))
            decay = _decay(step.times(Running(rates[0, 0]), tiny), node.backend).at((slice(None), slice(None), None))
            fed = Running(x[:, t]).times(step, tiny).shared().at((..., None))
            inward, outward = (np.repeat(each[:, t], per, axis=1)[:, :, None] for each in (b, c))
            state = state.times(decay, tiny).plus(fed.times(Running(inward), tiny), tiny)
            ys.append(state.dot(outward, tiny))
            past = [state, *past[: slots - 1]]
    if not tokens:  # without a token no state is written
        past = []
    kept = f", {len(past)} of {slots} states" if slots > len(past) else ""
    return joined(node, f"f32{kept}", (stacked(ys, 1), *past))


def _draw_conv(rng: np.random.Generator) -> Iterator[Node]:
    for sizes in ((1, 1, 1, 1), (1, 5, 7, 4), (3, 33, 2, 4), (2, 256, 11, 3), (1, 40, 1, 4)):
        sequences, channels, tokens, taps = sizes
        x = floats(rng, (1, sequences, channels, tokens + taps - 1))
        w = floats(rng, (1, 1, channels, taps), 1.0)
        yield Node("SSM_CONV", (Operand.of(x), Operand.of(w)), Operand.blank(F32, sequences, tokens, channels))


def _draw_scan(rng: np.random.Generator) -> Iterator[Node]:
    # sequences, tokens, heads, channels of a head, states, groups, values of A, snapshots
    for shape in (
        (1, 1, 1, 1, 1, 1, 1, 1),
        (1, 5, 6, 1, 16, 1, 16, 1),
        (2, 3, 40, 1, 16, 1, 16, 1),
        (1, 4, 3, 2, 5, 3, 5, 1),
        (2, 7, 4, 8, 128, 2, 1, 1),
        (3, 4, 6, 3, 33, 3, 1, 2),
        (1, 40, 2, 16, 64, 1, 1, 3),
        (2, 3, 8, 64, 128, 1, 1, 1),
    ):
        sequences, tokens, heads, channels, states, groups, rates, slots = shape
        s = floats(rng, (sequences + 2, heads, channels, states), 1.0)
        x = floats(rng, (sequences, tokens, heads, channels), 1.0)
        dt = (rng.normal(-1, 3, (sequences, tokens, heads))).astype(np.float32)
        dt.reshape(-1)[:1] = 25.0  # in the range where softplus(x) is x
        rate = -np.exp(rng.normal(-2, 1, (heads, rates))).astype(np.float32)
        b, c = (floats(rng, (sequences, tokens, groups, states), 1.0) for _ in range(2))
        ids = rng.permutation(sequences + 2)[:sequences].astype(np.int32)
        size = x.size + slots * sequences * heads * channels * states
        sources = tuple(Operand.of(each) for each in (s, x, dt, rate, b, c, ids))
        yield Node("SSM_SCAN", sources, Operand.blank(F32, size), parameters(slots))


SSM_CONV = Operation(op="SSM_CONV", title="a causal convolution of each channel", judge=_conv, draw=_draw_conv)
SSM_SCAN = Operation(op="SSM_SCAN", title="S ← S·exp(Δ·A) + B·x·Δ, y = S·C", judge=_scan, draw=_draw_scan)
