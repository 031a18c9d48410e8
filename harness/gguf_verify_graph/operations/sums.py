"""Sums: SUM, SUM_ROWS, MEAN, CUMSUM, REPEAT_BACK, COUNT_EQUAL.

    SUM            y = Σx, over all                           SUM_ROWS    y = Σx, over a row
    MEAN           y = Σx/n, over a row                       CUMSUM      y[i] = Σ_{j≤i} x[j]
    REPEAT_BACK    y[i] = Σx over all places to which REPEAT would copy y[i]
    COUNT_EQUAL    the number of equal int32 values, an int64

The CPU backend accumulates SUM of float32, SUM_ROWS and MEAN in double, and adds the others, and SUM of halves, one by
one in float32 (ggml-cpu/ops.cpp, ggml_compute_forward_sum_* and others; vec.h: ggml_vec_sum_f32, _sum_f16_ggf,
_cumsum_f32, _acc_f32). Other backends add in float32 by threads and trees (ggml-cuda/reduce_rows.cuh, cumsum.cu;
vulkan-shaders/sum_rows.comp; llama.cpp v0.5.0).

    in double      bound n·2^-52·Σ|x|, which covers this sum and the exact sum computed here, plus u·|o|
    one by one     bound u·Σ|s|, spread u/√3·√Σs², over the partial sums s except the first (the running error bound of
                   Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., §4.2), times 1 + n·u for their own
                   errors
    any order      `arithmetic.added`; for CUMSUM and REPEAT_BACK only the bound, γ_n·Σ|x|; for CUMSUM on CUDA see
                   `_by_fours`
    MEAN           one more division, or a product with a rounded 1/n
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gguf_verify.llama.node import BF16, F16, F32, I32, I64, Doubles, Node, NoDefinition, Operand, demand
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import ULP, added, arithmetic
from .judging import Judged, Operation, equal, within
from .movements import repeats
from .random_inputs import SIZES, floats, typed

_DOUBLE = 2.0**-52


def in_double(terms: Doubles) -> tuple[Doubles, Doubles]:
    """Return sums over the last axis in double: exact, and the bound of the error before rounding to float32."""
    with np.errstate(all="ignore"):
        total = terms.sum(axis=-1, keepdims=True)
        return total, terms.shape[-1] * _DOUBLE * np.abs(terms).sum(axis=-1, keepdims=True)


def one_by_one(terms: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return partial sums over the last axis in float32, in order: exact, bound and spread of each."""
    with np.errstate(all="ignore"):
        partial = np.cumsum(terms, axis=-1)
        rounded = np.abs(partial)
        rounded[..., :1] = 0
        more = 1 + terms.shape[-1] * UNIT_ROUNDOFF
        bound = UNIT_ROUNDOFF * more * np.cumsum(rounded, axis=-1)
        return partial, bound, UNIT_ROUNDOFF * more / np.sqrt(3) * np.sqrt(np.cumsum(rounded**2, axis=-1))


def _rows(node: Node) -> Judged:
    """Judge SUM_ROWS and MEAN, or SUM, which treats all values as one row."""
    whole = node.op == "SUM"
    x, out, a = node.source(0), node.output, arithmetic(node.backend)
    if x.type_id not in (F32, F16, BF16) or x.type_id != out.type_id or (not whole and x.type_id != F32):
        raise NoDefinition(f"{node.op} of {x.type} into {out.type}")
    if out.ne != (1, 1, 1, 1) if whole else out.ne != (1, *x.ne[1:]):
        raise NoDefinition(f"{node.op} of {x.shape} into {out.shape}")
    demand(all(x.ne), f"{node.op} of nothing")
    values = x.values
    if whole and a.doubles and x.type_id != F32:
        return _halves(node, values)
    terms = values.reshape(1, 1, 1, -1) if whole else values
    count = terms.shape[-1] if node.op == "MEAN" else 1
    with np.errstate(all="ignore"):
        fixed = (a.division * ULP if count > 1 else 0.0) + UNIT_ROUNDOFF
        if a.doubles:
            total, bound = in_double(terms)
            return within(node, "sums in double", total / count, (fixed * np.abs(total) + bound) / count + a.tiny)
        total, bound, spread = added(terms, a.lanes)
        exact = total / count
        return within(
            node,
            "f32 sums",
            exact,
            bound / count + fixed * np.abs(exact) + a.tiny,
            spread / count + fixed / 2 * np.abs(exact) + a.tiny,
        )


def _halves(node: Node, values: Doubles) -> Judged:
    """Judge a sum of each row and then of these sums, one by one in float32."""
    sums, bounds, spreads = (part[..., -1] for part in one_by_one(values))
    total, bound, spread = (part[-1] for part in one_by_one(sums.reshape(-1)))
    with np.errstate(all="ignore"):
        bound, spread = bound + bounds.sum(), np.sqrt(spread**2 + (spreads**2).sum())
    return within(node, "f32 sums", np.full((1, 1, 1, 1), total), bound, spread)


def _by_fours(terms: Doubles) -> Doubles:
    """Return the error of CUDA's running sums.

    A thread has four terms. Their sum is subtracted from the running sum up to its last term, and then they are added
    one by one. So each sum has the magnitudes up to the fourth term, and eight more roundings.
    """
    n = terms.shape[-1]
    last = np.minimum(np.arange(n) | 3, n - 1)
    steps = (last + 9) * UNIT_ROUNDOFF
    bound: Doubles = steps / (1 - steps) * np.cumsum(np.abs(terms), axis=-1)[..., last]
    return bound


