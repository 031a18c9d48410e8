"""Placement of values: DIAG_MASK_INF, DIAG_MASK_ZERO, DIAG, TRI, SET, ACC, PAD, PAD_REFLECT_1D, ROLL.

    DIAG_MASK_*       y = x where i0 ≤ n_past + i1, else -∞ or 0; on CUDA x - FLT_MAX for -∞ (ggml-cuda/diagmask.cu)
    DIAG              y = x[i0] where i0 = i1, else 0
    TRI               y = x where i0 is ≥, >, ≤ or < i1 (op_params[0] = 0, 1, 2, 3), else 0
    SET, ACC          y = src[0], except that src[1] replaces a part of its shape, or is added to it; offset and steps
                      of the part are parameters, in bytes
    PAD               y = x with zeros before and after each dimension, or continued with its other end
    PAD_REFLECT_1D    y = rows with their ends mirrored, without repeating the last value
    ROLL              y[i] = x[i - shift], wrapping around at each end

All but ACC move bits; ACC adds once in float32: u·|o| (ggml-cpu/ops.cpp, ggml_compute_forward_diag_mask_f32, _diag_f32,
_tri_f32, _set_f32, _acc_f32, _pad_f32, _pad_reflect_1d, _roll_f32; llama.cpp v0.5.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import F32, I32, Array, Node, NoDefinition, Operand, demand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import arithmetic
from .judging import Judged, Operation, equal, within
from .random_inputs import SIZES, Shape, floats

_TRIANGLES: tuple[Callable[[Array, Array], npt.NDArray[np.bool_]], ...] = (
    np.greater_equal, np.greater, np.less_equal, np.less,
)  # fmt: skip


def _same(node: Node, *types: int) -> Operand:
    """Return the source, which must have the output's type. Raises NoDefinition."""
    x = node.source(0)
    if x.type_id != node.output.type_id or x.type_id not in (types or (F32,)):
        raise NoDefinition(f"{node.op} of {x.type} into {node.output.type}")
    return x


def _same_shape(node: Node, *types: int) -> Operand:
    x = _same(node, *types)
    demand(x.ne == node.output.ne, f"{node.op} of {x.shape} into {node.output.shape}")
    return x


def _masked(node: Node) -> Judged:
    fill = -np.inf if node.op == "DIAG_MASK_INF" else 0.0
    x, past = _same_shape(node), node.integer(0)
    demand(past >= 0, f"a past of {past}")
    i1, i0 = np.ogrid[: x.ne[1], : x.ne[0]]
    lowered = node.backend == "CUDA" and fill != 0
    other = x.data - np.finfo(np.float32).max if lowered else np.full(x.shape, fill, np.float32)
    return equal(node, "bytes", np.where(i0 <= past + i1, x.data, other))


def _diag(node: Node) -> Judged:
    x, n = _same(node), node.source(0).ne[0]
    demand(node.output.ne == (n, n, *x.ne[2:]) and x.ne[1] == 1, f"DIAG of {x.shape} into {node.output.shape}")
    i1, i0 = np.ogrid[:n, :n]
    return equal(node, "bytes", np.where(i0 == i1, x.data, np.float32(0)))


def _tri(node: Node) -> Judged:
    x, which = _same_shape(node), node.integer(0)
    demand(0 <= which < len(_TRIANGLES), f"a triangle {which}")
    i1, i0 = np.ogrid[: x.ne[1], : x.ne[0]]
    return equal(node, "bytes", np.where(_TRIANGLES[which](i0, i1), x.data, np.float32(0)))


def _part(node: Node) -> npt.NDArray[np.int64]:
    """Return the places of src[1] in the flat src[0]. Raises NoDefinition if they overlap or lie outside."""
    x, z = node.source(0), node.source(1)
    size = node.output.data.dtype.itemsize
    *steps, offset = (node.integer(i) for i in range(4))
    reach = z.ne[0] * size
    for n, step in zip(z.ne[1:], steps, strict=True):
        if n > 1 and (step < reach or step % size):
            raise NoDefinition(f"{node.op} with steps of {steps} bytes for {z.shape}")
        reach = step * (n - 1) + reach
    if offset < 0 or offset % size or offset + reach > int(np.prod(x.ne)) * size or not all(z.ne):
        raise NoDefinition(f"{node.op} of {z.shape} at {offset} in {x.shape}")
    i3, i2, i1, i0 = np.ogrid[: z.ne[3], : z.ne[2], : z.ne[1], : z.ne[0]]
    at: npt.NDArray[np.int64] = (offset + i1 * steps[0] + i2 * steps[1] + i3 * steps[2]) // size + i0
    return at


