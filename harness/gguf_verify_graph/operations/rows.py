"""Reading and writing of rows by index: GET_ROWS, SET_ROWS.

    GET_ROWS    y[i12, i11, i10] = x[i12, i11, z[i12, i11, i10]]                     in float32, or int32 unchanged
    SET_ROWS    y[i3, i2, z[i3 mod ne, i2 mod ne, i]] = x[i3, i2, i]                 y is a view of src[2]

Rows that SET_ROWS does not select keep their bytes. If several rows have the same index, any of them may be written
last: threads share the rows of a matrix (ggml-cpu/ops.cpp, ggml_compute_forward_get_rows_*, _set_rows_impl;
ggml-cuda/getrows.cu, set-rows.cu; vulkan-shaders/get_rows.comp, copy_to_quant.comp; llama.cpp v0.5.0). `conversions`
defines the conversion of values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.node import BF16, F16, F32, I32, I64, Node, NoDefinition, Operand, Sizes, demand

from .conversions import QUANTIZED, floats_of, store
from .judging import Judged, Operation, equal
from .random_inputs import ALL_HALVES, floats, random_blocks, typed

Indices = npt.NDArray[np.int64]


def _indices(operand: Operand, rows: int, *types: int) -> Indices:
    """Return the indices. Raises NoDefinition for another type, and for an index out of range."""
    demand(operand.type_id in types, f"indices of {operand.type}")
    found: Indices = operand.data.astype(np.int64)
    if found.size and (int(found.min()) < 0 or int(found.max()) >= rows):
        raise NoDefinition(f"an index out of range for {rows} rows")
    return found


def _fits(node: Node, *same: tuple[int, int]) -> None:
    if any(a != b for a, b in same):
        raise NoDefinition(f"{node.op} of {[s and s.shape for s in node.sources]} into {node.output.shape}")


def _get(node: Node) -> Judged:
    x, named, out = node.source(0), node.source(1), node.output
    ne0, ne1, ne2, ne3 = x.ne
    _fits(node, (named.ne[1], ne2), (named.ne[2], ne3), (named.ne[3], 1))
    _fits(node, *zip(out.ne, (ne0, *named.ne[:3]), strict=True))
    at = _indices(named, ne1, I32)[0]
    i12, i11 = np.arange(ne3)[:, None, None], np.arange(ne2)[None, :, None]
    rows = x.data[i12, i11, at]
    if x.type_id == out.type_id and out.type_id in (F32, I32):
        return equal(node, "bytes", rows)
    demand(out.type_id == F32 and x.type_id != I32, f"rows of {x.type} as {out.type}")
    made = store(floats_of(rows, x.type_id), out, out.data, node.backend)
    return equal(node, "as `to_float` decodes them" if x.blocks else "f32", made.data, made.allowed)


def _set(node: Node) -> Judged:
    x, named, before, out = node.source(0), node.source(1), node.source(2), node.output
    demand(x.type_id in (F32, F16), f"writing rows of {x.type}")
    _fits(node, *zip(out.ne, before.ne, strict=True), (out.type_id, before.type_id), (x.ne[0], out.ne[0]))
    _fits(node, (x.ne[1], named.ne[0]), (x.ne[2], out.ne[2]), (x.ne[3], out.ne[3]), (named.ne[3], 1))
    if not all(named.ne[1:3]) or x.ne[2] % named.ne[1] or x.ne[3] % named.ne[2]:
        raise NoDefinition(f"indices {named.shape} of rows {x.shape}")
    at = _indices(named, out.ne[1], I64, I32)[0]
    i3, i2 = np.arange(x.ne[3])[:, None, None], np.arange(x.ne[2])[None, :, None]
    to = (i3, i2, at[i3 % named.ne[2], i2 % named.ne[1], np.arange(x.ne[1])])
    got = out.data[to]
    made = store(floats_of(x.data, x.type_id), out, got, node.backend)
    expected, allowed = np.array(before.data), np.array(before.data)
    expected[to], allowed[to] = made.data, made.allowed
    # of rows with the same index, one that the output equals counts
    met = (np.ascontiguousarray(got).view(np.uint8) == np.ascontiguousarray(made.allowed).view(np.uint8)).all(axis=-1)
    at3, at2, at1 = (np.broadcast_to(each, met.shape)[met] for each in to)
    allowed[at3, at2, at1] = made.allowed[met]
    return equal(node, made.definition, expected, allowed)


def _draw_get(rng: np.random.Generator) -> Iterator[Node]:
    shapes: tuple[tuple[Sizes, int], ...] = (((1, 1, 7, 33), 5), ((2, 3, 11, 32), 4), ((1, 1, 300, 5), 1))
    for shape, n in shapes:
        values = floats(rng, shape)
        named = Operand.of(rng.integers(0, shape[2], (1, *shape[:2], n)).astype(np.int32))
        for kind in (F32, F16, BF16):
            yield Node("GET_ROWS", (typed(values, kind), named), Operand.blank(F32, shape[0], shape[1], n, shape[3]))
        whole = Operand.of(rng.integers(-(2**31), 2**31, shape).astype(np.int32))
        yield Node("GET_ROWS", (whole, named), Operand.blank(I32, shape[0], shape[1], n, shape[3]))
    turned = Operand.of(floats(rng, (2, 9, 3, 32))).permuted(0, 2, 1, 3)
    named = Operand.of(rng.integers(0, 9, (1, 2, 3, 6)).astype(np.int32))
    yield Node("GET_ROWS", (turned, named), Operand.blank(F32, 2, 3, 6, 32))
    for fmt in FORMATS.values():
        raw = random_blocks(rng, fmt, (1, 2, 9, 3 * fmt.block_size), ALL_HALVES)
        named = Operand.of(rng.integers(0, 9, (1, 1, 2, 5)).astype(np.int32))
        yield Node("GET_ROWS", (Operand.of(raw, fmt.type_id), named), Operand.blank(F32, 1, 2, 5, 3 * fmt.block_size))


#: Shapes that rows are written to, number of rows, and dimensions 2 and 1 of the indices.
_WRITES: tuple[tuple[Sizes, int, tuple[int, int]], ...] = (
    ((1, 1, 13, 64), 5, (1, 1)), ((2, 4, 9, 96), 3, (1, 2)), ((1, 2, 40, 32), 1, (1, 1)),
)  # fmt: skip


def _draw_set(rng: np.random.Generator) -> Iterator[Node]:
    types = (F32, F16, BF16, *(FORMATS[name].type_id for name in QUANTIZED))
    for type_id in types:
        for shape, n, named_shape in _WRITES:
            before = _cache(rng, type_id, shape)
            x = values(rng, (shape[0], shape[1], n, shape[3]))
            index = np.int64 if n != 3 else np.int32
            named = np.stack([rng.permutation(shape[2])[:n] for _ in range(named_shape[0] * named_shape[1])])
            at = Operand.of(named.reshape(1, *named_shape, n).astype(index))
            yield Node("SET_ROWS", (Operand.of(x), at, before), before, view_of=2)
    before = _cache(rng, F32, (1, 1, 6, 7))
    twice = Operand.of(np.array([3, 0, 3, 5, 3], np.int64))
    yield Node("SET_ROWS", (Operand.of(floats(rng, (5, 7))), twice, before), before, view_of=2)
    halves = Operand.of(floats(rng, (1, 2, 4, 64)).astype(np.float16))
    for type_id in (F32, F16, FORMATS["Q8_0"].type_id):
        before = _cache(rng, type_id, (1, 2, 8, 64))
        at = Operand.of(rng.permutation(8)[:4].astype(np.int64))
        yield Node("SET_ROWS", (halves, at, before), before, view_of=2)


def _cache(rng: np.random.Generator, type_id: int, shape: Sizes) -> Operand:
    """Return previous rows of arbitrary bytes."""
    blank = Operand.blank(type_id, *shape)
    if blank.blocks:
        return Operand.of(rng.integers(0, 256, blank.data.shape, dtype=np.uint8), type_id)
    return typed(floats(rng, shape), type_id)


def values(rng: np.random.Generator, shape: Sizes) -> npt.NDArray[np.float32]:
    """Return finite values for quantizers: blocks of every size, of zeros, and of ties between codes."""
    x = floats(rng, shape, 1.0)
    blocks = x.reshape(-1, 32)
    blocks *= np.exp2(rng.integers(-12, 8, (len(blocks), 1))).astype(np.float32)
    ties = rng.integers(-16, 17, blocks.shape).astype(np.float32) / 2
    kind = rng.integers(0, 12, len(blocks))
    blocks[kind == 0] = ties[kind == 0]
    blocks[kind == 1] = 0
    blocks[kind == 2] *= np.float32(1e-30)
    return x


GET_ROWS = Operation(op="GET_ROWS", title="rows of x by their indices", judge=_get, draw=_draw_get)
SET_ROWS = Operation(op="SET_ROWS", title="rows written by their indices", judge=_set, draw=_draw_set)
