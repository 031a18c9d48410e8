"""Windows of images and their relative positions: WIN_PART, WIN_UNPART, GET_REL_POS and ADD_REL_POS.

    WIN_PART      y[window, i, j] = x[row·w + i, column·w + j] of the window at (row, column), 0 beyond the edges
    WIN_UNPART    the inverse, without the values beyond the edges
    GET_REL_POS   y[i, j] = x[i - j + n - 1], one row of x for each distance of n positions
    ADD_REL_POS   y[q, h, w] = x[q, h, w] + p[q, w] + r[q, h], for each query q of each head

Three of them move numbers, so their bytes are compared. ADD_REL_POS adds in float32 in either order, so it may round
x + p or x + r, and the sum (ggml-cpu/ops.cpp; llama.cpp v0.5.0):

    bound         u·(|x| + max(|p|, |r|)) + u·|o|, u = 2^-24
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gguf_verify.llama.node import F16, F32, Node, Operand, demand, parameters
from gguf_verify.semantics.sums import UNIT_ROUNDOFF

from .arithmetic import arithmetic
from .judging import Judged, Operation, equal, within
from .random_inputs import floats


def _part(node: Node) -> Judged:
    node.floats(0)
    x, size = node.source(0).data, node.integer(2)
    batch, height, width, channels = x.shape
    demand(size > 0 and batch == 1, "WIN_PART of these shapes")
    rows, columns = -(-height // size), -(-width // size)
    demand((node.integer(0), node.integer(1)) == (columns, rows), "WIN_PART with another number of windows")
    demand(node.output.shape == (rows * columns, size, size, channels), "WIN_PART of these shapes")
    padded = np.zeros((rows * size, columns * size, channels), x.dtype)
    padded[:height, :width] = x[0]
    windows = padded.reshape(rows, size, columns, size, channels).swapaxes(1, 2)
    return equal(node, "bytes", windows.reshape(node.output.shape))


def _unpart(node: Node) -> Judged:
    node.floats(0)
    x, size = node.source(0).data, node.integer(0)
    batch, height, width, channels = node.output.shape
    demand(size > 0 and batch == 1, "WIN_UNPART of these shapes")
    rows, columns = -(-height // size), -(-width // size)
    demand(x.shape == (rows * columns, size, size, channels), "WIN_UNPART of these shapes")
    whole = x.reshape(rows, columns, size, size, channels).swapaxes(1, 2)
    whole = whole.reshape(rows * size, columns * size, channels)
    return equal(node, "bytes", whole[None, :height, :width])


def _positions(node: Node) -> Judged:
    table = node.source(0)
    demand(table.type_id == node.output.type_id == F16, f"GET_REL_POS of {table.type}")
    n = node.output.shape[2]
    fits = table.shape[:2] == (1, 1) and table.shape[2] == 2 * n - 1 and node.output.shape == (1, n, n, table.shape[3])
    demand(fits, "GET_REL_POS of these shapes")
    at = np.arange(n)
    return equal(node, "bytes", table.data[0, 0][at[:, None] - at + n - 1][None])


def _add(node: Node) -> Judged:
    node.floats(0, 1, 2)
    x, p, r = (node.source(i).values for i in range(3))
    heads, rows, columns, n = p.shape
    fits = r.shape == p.shape and x.shape == (1, heads, rows * columns, n * n) and node.output.shape == x.shape
    demand(fits, "ADD_REL_POS of these shapes")
    scores = x.reshape(*p.shape, n)
    across, down = p[..., None, :], r[..., None]
    with np.errstate(all="ignore"):
        exact = scores + across + down
        size = np.abs(scores) + np.maximum(np.abs(across), np.abs(down)) + np.abs(exact)
        bound = UNIT_ROUNDOFF * size * (1 + UNIT_ROUNDOFF) + 2 * arithmetic(node.backend).tiny
    return within(node, "f32", exact.reshape(x.shape), bound.reshape(x.shape))


#: Height, width, channels, window size.
_IMAGES = ((1, 1, 1, 1), (7, 9, 5, 3), (8, 8, 16, 4), (5, 3, 2, 7), (14, 10, 33, 14))


def _draw_part(rng: np.random.Generator) -> Iterator[Node]:
    for height, width, channels, size in _IMAGES:
        rows, columns = -(-height // size), -(-width // size)
        x = Operand.of(floats(rng, (height, width, channels)))
        output = Operand.blank(F32, rows * columns, size, size, channels)
        yield Node("WIN_PART", (x,), output, parameters(columns, rows, size))


def _draw_unpart(rng: np.random.Generator) -> Iterator[Node]:
    for height, width, channels, size in _IMAGES:
        windows = -(-height // size) * -(-width // size)
        x = Operand.of(floats(rng, (windows, size, size, channels)))
        yield Node("WIN_UNPART", (x,), Operand.blank(F32, height, width, channels), parameters(size))


def _draw_positions(rng: np.random.Generator) -> Iterator[Node]:
    for n, width in ((1, 1), (5, 7), (14, 64)):
        table = Operand.of(floats(rng, (2 * n - 1, width)).astype(np.float16))
        yield Node("GET_REL_POS", (table,), Operand.blank(F16, n, n, width))


def _draw_add(rng: np.random.Generator) -> Iterator[Node]:
    for heads, rows, columns, n in ((1, 1, 1, 1), (3, 4, 2, 5), (2, 14, 14, 14)):
        x, (p, r) = floats(rng, (heads, rows * columns, n * n)), floats(rng, (2, heads, rows, columns, n))
        sources = (Operand.of(x), Operand.of(p), Operand.of(r))
        yield Node("ADD_REL_POS", sources, Operand.blank(F32, *x.shape), parameters(0))
        yield Node("ADD_REL_POS", sources, sources[0], parameters(1), view_of=0)


WIN_PART = Operation(op="WIN_PART", title="an image cut into windows", judge=_part, draw=_draw_part)
WIN_UNPART = Operation(op="WIN_UNPART", title="windows put together to an image", judge=_unpart, draw=_draw_unpart)
GET_REL_POS = Operation(
    op="GET_REL_POS", title="a table's rows by relative position", judge=_positions, draw=_draw_positions
)
ADD_REL_POS = Operation(op="ADD_REL_POS", title="scores and those of relative positions", judge=_add, draw=_draw_add)
