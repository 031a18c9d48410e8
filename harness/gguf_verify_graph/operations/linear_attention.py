"""Linear attention: GATED_LINEAR_ATTN and GATED_DELTA_NET, with a state S of head size × head size per head.

    GATED_LINEAR_ATTN   S[i, j] ← S[i, j]·g[i] + k[i]·v[j];  y[j] = scale·Σ_i q[i]·S[i, j]
    GATED_DELTA_NET     S[j, i] ← S[j, i]·e^g;  δ[j] = β·(v[j] - Σ_i S[j, i]·k[i]);  S[j, i] ← S[j, i] + δ[j]·k[i];
                        y[j] = Σ_i S[j, i]·q[i]/√n, n the head size

A gate g of GATED_DELTA_NET is one number per head, or one per element i (Kimi's delta attention). Heads of q and k are
repeated over those of v: head h uses h mod (heads of q). The output has y[token, head and element], followed by the new
state of each sequence; for GATED_DELTA_NET K states: slot s is the state s tokens before the end, and slots before the
first token stay unwritten.

Everything is float32: e^g by the C library's function, 1/√n by float32's root and division on the host, products and
sums fused or not. Other backends scale the sum over k by e^g instead of the state, or y by the scale instead of q
(ggml-cpu/ops.cpp, ggml-cuda/gla.cu and gated_delta_net.cu, vulkan-shaders/gated_delta_net.comp; llama.cpp v0.5.0).

The bounds are running errors (`recurrence`). GATED_DELTA_NET mixes rows: its M is I - β·k·kᵀ, of norm
max(1, |1 - β·‖k‖²|).

The recurrences of RWKV: RWKV_WKV6 and RWKV_WKV7, with a state s of head size × head size per head.

    WKV6    y[j] = Σ_i r[i]·(k[i]·v[j]·u[i] + s[i, j]);  s[i, j] ← s[i, j]·w[i] + k[i]·v[j]
    WKV7    c[i] = Σ_j a[j]·s[i, j];  s[i, j] ← s[i, j]·w[j] + v[i]·k[j] + c[i]·b[j];  y[i] = Σ_j r[j]·s[i, j]

The tokens of the sequences are consecutive, equally many each. The output has y[token, head and element], followed by
the new state of each sequence. Everything is float32, with products and sums fused or not (ggml-cpu/ops.cpp,
ggml-cuda/wkv.cu, vulkan-shaders/wkv6.comp and wkv7.comp; llama.cpp v0.5.0). The CPU's WKV7 processes whole vectors of a
head: heads of 64.

The bounds are running errors (`recurrence`); WKV7 mixes rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gguf_verify.llama.node import F32, Array, Doubles, Node, Operand, demand, parameters

from .arithmetic import arithmetic
from .judging import Judged, Operation
from .random_inputs import floats
from .recurrence import Rows, Running, exp_error, joined, stacked


def _gated(node: Node) -> Judged:
    (k, v, q, g), before = heads_of(node, range(4), 4)
    tiny, scale = arithmetic(node.backend).tiny, node.number(0)
    state, ys = Running(before), []
    with np.errstate(all="ignore"):
        for t in range(k.shape[1]):
            fed = Running(k[:, t, :, :, None]).times(Running(v[:, t, :, None]), tiny)
            state = state.times(Running(g[:, t, :, :, None]), tiny).plus(fed, tiny)
            # q times the scale is rounded: for a term this equals rounding the state
            ys.append(state.rounded(tiny).dot(q[:, t, :, :, None] * scale, tiny, -2))
    return joined(node, "f32", (stacked(ys, 1), state))


def _delta(node: Node) -> Judged:
    node.floats(0, 1, 2, 3, 4, 5)
    tiny = arithmetic(node.backend).tiny
    slots = node.integer(0) or 1  # releases without this parameter keep one state
    q, k, v, g, beta, before = (node.source(i).values for i in range(6))
    sequences, tokens, heads, n = v.shape
    fits = (
        min(sequences, heads, n) > 0
        and all(_repeats(each.shape, v.shape) for each in (q, k))
        and g.shape in ((*v.shape[:3], 1), v.shape)
        and beta.shape == (*v.shape[:3], 1)
        and before.shape == (sequences, heads, n, n)
        and slots >= 1
        and node.output.shape == (1, 1, (tokens + slots * n) * sequences, n * heads)
    )
    demand(fits, "GATED_DELTA_NET of these shapes")
    q, k = (_repeated(each, sequences, heads) for each in (q, k))
    scale = Running(np.asarray(np.float32(1) / np.sqrt(np.float32(n)), np.float64))
    state = Rows.of(before)
    ys: list[Running] = []
    past: list[Running] = []
    with np.errstate(all="ignore"):
        for t in range(tokens):
            key, gain = k[:, t], -beta[:, t]
            state = state.scaled(np.exp(g[:, t]), exp_error(node.backend, g[:, t]), tiny)
            size = np.maximum(1.0, np.abs(1.0 + gain[..., 0] * (key**2).sum(axis=-1)))
            nothing = np.zeros((1, 1, 1, 1))
            state = state.mixed(None, key, key, gain, -gain * v[:, t], nothing, size, tiny)
            ys.append(state.read(q[:, t], tiny)[0].times(scale, tiny))
            past = [state.running(), *past[: slots - 1]]
    kept = f", {len(past)} of {slots} states" if slots > len(past) else ""
    return joined(node, f"f32{kept}", (stacked(ys, 1), *past))


def _repeats(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    divides = all(p > 0 and w % p == 0 for p, w in zip(part[::2], whole[::2], strict=True))
    return part[1] == whole[1] and part[3] == whole[3] and divides


def _repeated(values: Doubles, sequences: int, heads: int) -> Doubles:
    """Return heads repeated to `heads`, and sequences to `sequences`."""
    tiled = np.tile(values, (1, 1, heads // values.shape[2], 1))
    return np.repeat(tiled, sequences // values.shape[0], axis=0)


def _draw_gated(rng: np.random.Generator) -> Iterator[Node]:
    for shape in ((1, 1, 1, 1), (1, 7, 2, 5), (2, 3, 3, 16), (3, 4, 2, 33), (1, 20, 2, 64)):
        k, v, q = (random_heads(rng, shape)[0] for _ in range(3))
        _, g, state = random_heads(rng, shape)
        sources = tuple(Operand.of(each) for each in (k, v, q, g, state))
        yield Node("GATED_LINEAR_ATTN", sources, blank_heads(shape), parameters(float(shape[3] ** -0.5)))


def _draw_delta(rng: np.random.Generator) -> Iterator[Node]:
    # sequences, tokens, heads of v, head size, heads of q and k, whether gates are per element, snapshots
    for shape in (
        (1, 1, 1, 1, 1, False, 1),
        (1, 5, 2, 4, 1, False, 1),
        (2, 6, 4, 16, 2, True, 3),
        (1, 12, 2, 33, 2, True, 1),
        (1, 40, 3, 64, 3, False, 2),
        (2, 2, 4, 128, 2, False, 1),
    ):
        sequences, tokens, heads, n, keys, elements, slots = shape
        q, k = (floats(rng, (sequences, keys, tokens, n), 1.0) for _ in range(2))
        k = k / np.sqrt((k**2).sum(axis=-1, keepdims=True))
        v = floats(rng, (sequences, tokens, heads, n), 1.0)
        g = -rng.exponential(0.3, (sequences, tokens, heads, n if elements else 1)).astype(np.float32)
        beta = rng.uniform(0, 1, (sequences, tokens, heads, 1)).astype(np.float32)
        state = floats(rng, (sequences, heads, n, n), 1.0)
        turned = (Operand.of(each).permuted(0, 2, 1, 3) for each in (q, k))
        others = (Operand.of(each) for each in (v, g, beta, state))
        output = Operand.blank(F32, (tokens + slots * n) * sequences, n * heads)
        yield Node("GATED_DELTA_NET", (*turned, *others), output, parameters(slots))


def heads_of(node: Node, sources: Sequence[int], state: int) -> tuple[list[Doubles], Doubles]:
    """Return sources as [sequence, token, head, element], and the state of each sequence [sequence, head, element,
    element].

    Raises NoDefinition if they or the output do not fit, or are not float32.
    """
    node.floats(*sources, state)
    given = [node.source(i).values for i in sources]
    before = node.source(state).values
    batch, tokens, heads, size = given[0].shape
    sequences = before.shape[2]
    fits = (
        batch == 1
        and all(each.shape == given[0].shape for each in given)
        and min(sequences, heads, size) > 0
        and tokens % sequences == 0
        and before.size == size * size * heads * sequences
        and node.output.shape == (1, 1, tokens + size * sequences, size * heads)
    )
    demand(fits, f"{node.op} of these shapes")
    split = [each.reshape(sequences, tokens // sequences, heads, size) for each in given]
    return split, before.reshape(sequences, heads, size, size)


def _wkv6(node: Node) -> Judged:
    (k, v, r, w), before = heads_of(node, (0, 1, 2, 4), 5)
    node.floats(3)
    tiny = arithmetic(node.backend).tiny
    first = node.source(3).values
    demand(first.size == k.shape[2] * k.shape[3], "RWKV_WKV6 without one u for each element of a head")
    bonus = Running(first.reshape(*k.shape[2:])[..., None])
    state, ys = Running(before), []
    with np.errstate(all="ignore"):
        for t in range(k.shape[1]):
            fed = Running(k[:, t, :, :, None]).times(Running(v[:, t, :, None]), tiny)
            ys.append(fed.times(bonus, tiny).plus(state, tiny).dot(r[:, t, :, :, None], tiny, -2))
            state = state.times(Running(w[:, t, :, :, None]), tiny).plus(fed, tiny)
    return joined(node, "f32", (stacked(ys, 1), state))


def _wkv7(node: Node) -> Judged:
    (r, w, k, v, a, b), before = heads_of(node, range(6), 6)
    tiny = arithmetic(node.backend).tiny
    state, ys = Rows.of(before), []
    one, none = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    with np.errstate(all="ignore"):
        for t in range(k.shape[1]):
            fed = v[:, t, :, :, None] * k[:, t, :, None]
            size = spectral_norm(w[:, t, :, :, None] * np.eye(w.shape[3]) + b[:, t, :, :, None] * a[:, t, :, None])
            state = state.mixed(w[:, t], a[:, t], b[:, t], one, none, fed, size, tiny)
            ys.append(state.read(r[:, t], tiny)[0])
    return joined(node, "f32", (stacked(ys, 1), state.running()))


def spectral_norm(matrices: Doubles) -> Doubles:
    """Return the spectral norm of each matrix; infinite for values that are not finite."""
    finite = np.asarray(np.isfinite(matrices).all(axis=(-2, -1)))
    size: Doubles = np.linalg.norm(np.where(finite[..., None, None], matrices, 0.0), 2, axis=(-2, -1))
    return np.where(finite, size, np.inf)


#: Sequences, tokens of each, heads, head size.
_WKV6 = ((1, 1, 1, 1), (1, 7, 2, 5), (2, 3, 3, 16), (3, 4, 2, 33), (1, 20, 2, 64))
#: The CPU backend supports only heads of whole vector steps.
_WKV7 = ((1, 1, 1, 64), (1, 12, 2, 64), (3, 2, 2, 64), (1, 2, 1, 128))


def random_heads(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> tuple[Array, ...]:
    """Return, for tokens, numbers of both signs and decays between 0 and 1; and a state for each sequence."""
    sequences, tokens, heads, size = shape
    values = floats(rng, (sequences * tokens, heads, size), 1.0)
    decays = rng.uniform(0, 1, values.shape).astype(np.float32)
    return values, decays, floats(rng, (sequences, size * size * heads), 1.0)


def blank_heads(shape: tuple[int, int, int, int]) -> Operand:
    """Return a blank output of such a recurrence."""
    sequences, tokens, heads, size = shape
    return Operand.blank(F32, sequences * tokens + size * sequences, size * heads)


def _draw_wkv6(rng: np.random.Generator) -> Iterator[Node]:
    for shape in _WKV6:
        k, v, r = (random_heads(rng, shape)[0] for _ in range(3))
        _, w, state = random_heads(rng, shape)
        first = floats(rng, shape[2:], 1.0)
        sources = tuple(Operand.of(each) for each in (k, v, r, first, w, state))
        yield Node("RWKV_WKV6", sources, blank_heads(shape))


def _draw_wkv7(rng: np.random.Generator) -> Iterator[Node]:
    for shape in _WKV7:
        r, k, v, key = (random_heads(rng, shape)[0] for _ in range(4))
        _, w, state = random_heads(rng, shape)
        key = key / np.sqrt((key**2).sum(axis=-1, keepdims=True))
        b = -key * rng.uniform(0, 1, key.shape).astype(np.float32)
        w = np.exp(-0.6 * w)  # RWKV-7's decays are above e^-0.607
        sources = tuple(Operand.of(each) for each in (r, w, k, v, key, b, state))
        yield Node("RWKV_WKV7", sources, blank_heads(shape))


GATED_LINEAR_ATTN = Operation(
    op="GATED_LINEAR_ATTN", title="S ← S·g + k·v, y = scale·q·S", judge=_gated, draw=_draw_gated
)
GATED_DELTA_NET = Operation(
    op="GATED_DELTA_NET", title="S ← e^g·S; S ← S + β·(v - S·k)·k; y = S·q/√n", judge=_delta, draw=_draw_delta
)
RWKV_WKV6 = Operation(op="RWKV_WKV6", title="RWKV-6: y = r·(k·v·u + S), S ← S·w + k·v", judge=_wkv6, draw=_draw_wkv6)
RWKV_WKV7 = Operation(op="RWKV_WKV7", title="RWKV-7: S ← S·(w + a·b) + v·k, y = S·r", judge=_wkv7, draw=_draw_wkv7)
