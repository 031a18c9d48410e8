"""LIGHTNING_INDEXER: the scores by which sparse attention of DeepSeek V3.2 and V4 selects keys, in one node.

    y[s, t, k] = Σ_h w[s, t, h]·max(0, Σ_i q[s, t, h, i]·k[s, k, i]) + mask[s mod S', t, k]

s is the stream (of S; the mask has S'), t the token, h the head; there is one head of keys. Heads are added in order in
float32, and the mask, in halves, last. A product that is NaN counts as 0 on the CPU and on CUDA. The computation of Σ_i
depends on the backend and K's type (llama.cpp v0.5.0):

    CPU      K is decoded to float32 by `to_float`; a float32 product of vectors (ggml-cpu/ops.cpp, ggml_vec_dot_f32)
    CUDA     for F32 and BF16 the same, by a warp. For other types, on GPUs with tensor cores (Turing or later), Q and K
             are rounded to half, each of eight warps multiplies a slice of 16 in tensor cores, and the slices are added
             in float32; older GPUs compute as for F32 (ggml-cuda/lightning-indexer.cu). Both definitions are tried. K
             in Q4_1 and Q5_1 is rounded once or twice to half, since the compiler may contract d·q + m, so it has no
             definition.
    Vulkan   float32, by a workgroup of 128; K is decoded as by `to_float`, since d·q is exact in float32
             (vulkan-shaders/lightning_indexer.comp)

With b, g the bound and the spread of z = Σ_i q·k (`arithmetic.summed`; for tensor cores those of `semantics`), t the
terms w·max(0, z) and S their partial sums:

    off      of max(0, z): b, and max(0, b + z) for z < 0. Its spread: g, and 0 where z < -SCORE_LIMIT·g
    bound    (Σ_h |w|·off + u·Σ_h (|t| + |S|)) / (1 - (H + 1)·u) + u·|y|
             without |S| for the first head, where S = t, and without u·|y| where the mask is 0
             (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §3.3: the running error)
    spread²  Σ_h (w·g)² + u²/3·(Σ_h (t² + S²) + y²), likewise
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS, tensor_type
from gguf_verify.llama.node import BF16, F16, F32, Doubles, Node, NoDefinition, Operand, demand
from gguf_verify.semantics.accumulation import SCORE_LIMIT, in_tensor_cores
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import Arithmetic, arithmetic, near_overflow, summed
from .functions import relu
from .judging import Judged, Operation, within
from .random_inputs import floats, random_values, random_weights

#: Number of products of a head and a key held at a time; number of values of keys decoded at a time.
_AT_ONCE, _DECODED = 1 << 20, 1 << 22
#: Number of values in a slice of tensor cores.
_SLICE = 16


@dataclass(frozen=True)
class _Definition:
    """A way of computing Σ_i q·k.

    Args:
        halves: whether Q and K are rounded to half and multiplied by tensor cores.
    """

    name: str
    halves: bool = False


def _judge(node: Node) -> Judged:
    q, k, w, mask = (node.source(i) for i in range(4))
    n, heads, tokens, streams = q.ne
    keys, masks = k.ne[2], mask.ne[3]
    fits = k.ne == (n, 1, keys, streams) and w.ne == (heads, tokens, 1, streams)
    fits = fits and mask.ne == (keys, tokens, 1, masks) and masks > 0 and streams % masks == 0
    fits = fits and node.output.ne == (keys, tokens, 1, streams) and n > 0 and heads > 0
    demand(fits, f"{node.op} of {q.ne}, {k.ne}, {w.ne} and {mask.ne} to {node.output.ne}")
    types = (q.type_id, w.type_id, mask.type_id, node.output.type_id)
    demand(types == (F32, F32, F16, F32), f"{node.op} of {q.type}, {w.type} and {mask.type} to {node.output.type}")
    known = tensor_type(k.type_id)
    blocks = known is not None and known.format is not None and known.format.weights
    demand(k.type_id in (F32, F16, BF16) or blocks, f"{node.op} with keys of {k.type}")
    judged: list[Judged] = []
    for definition in _definitions(node.backend, k):
        judged.append(_judge_by(node, definition))
        if judged[-1].passed:
            return judged[-1]
    return min(judged, key=lambda each: each.wrong)


def _definitions(backend: str, k: Operand) -> tuple[_Definition, ...]:
    """Return the definitions, the sharpest first."""
    floats_ = _Definition(f"{k.type} keys, f32")
    if backend != "CUDA" or k.type_id in (F32, BF16):
        return (floats_,)
    demand(k.type in ("F16", "Q4_0", "Q5_0", "Q8_0"), f"LIGHTNING_INDEXER with keys of {k.type} on CUDA")
    return floats_, _Definition(f"{k.type} keys, q and k in half", halves=True)


def _judge_by(node: Node, definition: _Definition) -> Judged:
    q, k, w, mask = (node.source(i) for i in range(4))
    n, heads, tokens, streams = q.ne
    exact, bound, spread = (np.zeros(node.output.shape) for _ in range(3))
    per = max(1, min(_DECODED // n, _AT_ONCE // heads))
    step = max(1, _AT_ONCE // (heads * max(1, min(per, k.ne[2]))))
    with np.errstate(all="ignore"):
        for s in range(streams):
            for first in range(0, k.ne[2], per):
                of = slice(first, first + per)
                keys = Operand.of(np.array(k.data[s, of, 0]), k.type_id).values[0, 0]
                for t in range(0, tokens, step):
                    rows = slice(t, t + step)
                    given = mask.data[s % mask.ne[3], 0, rows, of].astype(np.float64)
                    queries, weights = (a.astype(np.float64) for a in (q.data[s, rows], w.data[s, 0, rows]))
                    part = _scores(node, definition, queries, keys, weights, given)
                    exact[s, 0, rows, of], bound[s, 0, rows, of], spread[s, 0, rows, of] = part
        return within(node, definition.name, exact, bound, spread)


def _scores(
    node: Node, definition: _Definition, q: Doubles, k: Doubles, w: Doubles, mask: Doubles
) -> tuple[Doubles, Doubles, Doubles]:
    """Return scores, bounds and spreads [tokens, keys] for queries [tokens, heads, n], weights [tokens, heads]."""
    a, u = arithmetic(node.backend), UNIT_ROUNDOFF
    z, b, g = _products(definition, a, q, k)
    if node.backend == "Vulkan" and np.isnan(z).any():
        raise NoDefinition(f"{node.op} of products that are NaN on Vulkan")
    heads, weights = q.shape[1], w[..., None]
    off = np.where(np.isfinite(z), np.clip(b + np.minimum(z, 0), 0, None), 0.0)
    wander = np.where(np.isfinite(z) & (z > -SCORE_LIMIT * g), g, 0.0)
    terms = weights * relu(z)
    sums = np.cumsum(terms, axis=1)
    demand(not near_overflow(terms), f"{node.op} beyond float32")
    demand(not near_overflow(sums), f"{node.op} beyond float32")
    y = sums[:, -1] + mask
    added = u * np.abs(np.where(mask == 0, 0.0, y))
    rounded = np.abs(terms).sum(axis=1) + np.abs(sums[:, 1:]).sum(axis=1)
    bound = ((np.abs(weights) * off).sum(axis=1) + u * rounded) / (1 - (heads + 1) * u)
    variance = ((weights * wander) ** 2).sum(axis=1)
    variance += u**2 / 3 * ((terms**2).sum(axis=1) + (sums[:, 1:] ** 2).sum(axis=1)) + added**2 / 3
    tiny = (2 * heads + 1) * a.tiny
    return y, bound * (1 + u) + added + tiny, np.sqrt(variance) + tiny


def _products(definition: _Definition, a: Arithmetic, q: Doubles, k: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return Σ_i q·k [tokens, heads, keys], bound and spread. Raises NoDefinition for sums that may overflow."""
    if definition.halves:
        q, k = (x.astype(np.float16).astype(np.float64) for x in (q, k))
    rows, n = q.reshape(-1, q.shape[-1]), q.shape[-1]
    z, size = rows @ k.T, np.abs(rows) @ np.abs(k).T
    demand(not near_overflow(size), "LIGHTNING_INDEXER beyond float32")
    if definition.halves:
        # `growth` includes the eight additions of slices, beyond the additions of terms
        bound = in_tensor_cores().growth(min(n, _SLICE)) * size
        spread = bound
    else:
        bound, spread = summed(z, size, rows**2 @ (k**2).T, n, a.lanes)
    tiny = 2 * n * a.tiny
    shape = (*q.shape[:2], len(k))
    return z.reshape(shape), (bound + tiny).reshape(shape), (spread + tiny).reshape(shape)


