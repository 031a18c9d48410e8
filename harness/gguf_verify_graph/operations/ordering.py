"""Orders of rows: ARGSORT, TOP_K, ARGMAX, in float32, with int32 indices.

    ARGSORT    a permutation of 0..n-1 that sorts a row, in ascending (op_params[0] = 0) or descending order (1)
    TOP_K      the indices of the k largest values of a row, in any order: llama.cpp exchanges the first two on purpose
    ARGMAX     an index of the largest value of a row

Equal values may come in any order: std::sort is not stable, and devices use sorting networks; ARGMAX is the last one on
the CPU (vec.h, ggml_vec_argmax_f32) and another one elsewhere. So indices are judged by the values that they select,
and must be distinct. A row with NaN has no order (ggml-cpu/ops.cpp, ggml_compute_forward_argsort_f32, _top_k_f32,
_argmax_f32; ggml-cuda/argsort.cu, top-k.cu, argmax.cu; llama.cpp v0.5.0).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import F32, I32, Array, Node, NoDefinition, Operand, demand, parameters

from .judging import Judged, Operation, checked
from .random_inputs import SIZES, Shape, floats

Indices = npt.NDArray[np.intp]
_UP, _DOWN = 0, 1


def _keys(node: Node) -> Array:
    """Return the values to be ordered. Raises NoDefinition."""
    x, out = node.source(0), node.output
    demand(x.type_id == F32 and out.type_id == I32, f"{node.op} of {x.type} into {out.type}")
    if np.isnan(x.data).any():
        raise NoDefinition(f"{node.op} of NaN")
    return x.data


def _named(keys: Array, indices: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return the values that indices select, and which indices are out of range or repeat an earlier one."""
    n = keys.shape[-1]
    outside = (indices < 0) | (indices >= n)
    order = np.argsort(indices, axis=-1, kind="stable")
    ordered = np.take_along_axis(indices, order, axis=-1)
    again = np.zeros(indices.shape, bool)
    np.put_along_axis(again, order[..., 1:], ordered[..., 1:] == ordered[..., :-1], axis=-1)
    return np.take_along_axis(keys, np.where(outside, 0, indices).astype(np.intp), axis=-1), outside | again


def _argsort(node: Node) -> Judged:
    keys, order, got = _keys(node), node.integer(0), node.output.data
    demand(order in (_UP, _DOWN) and got.shape == keys.shape, f"ARGSORT {order} of {keys.shape} into {got.shape}")
    right = np.argsort(-keys if order == _DOWN else keys, axis=-1, kind="stable")
    if not keys.size:
        return checked(node, "order", np.zeros(got.shape, bool), right)
    named, wrong = _named(keys, got)
    return checked(node, "order", wrong | (named != np.take_along_axis(keys, right, axis=-1)), right)


def _top_k(node: Node) -> Judged:
    keys, got = _keys(node), node.output.data
    k = got.shape[-1]
    demand(got.shape[:-1] == keys.shape[:-1] and 0 < k <= keys.shape[-1], f"TOP_K of {keys.shape} into {got.shape}")
    right = np.argsort(-keys, axis=-1, kind="stable")[..., :k]
    greatest = np.take_along_axis(keys, right, axis=-1)
    least = greatest[..., -1:]
    named, wrong = _named(keys, got)
    # values equal to the smallest one fill the places that the larger ones leave
    ties = (named == least) & ~wrong
    room = (greatest == least).sum(axis=-1, keepdims=True)
    wrong |= (named < least) | (ties & (np.cumsum(ties, axis=-1) > room))
    return checked(node, "set", wrong, right)


def _argmax(node: Node) -> Judged:
    keys, got = _keys(node), node.output.data
    rows = keys.shape[2]
    if keys.shape[:2] != (1, 1) or got.shape != (1, 1, 1, rows) or not keys.size:
        raise NoDefinition(f"ARGMAX of {keys.shape} into {got.shape}")
    each = got.reshape(1, 1, rows, 1)
    named, wrong = _named(keys, each)
    wrong |= named != keys.max(axis=-1, keepdims=True)
    return checked(node, "greatest", wrong.reshape(got.shape), keys.argmax(axis=-1).reshape(got.shape))


def _drawn(rng: np.random.Generator, shape: Shape) -> Iterator[npt.NDArray[np.float32]]:
    """Yield distinct values; values many of which are equal, also zeros of both signs; and rows with masked ends."""
    yield floats(rng, shape)
    few = rng.integers(-3, 4, shape).astype(np.float32)
    yield np.where((few == 0) & (rng.random(shape) < 0.5), np.float32(-0.0), few)
    masked = floats(rng, shape)
    masked[..., shape[-1] // 2 :] = -np.inf
    yield masked


def _draw_argsort(rng: np.random.Generator) -> Iterator[Node]:
    for shape in SIZES:
        for x in _drawn(rng, shape):
            for order in (_UP, _DOWN):
                yield Node("ARGSORT", (Operand.of(x),), Operand.blank(I32, *shape), parameters(order))


def _draw_top_k(rng: np.random.Generator) -> Iterator[Node]:
    for shape in SIZES:
        for x in _drawn(rng, shape):
            for k in {1, min(4, shape[-1]), shape[-1] // 2 + 1, shape[-1]}:
                yield Node("TOP_K", (Operand.of(x),), Operand.blank(I32, *shape[:3], k))
    for k in (1, 3):
        x = -np.abs(floats(rng, (1, 1, 5, 33), 1.0))
        yield Node("TOP_K", (Operand.of(x),), Operand.blank(I32, 1, 1, 5, k))


def _draw_argmax(rng: np.random.Generator) -> Iterator[Node]:
    for rows, n in ((1, 1), (3, 7), (5, 33), (4, 256), (2, 1100), (70, 3)):
        for x in _drawn(rng, (1, 1, rows, n)):
            yield Node("ARGMAX", (Operand.of(x),), Operand.blank(I32, rows))


ARGSORT = Operation(op="ARGSORT", title="the indices of sorted rows", judge=_argsort, draw=_draw_argsort)
TOP_K = Operation(op="TOP_K", title="the indices of the k greatest", judge=_top_k, draw=_draw_top_k)
ARGMAX = Operation(op="ARGMAX", title="the index of the greatest", judge=_argmax, draw=_draw_argmax)