def _set(node: Node) -> Judged:
    x, z = _same_shape(node, F32, I32), node.source(1)
    demand(z.type_id == x.type_id, f"SET of {z.type} in {x.type}")
    flat = np.array(x.data).reshape(-1)
    flat[_part(node)] = z.data
    return equal(node, "bytes", flat.reshape(x.shape))


def _acc(node: Node) -> Judged:
    x = _same_shape(node)
    node.floats(0, 1)
    at, tiny = _part(node), arithmetic(node.backend).tiny
    flat = np.array(x.values).reshape(-1)
    bound = np.zeros_like(flat)
    with np.errstate(all="ignore"):
        flat[at] += node.source(1).values
        bound[at] = UNIT_ROUNDOFF * np.abs(flat[at]) + tiny
    return within(node, "f32", flat.reshape(x.shape), bound.reshape(x.shape))


def _pad(node: Node) -> Judged:
    x, circular = _same(node), bool(node.integer(8))
    sides = [(node.integer(2 * i), node.integer(2 * i + 1)) for i in range(4)]
    whole = tuple(n + left + right for n, (left, right) in zip(x.ne, sides, strict=True))
    if any(left < 0 or right < 0 for left, right in sides) or node.output.ne != whole:
        raise NoDefinition(f"PAD of {x.shape} by {sides} into {node.output.shape}")
    if not circular:
        return equal(node, "bytes", np.pad(x.data, sides[::-1]))
    if any(left > n for n, (left, _) in zip(x.ne, sides, strict=True)):
        raise NoDefinition(f"PAD of {x.shape} by more than itself: {sides}")
    return equal(node, "bytes", np.pad(x.data, sides[::-1], mode="wrap"))


def _reflected(node: Node) -> Judged:
    x, left, right = _same(node), node.integer(0), node.integer(1)
    if not (0 <= left < x.ne[0] and 0 <= right < x.ne[0]) or node.output.ne != (x.ne[0] + left + right, *x.ne[1:]):
        raise NoDefinition(f"PAD_REFLECT_1D of {x.shape} by {left} and {right} into {node.output.shape}")
    return equal(node, "bytes", np.pad(x.data, ((0, 0), (0, 0), (0, 0), (left, right)), mode="reflect"))


def _roll(node: Node) -> Judged:
    x = _same_shape(node)
    shifts = [node.integer(i) for i in range(4)]
    demand(all(abs(s) < n for s, n in zip(shifts, x.ne, strict=True)), f"ROLL of {x.shape} by {shifts}")
    return equal(node, "bytes", np.roll(x.data, shifts[::-1], axis=(0, 1, 2, 3)))


def _draw_masked(op: str, rng: np.random.Generator) -> Iterator[Node]:
    shapes: tuple[Shape, ...] = (*SIZES[:3], (1, 4, 7, 7), (2, 3, 33, 40))
    for shape in shapes:
        for past in (0, 3, max(0, shape[3] - shape[2])):
            x = Operand.of(floats(rng, shape))
            yield Node(op, (x,), Operand.blank(F32, *shape), parameters(past))
            yield Node(op, (x,), x, parameters(past), view_of=0)


def _draw_diag(rng: np.random.Generator) -> Iterator[Node]:
    for ne3, ne2, n in ((1, 1, 1), (2, 3, 7), (1, 2, 33)):
        yield Node("DIAG", (Operand.of(floats(rng, (ne3, ne2, 1, n))),), Operand.blank(F32, ne3, ne2, n, n))


def _draw_tri(rng: np.random.Generator) -> Iterator[Node]:
    for shape in ((1, 1, 1, 1), (2, 3, 7, 7), (1, 2, 65, 65)):
        for which in range(len(_TRIANGLES)):
            yield Node("TRI", (Operand.of(floats(rng, shape)),), Operand.blank(F32, *shape), parameters(which))


