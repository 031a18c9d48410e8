"""The recurrences of RWKV: RWKV_WKV6 and RWKV_WKV7, with a state s of head size × head size per head.

    WKV6    y[j] = Σ_i r[i]·(k[i]·v[j]·u[i] + s[i, j]);  s[i, j] ← s[i, j]·w[i] + k[i]·v[j]
    WKV7    c[i] = Σ_j a[j]·s[i, j];  s[i, j] ← s[i, j]·w[j] + v[i]·k[j] + c[i]·b[j];  y[i] = Σ_j r[j]·s[i, j]

The tokens of the sequences are consecutive, equally many each. The output has y[token, head and element], followed by
the new state of each sequence. Everything is float32, with products and sums fused or not (ggml-cpu/ops.cpp,
ggml-cuda/wkv.cu, vulkan-shaders/wkv6.comp and wkv7.comp; llama.cpp v0.5.0). The CPU's WKV7 processes whole vectors of a
head: heads of 64.

The bounds are running errors (`_recurrence`; for WKV7, whose rows are mixed, `_mixing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gguf_verify.llama.node import F32, Array, Doubles, Node, Operand, demand

from ._mixing import Rows
from ._recurrence import Running, joined, stacked
from .arithmetic import arithmetic
from .drawing import floats
from .judging import Judged
from .operation import Operation


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


def drawn_heads(rng: np.random.Generator, shape: tuple[int, int, int, int]) -> tuple[Array, ...]:
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
        k, v, r = (drawn_heads(rng, shape)[0] for _ in range(3))
        _, w, state = drawn_heads(rng, shape)
        first = floats(rng, shape[2:], 1.0)
        sources = tuple(Operand.of(each) for each in (k, v, r, first, w, state))
        yield Node("RWKV_WKV6", sources, blank_heads(shape))


def _draw_wkv7(rng: np.random.Generator) -> Iterator[Node]:
    for shape in _WKV7:
        r, k, v, key = (drawn_heads(rng, shape)[0] for _ in range(4))
        _, w, state = drawn_heads(rng, shape)
        key = key / np.sqrt((key**2).sum(axis=-1, keepdims=True))
        b = -key * rng.uniform(0, 1, key.shape).astype(np.float32)
        w = np.exp(-0.6 * w)  # RWKV-7's decays are above e^-0.607
        sources = tuple(Operand.of(each) for each in (r, w, k, v, key, b, state))
        yield Node("RWKV_WKV7", sources, blank_heads(shape))


RWKV_WKV6 = Operation(op="RWKV_WKV6", title="RWKV-6: y = r·(k·v·u + S), S ← S·w + k·v", judge=_wkv6, draw=_draw_wkv6)
RWKV_WKV7 = Operation(op="RWKV_WKV7", title="RWKV-7: S ← S·(w + a·b) + v·k, y = S·r", judge=_wkv7, draw=_draw_wkv7)