def _draw(rng: np.random.Generator) -> Iterator[Node]:
    def node(q: Operand, k: Operand, masks: int, scale: float = 1.0, cut: float = 0.3) -> Node:
        _, heads, tokens, streams = q.ne
        w = Operand.of(floats(rng, (streams, 1, tokens, heads), 0.5) * np.float32(scale))
        mask = np.where(rng.random((masks, 1, tokens, k.ne[2])) < cut, -np.inf, 0.0)
        mask += np.where(rng.random(mask.shape) < 0.2, rng.standard_normal(mask.shape), 0.0)
        out = Operand.blank(F32, streams, 1, tokens, k.ne[2])
        return Node("LIGHTNING_INDEXER", (q, k, w, Operand.of(mask.astype(np.float16))), out)

    for name, fmt in (ELEMENTS | FORMATS).items():
        n = 256 if name in FORMATS and FORMATS[name].block_size > 128 else 128
        yield node(random_values(rng, F32, (2, 3, 8, n)), random_weights(rng, fmt, 2, 17, 1, n), 1)
    for n, heads, tokens, keys, streams, masks in (
        (1, 1, 1, 1, 1, 1),
        (7, 3, 5, 9, 1, 1),
        (33, 5, 2, 20, 4, 2),
        (100, 64, 3, 65, 1, 1),
        (128, 64, 4, 130, 2, 2),
        (128, 32, 1, 600, 1, 1),
        (1100, 2, 3, 12, 3, 1),
    ):
        for name in ("F32", "F16"):
            q, k = (
                random_values(rng, F32, (streams, tokens, heads, n)),
                random_weights(rng, ELEMENTS[name], streams, keys, 1, n),
            )
            yield node(q, k, masks, heads**-0.5 * n**-0.5)
    turned = random_values(rng, F32, (2, 6, 5, 64)).permuted(0, 2, 1, 3)
    yield node(turned, random_weights(rng, ELEMENTS["F16"], 2, 1, 40, 64).permuted(0, 2, 1, 3), 2, cut=0.0)
    yield node(turned, random_weights(rng, FORMATS["Q8_0"], 40, 1, 2, 64).permuted(0, 3, 1, 2), 1)


LIGHTNING_INDEXER = Operation(
    op="LIGHTNING_INDEXER",
    title="Σ w·max(0, q·k) over heads, plus the mask",
    judge=_judge,
    draw=_draw,
    axes=("stream", "i2", "token", "key"),
)