def _draw_parts(op: str, rng: np.random.Generator) -> Iterator[Node]:
    whole: Shape = (2, 3, 9, 33)
    x = Operand.of(floats(rng, whole))
    for part, place in (((1, 1, 1, 7), 5), ((1, 1, 4, 9), 70), ((2, 2, 5, 17), 300), (whole, 0)):
        z = Operand.of(floats(rng, part))
        for inplace in (0, 1):
            given = parameters(*x.nb[1:], 4 * place, inplace)
            if inplace:
                yield Node(op, (x, z), x, given, view_of=0)
            else:
                yield Node(op, (x, z), Operand.blank(F32, *whole), given)
    turned = Operand.of(floats(rng, (1, 4, 3, 8))).permuted(0, 2, 1, 3)
    yield Node(op, (x, turned), Operand.blank(F32, *whole), parameters(*x.nb[1:], 12, 0))
    yield Node(op, (x, turned), Operand.blank(F32, *whole), parameters(200, 900, x.nb[3], 12, 0))
    if op == "SET":
        y, z = (Operand.of(rng.integers(-9, 9, each).astype(np.int32)) for each in (whole, (1, 1, 4, 9)))
        yield Node(op, (y, z), Operand.blank(I32, *whole), parameters(*x.nb[1:], 280, 0))


def _draw_pad(rng: np.random.Generator) -> Iterator[Node]:
    x = Operand.of(floats(rng, (2, 3, 4, 5)))
    for each in (x, x.permuted(0, 2, 1, 3), x.permuted(1, 0, 2, 3)):
        for circular in (0, 1):
            for sides in ((0, 3, 0, 0, 0, 0, 0, 0), (1, 2, 2, 1, 0, 2, 1, 0), (0, 0, 0, 0, 0, 0, 0, 0), (2,) * 8):
                ne = [n + sides[2 * i] + sides[2 * i + 1] for i, n in enumerate(each.ne)]
                yield Node("PAD", (each,), Operand.blank(F32, *ne[::-1]), parameters(*sides, circular))


def _draw_reflected(rng: np.random.Generator) -> Iterator[Node]:
    for shape in SIZES:
        for left, right in ((0, 0), (min(3, shape[3] - 1), 0), (shape[3] - 1, shape[3] // 2)):
            out = Operand.blank(F32, *shape[:3], shape[3] + left + right)
            yield Node("PAD_REFLECT_1D", (Operand.of(floats(rng, shape)),), out, parameters(left, right))


def _draw_roll(rng: np.random.Generator) -> Iterator[Node]:
    x = Operand.of(floats(rng, (2, 3, 4, 33)))
    for shifts in ((0, 0, 0, 0), (5, 0, 0, 0), (-32, 1, 0, 0), (1, -3, 2, 1), (0, 0, -1, -1)):
        yield Node("ROLL", (x,), Operand.blank(F32, *x.shape), parameters(*shifts))
    turned = x.permuted(0, 2, 1, 3)
    yield Node("ROLL", (turned,), Operand.blank(F32, *turned.shape), parameters(3, 2, 1, 0))


DIAG_MASK_INF = Operation(
    op="DIAG_MASK_INF", title="-∞ above a diagonal", judge=_masked, draw=partial(_draw_masked, "DIAG_MASK_INF")
)
DIAG_MASK_ZERO = Operation(
    op="DIAG_MASK_ZERO", title="0 above a diagonal", judge=_masked, draw=partial(_draw_masked, "DIAG_MASK_ZERO")
)
DIAG = Operation(op="DIAG", title="a row as a diagonal", judge=_diag, draw=_draw_diag)
TRI = Operation(op="TRI", title="a triangle, zeros elsewhere", judge=_tri, draw=_draw_tri)
SET = Operation(op="SET", title="src[1] in a part of src[0]", judge=_set, draw=partial(_draw_parts, "SET"))
ACC = Operation(op="ACC", title="src[1] added to a part of src[0]", judge=_acc, draw=partial(_draw_parts, "ACC"))
PAD = Operation(op="PAD", title="x with zeros around it", judge=_pad, draw=_draw_pad)
PAD_REFLECT_1D = Operation(op="PAD_REFLECT_1D", title="rows with mirrored ends", judge=_reflected, draw=_draw_reflected)
ROLL = Operation(op="ROLL", title="x shifted around its ends", judge=_roll, draw=_draw_roll)
