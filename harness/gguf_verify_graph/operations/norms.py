"""Norms: RMS_NORM, NORM and L2_NORM of rows, and GROUP_NORM of groups of channels.

    RMS_NORM    y = x / √(Σx²/n + ε)                NORM        y = (x - μ) / √(Σ(x - μ)²/n + ε),  μ = Σx/n
    L2_NORM     y = x / max(√Σx², ε)                GROUP_NORM  NORM over ne0·ne1·(channels of a group)

ε is a float32 parameter. The CPU backend adds the float32 values and squares of all norms except NORM in double, and
those of NORM by vectors in float32 (ggml-cpu/ops.cpp and vec.cpp: ggml_vec_cvar_f32); other backends add in float32 by
a tree over threads (ggml-cuda/norm.cu, vulkan-shaders/rms_norm.comp; llama.cpp v0.5.0).

With s the relative error of the sum of squares (of the variance v), and its spread computed likewise:

    bound   |o|·(s·v/(2·(v + ε)) + the ulps of root and division + 4·u) + |1/√(v + ε)|·(error of x - μ)
            The root halves a relative error. x - μ has the error of μ, and half an ulp of its own.

NORM of other backends computes the variance as Σx²/n - μ² (ggml-cuda/norm.cu: norm_f32; vulkan-shaders/norm.comp),
which loses most digits where μ² is much larger. The error of v is then

    Δ       (error of Σx²)/n + the division's ulps of Σx²/n + 2·|μ|·(error of μ) + half an ulp each of μ² and of v

and that of 1/√(v + ε) at most the factor √((v + ε)/(v + ε - Δ)). Where Δ reaches v + ε there is no definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gguf_verify.llama.node import F32, Doubles, Node, Operand, demand, parameters
from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, added, arithmetic
from .judging import UNDERFLOW, Judged, Operation, within
from .random_inputs import SIZES, floats


def _rms(node: Node) -> Judged:
    node.floats(0)
    x, eps = node.source(0).values, node.number(0)
    return _divided(node, x, 0.0, 0.0, np.float64(eps), False, arithmetic(node.backend).doubles)


def _l2(node: Node) -> Judged:
    node.floats(0)
    x, eps = node.source(0).values, node.number(0)
    a = arithmetic(node.backend)
    with np.errstate(all="ignore"):
        squares, bound, spread = added(x**2, a.lanes)
        if a.doubles:
            bound, spread = 2 * UNIT_ROUNDOFF * squares, _rounded(x**2)
        size = np.sqrt(squares)
        exact = x / np.maximum(size, eps)
        share = np.where(size > eps, 0.5 / squares, 0.0)
        fixed = (a.square_root + a.division + 1) * ULP
        return within(
            node,
            "f32",
            exact,
            np.abs(exact) * (share * bound + fixed) + UNDERFLOW,
            np.abs(exact) * (share * spread + fixed / 8) + UNDERFLOW,
        )


def _rounded(terms: Doubles) -> Doubles:
    """Return the spread of a sum in double of terms that were rounded to float32."""
    spread: Doubles = UNIT_ROUNDOFF / np.sqrt(3) * np.sqrt((terms**2).sum(axis=-1, keepdims=True))
    return spread


def _norm(node: Node) -> Judged:
    return _in_two_passes(node, False) if node.backend == "CPU" else _in_one_pass(node)


def _in_one_pass(node: Node) -> Judged:
    node.floats(0)
    x, eps, a, u = node.source(0).values, np.float64(node.number(0)), arithmetic(node.backend), UNIT_ROUNDOFF
    n = x.shape[-1]
    with np.errstate(all="ignore"):
        mean, *of_mean = (each / n for each in added(x, a.lanes))
        second, *of_second = (each / n for each in added(x**2, a.lanes))
        rest = x - mean
        v = (rest**2).mean(axis=-1, keepdims=True)
        once = a.division * ULP * np.abs(mean)
        fixed = a.division * ULP * second + u * (mean**2 + v)
        off, wander = of_mean[0] + once, of_mean[1] + once / SCORE_LIMIT
        v_off = of_second[0] + fixed + 2 * np.abs(mean) * off + off**2
        v_wander = of_second[1] + fixed / SCORE_LIMIT + 2 * np.abs(mean) * wander + off**2 / SCORE_LIMIT
        most = np.minimum(v_off, SCORE_LIMIT * v_wander)
        demand(bool((most < v + eps)[np.isfinite(v)].all()), f"{node.op} of a variance without digits")
        scale = 1 / np.sqrt(v + eps)
        exact = rest * scale
        factor = np.sqrt((v + eps) / (v + eps - most)) - 1
        steps = (a.square_root + a.division + 2) * ULP + factor
        own = u * np.abs(rest)
        limit = np.abs(exact) * steps + scale * (1 + factor) * (np.minimum(off, SCORE_LIMIT * wander) + own)
        return within(node, "f32, Σx²/n - μ²", exact, limit + a.tiny)


def _in_two_passes(node: Node, doubles: bool) -> Judged:
    node.floats(0)
    x, eps = node.source(0).values, node.number(0)
    a = arithmetic(node.backend)
    with np.errstate(all="ignore"):
        total, bound, spread = added(x, a.lanes)
        if doubles:
            bound, spread = 0.0 * bound, 0.0 * spread
        n = x.shape[-1]
        mean, off, wander = total / n, bound / n + UNIT_ROUNDOFF * np.abs(total / n), spread / n
        wander = np.sqrt(wander**2 + (UNIT_ROUNDOFF * mean) ** 2 / 3)
        return _divided(node, x - mean, off, wander, np.float64(eps), True, doubles)


def _divided(
    node: Node, x: Doubles, off: Doubles | float, wander: Doubles | float, eps: np.float64, centred: bool, doubles: bool
) -> Judged:
    """Return x / √(Σx²/n + ε) for x with an error of at most `off` and a standard deviation of `wander`."""
    a = arithmetic(node.backend)
    n = x.shape[-1]
    with np.errstate(all="ignore"):
        squares, bound, spread = added(x**2, a.lanes)
        if doubles:  # products are rounded to float32 and added in double
            bound, spread = 2 * UNIT_ROUNDOFF * squares, _rounded(x**2)
        variance = squares / n
        scale = 1 / np.sqrt(variance + eps)
        exact = x * scale
        # an error of the mean changes Σ(x - μ)² only by its square, since Σ(x - μ) is 0
        own = UNIT_ROUNDOFF * np.abs(x) if centred else 0.0 * x
        squares_off = bound + 2 * (np.abs(x) * own).sum(axis=-1, keepdims=True) + n * np.asarray(off) ** 2
        share = 0.5 / (n * (variance + eps))
        fixed = (a.square_root + a.division + 2) * ULP
        limit = np.abs(exact) * (share * squares_off + fixed) + scale * (off + own) + UNDERFLOW
        score = np.abs(exact) * (share * (spread + n * np.asarray(wander) ** 2) + fixed / 8)
        score = score + scale * (np.asarray(wander) + own / 2) + UNDERFLOW
    return within(node, "f32", exact, limit, score)


def _group(node: Node) -> Judged:
    node.floats(0)
    groups, eps = node.integer(0), node.number(1)
    x = node.source(0).values
    per = -(-x.shape[1] // groups)
    parts = []
    for first in range(0, x.shape[1], per):
        part = x[:, first : first + per]
        rows = part.reshape(x.shape[0], 1, 1, -1)
        out = node.output.values[:, first : first + per].reshape(rows.shape)
        flat = Node(
            "NORM",
            (Operand.of(rows.astype(np.float32)),),
            Operand.of(out.astype(np.float32)),
            parameters(eps),
            backend=node.backend,
        )
        parts.append((first, _in_two_passes(flat, arithmetic(node.backend).doubles), part.shape))
    return _joined(parts)


def _joined(parts: list[tuple[int, Judged, tuple[int, ...]]]) -> Judged:
    """Merge the judgements of groups of channels into one."""
    first, worst, shape = max(parts, key=lambda p: (p[1].wrong > 0, p[1].utilisation))
    i0 = worst.place[3]
    at = np.unravel_index(i0, shape[1:])
    place = (worst.place[0], first + int(at[0]), int(at[1]), int(at[2]))
    return Judged(
        worst.definition,
        sum(p[1].elements for p in parts),
        sum(p[1].wrong for p in parts),
        worst.utilisation,
        place,
        worst.got,
        worst.expected,
        worst.tolerance,
    )


def _draw(op: str, eps: float, rng: np.random.Generator) -> Iterator[Node]:
    for shape in (*SIZES[1:], (1, 1, 3, 4096)):
        for scale, offset in ((1.0, 0.0), (1e-4, 0.0), (30.0, 100.0)):
            x = floats(rng, shape, 1.0) * np.float32(scale) + np.float32(offset)
            yield Node(op, (Operand.of(x),), Operand.blank(F32, *shape), parameters(eps))
    turned = Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)
    if op != "L2_NORM":
        yield Node(op, (turned,), Operand.blank(F32, *turned.shape), parameters(eps))


def _draw_groups(rng: np.random.Generator) -> Iterator[Node]:
    for groups, shape in ((1, (1, 4, 3, 5)), (2, (2, 4, 5, 7)), (3, (1, 7, 4, 16))):
        x = Operand.of(floats(rng, shape, 1.0))
        yield Node("GROUP_NORM", (x,), Operand.blank(F32, *shape), parameters(groups, 1e-6))


RMS_NORM = Operation(op="RMS_NORM", title="x / √(Σx²/n + ε)", judge=_rms, draw=partial(_draw, "RMS_NORM", 1e-5))
NORM = Operation(op="NORM", title="(x - μ) / √(variance + ε)", judge=_norm, draw=partial(_draw, "NORM", 1e-5))
L2_NORM = Operation(op="L2_NORM", title="x / max(√Σx², ε)", judge=_l2, draw=partial(_draw, "L2_NORM", 1e-6))
GROUP_NORM = Operation(op="GROUP_NORM", title="NORM over groups of channels", judge=_group, draw=_draw_groups)
