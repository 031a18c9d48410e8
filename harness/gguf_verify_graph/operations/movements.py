"""Copies: CPY, CONT and DUP move values in order and convert them; CONCAT and REPEAT join them.

    CPY, CONT, DUP    the i-th value, counted with the fastest dimension first, for any shapes; CPY writes into a view
                      of src[1], whose type may differ
    CONCAT            src[0], then src[1], along dimension op_params[0]
    REPEAT            y[i] = x[i mod ne] in each dimension

Values of one type keep their bytes; see `conversions` for others (ggml-cpu/ops.cpp, ggml_compute_forward_dup_*,
_concat_*, _repeat_*; ggml-cuda/cpy.cu, concat.cu; vulkan-shaders/copy.comp, concat.comp; llama.cpp v0.5.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.node import (
    BF16,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    Array,
    Node,
    NoDefinition,
    Operand,
    block_format,
    demand,
    parameters,
)

from .conversions import QUANTIZED, floats_of, store
from .judging import Judged, Operation, equal
from .random_inputs import ALL_HALVES, SIZES, Shape, floats, random_blocks, typed
from .rows import values

#: Types that a copy converts between, in addition to the quantized ones.
_CONVERTED = (F32, F16, BF16)


def stored(operand: Operand) -> Array:
    """Return the data of an operand. Raises NoDefinition if the blocks of a row are not contiguous."""
    if operand.blocks and operand.ne[0] % block_format(operand.type_id).block_size:
        raise NoDefinition(f"rows of {operand.ne[0]} values in {operand.type}")
    if operand.blocks and operand.nb[0] != block_format(operand.type_id).block_bytes:
        raise NoDefinition(f"blocks of {operand.type} that are {operand.nb[0]} bytes apart")
    return operand.data


def _copy(node: Node) -> Judged:
    x, out = node.source(0), node.output
    demand(prod(x.ne) == prod(out.ne), f"{node.op} of {x.shape} into {out.shape}")
    got = stored(out)
    if x.type_id == out.type_id:
        return equal(node, "bytes", np.ascontiguousarray(stored(x)).reshape(got.shape))
    known = x.type_id in _CONVERTED and (out.type_id in _CONVERTED or out.blocks)
    if not (known or {x.type_id, out.type_id} == {F32, I32} or (x.blocks and out.type_id == F32)):
        raise NoDefinition(f"{node.op} of {x.type} into {out.type}")
    if out.blocks and x.ne[0] % block_format(out.type_id).block_size:
        raise NoDefinition(f"rows of {x.ne[0]} values in {out.type}")
    made = store(floats_of(stored(x), x.type_id).reshape(out.shape), out, got, node.backend)
    return equal(node, made.definition, made.data, made.allowed)


def _concat(node: Node) -> Judged:
    x, z, out, dim = node.source(0), node.source(1), node.output, node.integer(0)
    if not 0 <= dim < 4 or len({x.type_id, z.type_id, out.type_id}) > 1:
        raise NoDefinition(f"CONCAT of {x.type} and {z.type} along {dim}")
    whole = [n + m if i == dim else n for i, (n, m) in enumerate(zip(x.ne, z.ne, strict=True))]
    if list(out.ne) != whole or any(n != m for i, (n, m) in enumerate(zip(x.ne, z.ne, strict=True)) if i != dim):
        raise NoDefinition(f"CONCAT of {x.shape} and {z.shape} into {out.shape}")
    stored(out)
    return equal(node, "bytes", np.concatenate([stored(x), stored(z)], axis=3 - dim))


def _repeat(node: Node) -> Judged:
    x, out = node.source(0), node.output
    demand(x.type_id == out.type_id and not x.blocks, f"REPEAT of {x.type} into {out.type}")
    return equal(node, "bytes", np.tile(x.data, repeats(node, x, out)))


def repeats(node: Node, part: Operand, whole: Operand) -> tuple[int, ...]:
    """Return how often a part is repeated in each dimension of a whole. Raises NoDefinition."""
    if not all(part.ne) or any(n % m for n, m in zip(whole.ne, part.ne, strict=True)):
        raise NoDefinition(f"{node.op} of {part.shape} and {whole.shape}")
    return tuple(n // m for n, m in zip(whole.shape, part.shape, strict=True))


def random_operand(rng: np.random.Generator, type_id: int, shape: Shape) -> Operand:
    """Return values of an unquantized type: floats, some of which overflow a half, or arbitrary integers."""
    if type_id in (F32, F16, BF16):
        x = floats(rng, shape, 6.0)
        x[rng.random(shape) < 0.02] = np.inf
        half = x.astype(np.float16) if type_id == F16 else x
        return Operand.of((x.view(np.uint32) >> 16).astype("<u2") if type_id == BF16 else half, type_id)
    blank = Operand.blank(type_id, *shape)
    return Operand.of(rng.integers(0, 256, blank.span.shape, np.uint8).view(blank.data.dtype).reshape(shape), type_id)


def _draw_cpy(rng: np.random.Generator) -> Iterator[Node]:
    def into(x: Operand, to: Operand) -> Node:
        return Node("CPY", (x, to), to, view_of=1)

    for a in _CONVERTED:
        for b in _CONVERTED:
            with np.errstate(over="ignore"):
                x = random_operand(rng, a, (2, 3, 4, 33))
            yield into(x, Operand.blank(b, 2, 3, 4, 33))
            yield into(x.permuted(0, 2, 1, 3), Operand.blank(b, 2, 4, 3, 33))
            yield into(x.permuted(1, 0, 2, 3), Operand.blank(b, 2, 3, 33, 4))
            yield into(x, Operand.blank(b, 1, 1, 24, 33))
            yield into(x, Operand.blank(b, 2, 4, 3, 33).permuted(0, 2, 1, 3))
    yield into(Operand.of(floats(rng, (3, 65))), Operand.blank(I32, 1, 1, 3, 65))
    yield into(Operand.of(rng.integers(-(2**31), 2**31, (3, 65)).astype(np.int32)), Operand.blank(F32, 1, 1, 3, 65))
    for name in QUANTIZED:
        to = FORMATS[name].type_id
        y = values(rng, (2, 3, 5, 96))
        yield into(Operand.of(y), Operand.blank(to, 2, 3, 5, 96))
        yield into(Operand.of(y).permuted(0, 2, 1, 3), Operand.blank(to, 2, 5, 3, 96))
        yield into(Operand.of(y), Operand.blank(to, 1, 1, 15, 192))
        with np.errstate(all="ignore"):
            half = np.clip(y, -60000, 60000).astype(np.float16)
        yield into(Operand.of(half), Operand.blank(to, 2, 3, 5, 96))
        yield into(typed(y, BF16), Operand.blank(to, 2, 3, 5, 96))
    for fmt in FORMATS.values():
        raw = random_blocks(rng, fmt, (1, 2, 3, 2 * fmt.block_size), ALL_HALVES)
        quantized = Operand.of(raw, fmt.type_id)
        yield into(quantized, Operand.blank(F32, 1, 2, 3, 2 * fmt.block_size))
        if not fmt.name.startswith(("IQ1", "IQ2", "IQ3")):  # the CPU backend does not support them
            yield into(quantized, Operand.blank(fmt.type_id, 1, 2, 3, 2 * fmt.block_size))


def _draw_moves(op: str, rng: np.random.Generator) -> Iterator[Node]:
    for type_id in (F32, F16, BF16, I32, I64, I16, I8):
        for shape in SIZES if type_id == F32 else SIZES[2:3]:
            with np.errstate(over="ignore"):
                x = random_operand(rng, type_id, shape)
            for each in (x, x.permuted(0, 2, 1, 3), x.permuted(1, 0, 2, 3), x.permuted(3, 1, 2, 0)):
                yield Node(op, (each,), Operand.blank(type_id, *each.shape))
        if op == "CONT":
            yield Node(op, (x,), Operand.blank(type_id, prod(x.ne)))
    raw = rng.integers(0, 256, (2, 3, 4, 68), np.uint8)
    turned = Operand.of(raw, FORMATS["Q8_0"].type_id).permuted(0, 2, 1, 3)
    yield Node(op, (turned,), Operand.blank(turned.type_id, *turned.shape))


def _draw_concat(rng: np.random.Generator) -> Iterator[Node]:
    for type_id in (F32, F16, BF16, I32, I16, I8):
        for dim in range(4):
            shapes = [[2, 3, 4, 33], [2, 3, 4, 33]]
            shapes[1][3 - dim] = 5
            whole = [2, 3, 4, 33]
            whole[3 - dim] += 5
            with np.errstate(over="ignore"):
                x, z = (random_operand(rng, type_id, (a, b, c, d)) for a, b, c, d in shapes)
            yield Node("CONCAT", (x, z), Operand.blank(type_id, *whole), parameters(dim))
    x, z = Operand.of(floats(rng, (1, 4, 3, 32))), Operand.of(floats(rng, (1, 3, 4, 16))).permuted(0, 2, 1, 3)
    yield Node("CONCAT", (x, z), Operand.blank(F32, 1, 4, 3, 48), parameters(0))
    eight = FORMATS["Q8_0"].type_id
    raw = [Operand.of(rng.integers(0, 256, (2, 3, n), np.uint8), eight) for n in (34, 68)]
    yield Node("CONCAT", tuple(raw), Operand.blank(eight, 1, 2, 3, 96), parameters(0))


def _draw_repeat(rng: np.random.Generator) -> Iterator[Node]:
    for type_id in (F32, F16, BF16, I32, I16):
        for part, whole in (((1, 1, 1, 7), (1, 2, 3, 7)), ((2, 1, 3, 5), (4, 3, 6, 10)), ((1, 1, 1, 1), (1, 1, 4, 33))):
            with np.errstate(over="ignore"):
                x = random_operand(rng, type_id, (part[0], part[1], part[2], part[3]))
            yield Node("REPEAT", (x,), Operand.blank(type_id, *whole))
    turned = Operand.of(floats(rng, (1, 3, 2, 32))).permuted(0, 2, 1, 3)
    yield Node("REPEAT", (turned,), Operand.blank(F32, 1, 4, 6, 64))


CPY = Operation(op="CPY", title="values in order, converted", judge=_copy, draw=_draw_cpy)
CONT = Operation(op="CONT", title="values in order, without gaps", judge=_copy, draw=partial(_draw_moves, "CONT"))
DUP = Operation(op="DUP", title="a copy", judge=_copy, draw=partial(_draw_moves, "DUP"))
CONCAT = Operation(op="CONCAT", title="src[0], then src[1], along a dimension", judge=_concat, draw=_draw_concat)
REPEAT = Operation(op="REPEAT", title="x repeated in each dimension", judge=_repeat, draw=_draw_repeat)
