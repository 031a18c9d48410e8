"""Random nodes of FLASH_ATTN_EXT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gguf_verify.formats import ELEMENTS, FORMATS
from gguf_verify.llama.node import BF16, F32, Node, Operand, parameters

from ._drawn_matrices import drawn_blocks

#: Types of keys and of values, in addition to float32 and half.
_OTHERS = (
    ("BF16", "BF16"), ("F16", "F32"), ("F32", "F16"), ("Q8_0", "Q8_0"), ("Q4_0", "F16"), ("Q5_1", "Q4_1"),
    ("F16", "Q8_0"), ("Q4_K", "Q6_K"),
)  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """Sizes and parameters of a node: batches, heads of queries, of keys and values, queries, keys, dims of K, of V.

    `float32` requests GGML_PREC_F32, as models do.
    """

    batches: int = 1
    heads: int = 4
    shared: int = 2
    tokens: int = 3
    keys: int = 37
    dims: int = 64
    out: int = 64
    scale: float = 0.125
    bias: float = 0.0
    cap: float = 0.0
    masks: tuple[int, int] | None = None
    sinks: bool = False
    constant: bool = False
    turned: bool = False
    float32: bool = False


def _tensor(rng: np.random.Generator, kind: str, shape: tuple[int, ...], constant: bool = False) -> Operand:
    values = rng.standard_normal(shape).astype(np.float32)
    if constant:
        values[...] = np.abs(values[..., :1, :])
    if kind == "BF16":
        return Operand.of((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16), BF16)
    if kind in ELEMENTS:
        return Operand.of(values.astype(np.float16 if kind == "F16" else np.float32))
    fmt = FORMATS[kind]
    return Operand.of(drawn_blocks(rng, fmt, shape), fmt.type_id)


def _node(rng: np.random.Generator, k: str, v: str, of: _Kind) -> Node:
    queries = Operand.of(rng.standard_normal((of.batches, of.heads, of.tokens, of.dims)).astype(np.float32))
    if of.turned:  # the layout in models: heads inside tokens
        data = np.ascontiguousarray(queries.data.transpose(0, 2, 1, 3))
        queries = Operand.of(data).permuted(0, 2, 1, 3)
    keys = _tensor(rng, k, (of.batches, of.shared, of.keys, of.dims), of.constant)
    values = _tensor(rng, v, (of.batches, of.shared, of.keys, of.out), of.constant)
    mask = sinks = None
    if of.masks is not None:
        shape = (*of.masks, of.tokens + 2, of.keys)
        drawn = np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))
        if of.tokens > 1:  # a row with one key or none
            drawn[:, :, of.tokens // 2, 1:] = -np.inf
        mask = Operand.of(drawn.astype(np.float16))
    if of.sinks:
        sinks = Operand.of(rng.standard_normal(of.heads).astype(np.float32) * 3)
    output = Operand.blank(F32, of.batches, of.tokens, of.heads, of.out)
    given = parameters(of.scale, of.bias, of.cap, 10 * of.float32)
    return Node("FLASH_ATTN_EXT", (queries, keys, values, mask, sinks), output, given)


def drawn_attention(rng: np.random.Generator) -> Iterator[Node]:
    """Yield nodes of every path, type and parameter."""
    kinds = (
        _Kind(), _Kind(heads=6, shared=1, tokens=1, keys=1, dims=32, out=16), _Kind(turned=True, sinks=True),
        _Kind(batches=2, tokens=5, keys=130, dims=40, out=72, masks=(1, 1)), _Kind(masks=(1, 4), bias=8.0, heads=12),
        _Kind(masks=(1, 1), cap=30.0, scale=1.0, sinks=True), _Kind(keys=256, constant=True, tokens=2),
        _Kind(dims=128, out=128, tokens=2, keys=300, masks=(1, 1)), _Kind(scale=2.0, keys=90),
        _Kind(tokens=66, keys=150, masks=(1, 1), sinks=True), _Kind(tokens=64, keys=64, cap=20.0, scale=1.0),
        _Kind(tokens=1, keys=600, masks=(1, 1)), _Kind(tokens=1, keys=700, dims=128, out=128, sinks=True),
        _Kind(tokens=1, keys=520, constant=True),
    )  # fmt: skip
    for kind in ("F16", "F32"):
        for i, each in enumerate(kinds):
            yield _node(rng, kind, kind, replace(each, float32=i % 2 == 0))
    for k, v in _OTHERS:
        scale = 1.0 if k in FORMATS else 0.125
        dims = 256 if k == "Q4_K" else 64
        tokens, masks = (65, (1, 1)) if k == "Q8_0" or v == "F32" else (3, None)
        yield _node(rng, k, v, _Kind(dims=dims, out=dims, tokens=tokens, keys=70, scale=scale, masks=masks))