def _cumsum(node: Node) -> Judged:
    node.floats(0)
    x, a = node.source(0), arithmetic(node.backend)
    demand(x.ne == node.output.ne, f"CUMSUM of {x.shape} into {node.output.shape}")
    return _chain(node, x.values, a.doubles, every=True)


def _chain(node: Node, terms: Doubles, in_order: bool, every: bool) -> Judged:
    """Judge sums over the last axis, in order or in any order; all partial sums or only the last one."""
    partial, bound, spread = one_by_one(terms)
    if not in_order:
        with np.errstate(all="ignore"):
            steps = np.arange(1, terms.shape[-1] + 1) * UNIT_ROUNDOFF
            bound = steps / (1 - steps) * np.cumsum(np.abs(terms), axis=-1)
            if node.backend == "CUDA" and every:
                bound = _by_fours(terms)
    tiny = 0.0 if in_order else arithmetic(node.backend).tiny
    if not every:
        partial, bound, spread = partial[..., -1], bound[..., -1], spread[..., -1]
    return within(node, "f32 sums", partial, bound + tiny, spread if in_order else None)


def _repeat_back(node: Node) -> Judged:
    node.floats(0)
    x, out, a = node.source(0), node.output, arithmetic(node.backend)
    times = repeats(node, out, x)
    split = [n for pair in zip(times, out.shape, strict=True) for n in pair]
    # the places of y[i]: the repetition of the fastest dimension is last, as the CPU backend adds them
    terms = x.values.reshape(split).transpose(1, 3, 5, 7, 0, 2, 4, 6).reshape(*out.shape, -1)
    demand(terms.size > 0, "REPEAT_BACK of nothing")
    return _chain(node, terms, a.doubles, every=False)


def _count(node: Node) -> Judged:
    x, z, out = node.source(0), node.source(1), node.output
    if (x.type_id, z.type_id, out.type_id) != (I32, I32, I64) or x.ne != z.ne or out.ne != (1, 1, 1, 1):
        raise NoDefinition(f"COUNT_EQUAL of {x.type} and {z.type} into {out.type}")
    return equal(node, "count", np.full((1, 1, 1, 1), (x.data == z.data).sum(), np.int64))


def _drawn(rng: np.random.Generator) -> Iterator[Operand]:
    for shape in (*SIZES, (1, 1, 3, 4096)):
        for scale, offset in ((1.0, 0.0), (1e-4, 0.0), (30.0, 100.0)):
            yield Operand.of(floats(rng, shape, 1.0) * np.float32(scale) + np.float32(offset))
    yield Operand.of(floats(rng, (2, 5, 3, 32))).permuted(0, 2, 1, 3)


def _draw(op: str, rng: np.random.Generator) -> Iterator[Node]:
    for x in _drawn(rng):
        shape = x.shape if op == "CUMSUM" else (*x.shape[:3], 1)
        yield Node(op, (x,), Operand.blank(F32, *shape))


def _draw_sum(rng: np.random.Generator) -> Iterator[Node]:
    for x in _drawn(rng):
        yield Node("SUM", (x,), Operand.blank(F32, 1))
    for shape in SIZES:
        values = floats(rng, shape, 1.0)
        for kind in (F16, BF16):
            yield Node("SUM", (typed(values, kind),), Operand.blank(kind, 1))


def _draw_repeat_back(rng: np.random.Generator) -> Iterator[Node]:
    for part, whole in (
        ((1, 1, 1, 7), (1, 2, 3, 7)),
        ((2, 1, 3, 5), (4, 3, 6, 10)),
        ((1, 1, 1, 1), (1, 1, 4, 33)),
        ((1, 1, 2, 64), (1, 1, 2, 64)),
        ((1, 2, 1, 33), (3, 2, 20, 33)),
    ):
        yield Node("REPEAT_BACK", (Operand.of(floats(rng, whole)),), Operand.blank(F32, *part))


def _draw_count(rng: np.random.Generator) -> Iterator[Node]:
    for shape in ((1, 1), (5, 33), (3, 1100)):  # with more dimensions the CPU backend counts wrong rows
        x, z = (Operand.of(rng.integers(0, 3, shape).astype(np.int32)) for _ in range(2))
        yield Node("COUNT_EQUAL", (x, z), Operand.blank(I64, 1))
        yield Node("COUNT_EQUAL", (x, x), Operand.blank(I64, 1))


SUM = Operation(op="SUM", title="Σx", judge=_rows, draw=_draw_sum)
SUM_ROWS = Operation(op="SUM_ROWS", title="Σx of rows", judge=_rows, draw=partial(_draw, "SUM_ROWS"))
MEAN = Operation(op="MEAN", title="Σx/n of rows", judge=_rows, draw=partial(_draw, "MEAN"))
CUMSUM = Operation(op="CUMSUM", title="running sums of rows", judge=_cumsum, draw=partial(_draw, "CUMSUM"))
REPEAT_BACK = Operation(op="REPEAT_BACK", title="sums of repetitions", judge=_repeat_back, draw=_draw_repeat_back)
COUNT_EQUAL = Operation(op="COUNT_EQUAL", title="how many are equal", judge=_count, draw=_draw_count)
