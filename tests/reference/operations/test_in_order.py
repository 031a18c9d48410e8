"""Sums in half in a known order: their bits, and which outputs they tell from each other. What a device computes is
played by NumPy's scalars, one operation at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.declared import declared
from gguf_verify.support.array_types import Floats
from gguf_verify_graph.operations import Node, Operand, judge
from gguf_verify_graph.operations import in_order as module
from gguf_verify_graph.operations.in_order import Ordered, sums, told_apart
from gguf_verify_graph.operations.random_inputs import random_blocks
from tests.support.operations import with_output

Q4_0 = FORMATS["Q4_0"]
F16, F32 = 1, 0
PLAIN = "f16, multiplied and added in float16 in order"
FUSED = "f16, fused in float16 in order"


def one(a: Floats, b: Floats, group: int, fused: bool) -> np.float16:
    """Σ a·b, a group at a time, each from its end."""
    acc = np.float16(0)
    for first in range(0, len(a), group):
        for k in reversed(range(first, min(first + group, len(a)))):
            x, y = np.float16(a[k]), np.float16(b[k])
            # a product of halves and what a half adds to it are exact in float64 at these sizes
            acc = np.float16(float(acc) + float(x) * float(y)) if fused else np.float16(acc + np.float16(x * y))
    return acc


def node_of(k: int, group: int, fused: bool, size: float = 1.0) -> Node:
    """A product of nine tokens as Vulkan's shader computes it, of weights in blocks of 32, or in half."""
    rng = np.random.default_rng(3)
    x = (size * rng.standard_normal((9, k))).astype(np.float32)
    if group == 2:
        blocks = random_blocks(rng, Q4_0, (24, k))
        w, values = Operand.of(blocks, Q4_0.type_id), Q4_0.decode(blocks.reshape(24, -1, 18)).reshape(24, -1)
    else:
        halves = rng.standard_normal((24, k)).astype(np.float16)
        w, values = Operand.of(halves), halves.astype(np.float32)
    y = np.array([[one(row, of, group, fused) for of in values] for row in x], np.float32)
    return Node("MUL_MAT", (w, Operand.of(x)), Operand.of(y), backend="Vulkan", device="Vulkan0")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("group", "k"), [(2, 512), (4, 257)])
def test_every_bit_is_known(group: int, k: int, fused: bool) -> None:
    judged = judge(node_of(k, group, fused))
    assert judged.passed
    assert judged.definition == (FUSED if fused else PLAIN)
    assert (judged.by_bits, judged.utilisation, judged.tolerance) == (True, 0.0, 0.0)


@pytest.mark.parametrize("fused", [False, True])
def test_one_wrong_output_is_found_however_small(fused: bool) -> None:
    """The neighbouring half is far within the bound of a sum in any order."""
    node = node_of(512, 2, fused)
    y = node.output.data.copy()
    y[0, 0, 4, 7] = np.nextafter(np.float16(y[0, 0, 4, 7]), np.float16(np.inf))
    judged = judge(with_output(node, y))
    assert (judged.wrong, judged.place) == (1, (0, 0, 4, 7))
    assert judged.expected == node.output.data[0, 0, 4, 7]
    assert judged.extent == ((0, 0, 1), (0, 0, 1), (4, 4, 1), (7, 7, 1))


def test_another_order_is_judged_by_its_bound() -> None:
    """In descending order; and so many wrong outputs may be another arithmetic's."""
    node = node_of(512, 2, False)
    x, blocks = node.source(1).data[0, 0], np.ascontiguousarray(node.source(0).data[0, 0]).reshape(24, -1, 18)
    values = Q4_0.decode(blocks).reshape(24, -1)
    other = np.array([[one(row[::-1], of[::-1], 2, False) for of in values] for row in x], np.float32)
    judged = judge(with_output(node, other[None, None]))
    assert judged.passed
    assert not judged.by_bits
    y = node.output.data.copy()
    y[0, 0, :, :6] = other[:, :6]
    assert judge(with_output(node, y)).passed


def test_a_device_that_flushes_subnormal_numbers_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few outputs may differ by it, which are not taken for wrong ones."""
    node = node_of(512, 2, False, size=2.0**-8)
    x, blocks = node.source(1).data[0, 0], np.ascontiguousarray(node.source(0).data[0, 0]).reshape(24, -1, 18)
    values = Q4_0.decode(blocks).reshape(24, -1)
    flushed = sums(x, values, 2, False, (False, True, False))
    differ = flushed != node.output.data[0, 0]
    assert differ.any()
    few = np.where(np.cumsum(differ).reshape(differ.shape) <= 2, flushed, node.output.data[0, 0])
    assert judge(with_output(node, few[None, None])).passed
    monkeypatch.setattr(Ordered, "FLUSHED", ())
    assert not judge(with_output(node, few[None, None])).passed


def test_large_products_and_overflow_are_judged_by_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of(64, 2, False)
    monkeypatch.setattr(module, "MOST_PRODUCTS", 9 * 24 * 64 - 1)
    assert not judge(node).by_bits
    monkeypatch.undo()
    large = node_of(64, 2, False)
    x = large.source(1).data[0, 0].copy()
    x[:] = 6e4
    sources = (large.source(0), Operand.of(x))
    values = Q4_0.decode(np.ascontiguousarray(large.source(0).data[0, 0]).reshape(24, -1, 18)).reshape(24, -1)
    assert not np.isfinite(sums(x, values, 2, False)).all()
    with pytest.raises(Exception, match="overflow"):
        judge(replace(large, sources=sources, output=Operand.of(np.full((1, 1, 9, 24), 65504, np.float32))))


def test_a_weight_between_two_halves_is_uncertain() -> None:
    """3 + 3·2^-10 lies in the middle between two halves; 2^-24 more is no float32, so the roundings decide."""
    fmt = FORMATS["Q4_1"]
    codes = np.full((2, 2, 32), 3, np.uint8)
    sure, either = np.float16(0), np.float16(2.0**-24)
    packed = codes[..., :16] | codes[..., 16:] << 4
    m = np.array([[sure, sure], [sure, either]])
    w = fmt.pack(d=np.full((2, 2), 1 + 2.0**-10, np.float16), m=m, qs=packed).reshape(2, -1)
    order = Ordered(declared("f16", accumulates="float16"), fmt, False)
    assert order.uncertain(w).tolist() == [False, True]
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    y = order.bits(w, order.semantics.bytes_of(x))
    wrong, others = np.zeros(y.shape, bool), [y + 1]
    wrong[0, 0] = True
    uncertain = np.broadcast_to(order.uncertain(w), y.shape)
    assert told_apart(wrong, y, others, [], uncertain)
    assert not told_apart(wrong[:, ::-1], y, others, [], uncertain)
