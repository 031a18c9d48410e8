"""FLASH_ATTN_EXT as CUDA's kernels compute it, followed in NumPy: right results pass, and planted faults are seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.node import F16, F32
from gguf_verify.support.array_types import Array
from gguf_verify_graph.operations import OPERATIONS, Node, NoDefinition, Operand, judge, parameters
from gguf_verify_graph.operations.attention_paths import vec_alone
from tests.reference.operations.test_attention_on_vulkan import ABOVE, FAULTS
from tests.support.operations import with_output

f16, f32 = np.float16, np.float32
OF_CODES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@dataclass(frozen=True)
class Kernel:
    """A kernel of ggml-cuda.

    Args:
        name: "vec", "mma" or "tile".
        batch: keys between two maxima.
        threads: that share the keys of a batch, and are added in float32.
    """

    name: str
    batch: int
    threads: int

    def compute(self, node: Node) -> Node:
        """The node as if the kernel had computed it."""
        q, k, v = (node.source(i) for i in range(3))
        data = np.zeros(node.output.shape, f32)
        for batch in range(q.ne[3]):
            for head in range(q.ne[2]):
                at = batch, head // (q.ne[2] // k.ne[2])
                s = self._scores(node, np.array(q.data[batch, head]), k, at)
                s = _masked(node, s, batch, head)
                data[batch, :, head] = self._attended(node, s, self._held(v, at), head)
        return with_output(replace(node, backend="CUDA", device="CUDA0"), data)

    def _held(self, operand: Operand, at: tuple[int, int]) -> Array:
        values = operand.values[at].astype(f32)
        return values if self.name == "vec" else values.astype(f16).astype(f32)

    def _scores(self, node: Node, q: Array, k: Operand, at: tuple[int, int]) -> Array:
        scale, cap = f32(node.number(0)), f32(node.number(2))
        scale = scale / cap if cap else scale
        if self.name == "vec" and k.type in OF_CODES:
            s = _of_codes(q * scale, k, at)
        else:
            taken = q * scale
            if self.name == "mma":
                taken = (f16(scale) * q.astype(f16)).astype(f32)
            elif self.name == "tile":
                taken = (taken.astype(f16) * f16(0.25)).astype(f32)
            keys, s = self._held(k, at), np.zeros((len(q), k.ne[1]), f32)
            for d in range(q.shape[1]):
                product = taken[:, d, None] * keys[:, d]
                s = s + (product.astype(f16).astype(f32) if self.name == "tile" else product)
            s = s * f32(4) if self.name == "tile" else s
        return np.asarray(cap * np.tanh(s) if cap else s)

    def _attended(self, node: Node, s: Array, v: Array, head: int) -> Array:
        parts = [self._part(s[:, i :: self.threads], v[i :: self.threads]) for i in range(self.threads)]
        most = np.max([m for m, _, _ in parts], axis=0)
        whole = sum(np.exp(m - most) * total for m, total, _ in parts)
        held = sum(np.exp(m - most) * sums.astype(f32) for m, _, sums in parts)
        sinks = node.optional(4)
        if sinks is not None:
            sink = sinks.data[0, 0, 0, head]
            reached = np.maximum(most, sink)
            held = held * np.exp(most - reached)
            whole = whole * np.exp(most - reached) + np.exp(sink - reached)
        return np.asarray(held / whole, f32)

    def _part(self, s: Array, v: Array) -> tuple[Array, Array, Array]:
        kind = f32 if self.name == "vec" else f16
        most = np.full((len(s), 1), -np.finfo(f32).max / 2, f32)
        whole, held = np.zeros_like(most), np.zeros((len(s), v.shape[1]), kind)
        for first in range(0, len(v), self.batch):
            own = s[:, first : first + self.batch]
            before, most = most, np.maximum(most, own.max(axis=1, keepdims=True) + ABOVE)
            factor = np.exp(before - most)
            if self.name == "mma":
                factor = np.where(before - most >= -20, factor, f32(0))
            whole, held = factor * whole, factor.astype(kind) * held
            for t in range(own.shape[1]):
                p = np.exp(own[:, t, None] - most)
                whole, held = whole + p, (held + (p.astype(kind) * v[first + t]).astype(kind)).astype(kind)
        return most, whole, held


def _of_codes(x: Array, k: Operand, at: tuple[int, int]) -> Array:
    """d_k·d·Σ q_k·q_q + m_k·s, in float32."""
    fmt = FORMATS[k.type]
    blocks = np.ascontiguousarray(k.data[at]).reshape(k.ne[1], -1, fmt.block_bytes)
    by_block = x.reshape(len(x), -1, 32)
    d = np.abs(by_block).max(axis=-1) / f32(127)
    ratio = by_block / np.where(d > 0, d, 1)[..., None]
    codes = np.sign(ratio) * np.floor(np.abs(ratio) + f32(0.5))
    sums = by_block.sum(axis=-1)
    s = np.zeros((len(x), k.ne[1]), f32)
    for b in range(by_block.shape[1]):
        integers = codes[:, b] @ fmt.codes(blocks)[:, b].T.astype(f32)
        s = s + fmt.scales(blocks)[:, b, 0] * d[:, b, None] * integers
        if fmt.has_min or fmt.offset:
            s = s + fmt.minima(blocks)[:, b, 0] * sums[:, b, None]
    return s


def _masked(node: Node, s: Array, batch: int, head: int) -> Array:
    mask, bias, heads = node.optional(3), node.number(1), node.source(0).ne[2]
    if mask is None:
        return s
    n = 1 << (heads.bit_length() - 1)
    base, power = (-bias / n, head + 1) if head < n else (-bias / 2 / n, 2 * (head - n) + 1)
    slope = f32(f32(2.0**base) ** f32(power)) if bias > 0 else f32(1)
    return np.asarray(s + slope * mask.data[batch % mask.ne[3], head % mask.ne[2], : len(s)].astype(f32))


KERNELS = {
    "f32": Kernel("vec", 128, 4), "tensor cores, half sums": Kernel("mma", 32, 2),
    "half products, half sums": Kernel("tile", 32, 1),
}  # fmt: skip


def _drawn() -> list[Node]:
    """Of few tokens, with a key for each query."""
    nodes = OPERATIONS["FLASH_ATTN_EXT"].draw(np.random.default_rng(0))
    few = [n for n in nodes if n.source(0).ne[1] * n.source(1).ne[1] <= 800 and n.source(1).type != "Q4_K"]
    for i, node in enumerate(few):
        mask = node.optional(3)
        if mask is not None:
            data = np.array(mask.data)
            data[..., 0] = 0
            few[i] = replace(node, sources=(*node.sources[:3], Operand.of(data), node.optional(4)))
    return few


@pytest.mark.parametrize("name", KERNELS)
def test_right(name: str) -> None:
    worst, seen = 0.0, Counter[str]()
    with np.errstate(all="ignore"):
        for node in _drawn():
            made = KERNELS[name].compute(node)
            if not np.isfinite(made.output.data).all():
                continue  # random scales of blocks are beyond half's range
            one = judge(made)
            assert one.passed, (node.sources, one)
            worst = max(worst, one.utilisation)
            seen[one.definition.rpartition(", V ")[2].partition(", ")[2]] += 1
    # mma's bound has room for what tile computes
    assert 2 * seen[name] > seen.total() or name == "half products, half sums"
    assert name == "f32" or 4 * seen["tensor cores, half sums"] > 3 * seen.total()
    assert (name == "f32") == ("queries in Q8_1, f32" in seen)
    assert worst > 1 / 128


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("what", FAULTS)
def test_planted_faults_are_detected(what: str, name: str) -> None:
    seen = 0
    with np.errstate(all="ignore"):
        for node in _drawn()[:9]:
            other = FAULTS[what](node)
            if other is not None:
                made = KERNELS[name].compute(other)
                seen += judge(with_output(replace(node, backend="CUDA"), np.array(made.output.data))).wrong > 0
    assert seen


def test_half_sums_do_not_admit_one_wrong_output() -> None:
    """Of queries that vec or mma may have, one output is off by less than mma's tolerance; the others are vec's."""
    node = next(n for n in _drawn() if n.source(1).type_id == n.source(2).type_id == F16 and n.source(0).ne[1] > 2)
    right = KERNELS["f32"].compute(node)
    found = judge(right)
    assert (found.passed, found.definition.rpartition(", V ")[2]) == (True, "F16, f32")
    data = np.array(right.output.data)
    row = data[0, 1, 1]
    at = int(np.argsort(np.abs(row))[len(row) // 2])
    row[at] *= f32(1 + 2.0**-5)
    found = judge(with_output(right, data))
    assert (found.wrong, found.place) == (1, (0, 1, 1, at))


@pytest.mark.parametrize("name", ["tensor cores, half sums", "half products, half sums"])
def test_addends_midway_between_steps_are_right(name: str) -> None:
    """Equal keys, whose p is a little more than 1/8; as a half it is that, and 6.5 steps of a sum of 16 times 13/16."""
    q = Operand.of(np.random.default_rng(5).standard_normal((1, 4, 1, 64)).astype(f32))
    k, v = np.zeros((1, 2, 520, 64), f16), np.broadcast_to(np.arange(64, dtype=f16) / f16(16), (1, 2, 520, 64))
    given = q, Operand.of(k), Operand.of(v), None
    node = Node("FLASH_ATTN_EXT", given, Operand.blank(F32, 1, 1, 4, 64), parameters(0.125), backend="CUDA")
    found = judge(KERNELS[name].compute(node))
    assert found.passed, found
    assert "half sums" in found.definition


def test_no_half_sums_if_only_vec_runs() -> None:
    rng = np.random.default_rng(4)
    q = Operand.of(rng.standard_normal((1, 2, 1, 64)).astype(f32))
    k, v = (Operand.of(rng.standard_normal((1, 2, 256, 64)).astype(f16)) for _ in range(2))
    node = Node("FLASH_ATTN_EXT", (q, k, v, None), Operand.blank(F32, 1, 1, 2, 64), parameters(0.125), backend="CUDA")
    assert vec_alone(node)
    assert judge(KERNELS["f32"].compute(node)).passed
    assert not judge(KERNELS["tensor cores, half sums"].compute(node)).passed
    two = Operand.of(np.concatenate([np.array(q.data)] * 2, axis=2))
    short = [Operand.of(np.array(each.data)[:, :, :250]) for each in (k, v)]
    assert not vec_alone(replace(node, sources=(two, k, v, None)))
    assert not vec_alone(replace(node, sources=(q, *short, None)))


def test_a_row_without_keys_has_no_definition() -> None:
    q, kv = Operand.of(np.ones((1, 2, 2, 64), f32)), Operand.of(np.ones((1, 2, 40, 64), f16))
    mask = np.zeros((2, 40), f16)
    mask[1] = -np.inf
    given = (q, kv, kv, Operand.of(mask))
    node = Node("FLASH_ATTN_EXT", given, Operand.blank(F32, 1, 2, 2, 64), parameters(0.125), backend="CUDA")
    with pytest.raises(NoDefinition):
        judge(node)
