"""FLASH_ATTN_EXT as Vulkan's shader computes it, followed in NumPy: right results pass, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from gguf_verify.llama.node import BF16, F32
from gguf_verify.support.array_types import Array
from gguf_verify_graph.operations import OPERATIONS, Judged, Node, NoDefinition, Operand, judge, parameters
from gguf_verify_graph.operations.attention_sums import in_lanes
from tests.support.operations import source, with_output

#: Threads that share the keys, and keys of a block.
LANES, BLOCK = 4, 32
ABOVE = np.float32(3) * np.float32(0.6931)


@dataclass(frozen=True)
class Shader:
    """The types of values (FLOAT_TYPE) and of scores (ACC_TYPE)."""

    values: type[np.floating[Any]]
    scores: type[np.floating[Any]]

    def compute(self, node: Node) -> Node:
        """The node as if such a device had computed it."""
        q, k, v = (node.source(i) for i in range(3))
        shared = q.ne[2] // k.ne[2]
        data = np.zeros(node.output.shape, np.float32)
        for batch in range(q.ne[3]):
            for head in range(q.ne[2]):
                at = batch, head // shared
                s = self._scores(node, np.array(q.data[batch, head]), self._held(k, at))
                s = self._masked(node, s, batch, head)
                data[batch, :, head] = self._attended(node, s, self._held(v, at), head)
        return with_output(replace(node, backend="Vulkan", device="Vulkan0"), data)

    def _held(self, operand: Operand, at: tuple[int, int]) -> Array:
        return operand.values[at].astype(np.float32).astype(self.values)

    def _scores(self, node: Node, q: Array, k: Array) -> Array:
        scale, cap = np.float32(node.number(0)), np.float32(node.number(2))
        scaled = (q * (scale / cap if cap else scale)).astype(self.values).astype(np.float32)
        s = np.zeros((len(q), len(k)), self.scores)
        for d in range(q.shape[1]):
            s = (scaled[:, d, None] * k[:, d].astype(np.float32) + s).astype(self.scores)
        return (cap * np.tanh(s.astype(np.float32))).astype(self.scores) if cap else s

    def _masked(self, node: Node, s: Array, batch: int, head: int) -> Array:
        mask, bias, heads = node.optional(3), node.number(1), node.source(0).ne[2]
        if mask is None:
            return s
        n = 1 << (heads.bit_length() - 1)
        base, power = (-bias / n, head + 1) if head < n else (-bias / 2 / n, 2 * (head - n) + 1)
        slope = self.scores(np.float32(self.scores(2.0**base)) ** np.float32(power)) if bias > 0 else self.scores(1)
        rows = mask.data[batch % mask.ne[3], head % mask.ne[2], : len(s)]
        return (s + (slope * rows.astype(self.scores)).astype(self.scores)).astype(self.scores)

    def _attended(self, node: Node, s: Array, v: Array, head: int) -> Array:
        parts = [self._lane(s[:, lane::LANES], v[lane::LANES]) for lane in range(LANES)]
        most = np.max([m for m, _, _ in parts], axis=0)
        whole, held = np.zeros_like(most), np.zeros((len(s), v.shape[1]), self.values)
        for m, total, sums in parts:
            factor = np.exp(m - most)
            whole = whole + factor * total
            held = held + factor.astype(self.values) * sums
        sinks = node.optional(4)
        if sinks is not None:
            sink = np.float32(self.scores(sinks.data[0, 0, 0, head]))
            held = held * np.where(sink > most, np.exp(most - sink), 1).astype(self.values)
            whole = np.where(sink > most, whole * np.exp(most - sink) + 1, whole + np.exp(sink - most))
        inverse = np.where(whole == 0, 0, 1 / np.where(whole == 0, 1, whole)).astype(self.values)
        made: Array = (held * inverse).astype(np.float32)
        return made

    def _lane(self, s: Array, v: Array) -> tuple[Array, Array, Array]:
        most = np.full((len(s), 1), -np.finfo(np.float32).max / 2, np.float32)
        whole, held = np.zeros_like(most), np.zeros((len(s), v.shape[1]), self.values)
        for first in range(0, len(v), BLOCK // LANES):
            own = s[:, first : first + BLOCK // LANES].astype(np.float32)
            before, most = most, np.maximum(most, own.max(axis=1, keepdims=True) + ABOVE)
            factor = np.exp(before - most)
            whole, held = factor * whole, factor.astype(self.values) * held
            for t in range(own.shape[1]):
                p = np.exp(own[:, t, None] - most).astype(self.values)
                whole, held = whole + p, held + p * v[first + t]
        return most, whole, held


FLOATS, HALVES = Shader(np.float32, np.float32), Shader(np.float16, np.float32)
ALL_HALVES = Shader(np.float16, np.float16)
NAMES = {"f32": FLOATS, "halves, f32 scores": HALVES, "halves, half scores": ALL_HALVES}


def _drawn(float32: bool) -> list[Node]:
    """Of few tokens and of types that the shader takes, with its precision."""
    nodes = OPERATIONS["FLASH_ATTN_EXT"].draw(np.random.default_rng(0))
    few = [n for n in nodes if n.source(0).ne[1] * n.source(1).ne[1] <= 800 and n.source(1).type != "Q4_K"]
    numbers = ((n.number(0), n.number(1), n.number(2)) for n in few)
    return [replace(n, parameters=parameters(*given, 10 * float32)) for n, given in zip(few, numbers, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_right(name: str) -> None:
    worst = 0.0
    with np.errstate(all="ignore"):
        for node in _drawn(name != "halves, half scores"):
            if node.source(1).type_id == BF16 and name != "f32":
                continue
            made = NAMES[name].compute(node)
            if not made.output.data.any() or not np.isfinite(made.output.data).all():
                continue  # random scales of blocks are beyond half's range
            one = judge(made)
            assert one.passed, (node.sources, one)
            assert one.definition.endswith(name) or not one.utilisation, (node.sources, one)
            assert not one.utilisation or one.utilisation > {"f32": 1 / 160}.get(name, 1 / 32)
            worst = max(worst, one.utilisation)
    assert worst > {"f32": 1 / 24}.get(name, 1 / 8)


@pytest.mark.parametrize(("keys", "values"), [
    *((keys, values) for keys in (5, 600) for values in ("drawn", "alike", "of both signs in turn", "growing")),
    (2400, "of both signs by blocks"),
])  # fmt: skip
def test_sums_of_lanes(keys: int, values: str) -> None:
    """Float32 sums in many orders are within what `in_lanes` allows, and use some of it."""
    rng = np.random.default_rng(keys)
    p, v = rng.random((3, keys)).astype(np.float32), rng.standard_normal((keys, 16)).astype(np.float32)
    at = np.arange(keys)
    if values == "alike" or values.startswith("of both signs"):
        p[...], v[...] = np.float32(1 / 3), np.abs(v[:1])
    if values.startswith("of both signs"):
        v[at // (BLOCK if values.endswith("by blocks") else 1) % 2 == 1] *= np.float32(-0.98)
    if values == "growing":
        p *= np.exp(at.astype(np.float32) / 40)
    wide, of = p.astype(np.float64), v.astype(np.float64)
    bound, worst = in_lanes(wide, of, BLOCK), 0.0
    of_keys, of_blocks = ((1, n) for n in (1, 2, 3, 16, 32, 48, 200)), ((BLOCK, n) for n in (2, 4, 12))
    for run, lanes in (*of_keys, *of_blocks):
        lane = at // run % lanes
        parts = [p[:, lane == i, None] * v[lane == i] for i in range(lane.max() + 1)]
        cut = [part[:, first : first + 100] for part in parts for first in range(0, part.shape[1], 100)]
        for each in ([np.cumsum(part, axis=1)[:, -1] for part in some] for some in (parts, cut)):
            off = np.abs(np.cumsum(each, axis=0)[-1] - wide @ of)
            worst = max(worst, (off / bound).max())
    assert 1 / 40 < worst <= 1


def _heads_rolled(node: Node, i: int) -> Node:
    return source(node, i, lambda d: np.roll(d, 1, axis=1))


def _without(node: Node, i: int) -> Node | None:
    kept = tuple(None if j == i else s for j, s in enumerate(node.sources))
    return None if node.optional(i) is None else replace(node, sources=kept)


def _scaled(node: Node) -> Node:
    return replace(node, parameters=parameters(node.number(0) * 1.05, node.number(1), node.number(2), 10))


def _uncapped(node: Node) -> Node | None:
    return replace(node, parameters=parameters(node.number(0), node.number(1), 0.0, 10)) if node.number(2) else None


def _last_key_left_out(node: Node) -> Node:
    shorter = (source(node, 1, lambda d: d[:, :, :-1]).source(1), source(node, 2, lambda d: d[:, :, :-1]).source(2))
    mask = node.optional(3)
    rest = (None if mask is None else Operand.of(np.array(mask.data[..., :-1])), node.optional(4))
    return replace(node, sources=(node.source(0), *shorter, *rest))


FAULTS: dict[str, Callable[[Node], Node | None]] = {
    "keys of the head before": lambda node: _heads_rolled(node, 1) if node.source(1).ne[2] > 1 else None,
    "values of the head before": lambda node: _heads_rolled(node, 2) if node.source(2).ne[2] > 1 else None,
    "no mask": lambda node: _without(node, 3),
    "no sinks": lambda node: _without(node, 4),
    "another scale": _scaled,
    "no soft cap": _uncapped,
    "a key left out": lambda node: _last_key_left_out(node) if node.source(1).ne[1] > 1 else None,
    "values of the key before": lambda node: source(node, 2, lambda d: np.roll(d, 1, axis=2)),
}


@pytest.mark.parametrize("name", ["f32", "halves, f32 scores"])
@pytest.mark.parametrize("what", FAULTS)
def test_planted_faults_are_detected(what: str, name: str) -> None:
    seen = 0
    with np.errstate(all="ignore"):
        for node in _drawn(True)[:12]:
            other = FAULTS[what](node)
            if other is None:
                continue
            made = NAMES[name].compute(other)
            wrong: Judged = judge(with_output(replace(node, backend="Vulkan"), np.array(made.output.data)))
            seen += wrong.wrong > 0
    assert seen


def test_a_row_without_keys_is_zero() -> None:
    mask = np.zeros((2, 40), np.float16)
    mask[1] = -np.inf
    q, kv = Operand.of(np.ones((1, 2, 2, 64), np.float32)), Operand.of(np.ones((1, 2, 40, 64), np.float16))
    given = (q, kv, kv, Operand.of(mask))
    node = ALL_HALVES.compute(Node("FLASH_ATTN_EXT", given, Operand.blank(F32, 1, 2, 2, 64), parameters(0.125)))
    assert judge(node).passed
    data = np.array(node.output.data)
    assert not data[0, 1].any()
    data[0, 1] = -np.finfo(np.float32).max  # what split keys leave there
    assert judge(with_output(node, data)).wrong == 128


@pytest.mark.parametrize("kind", ["Q4_0", "BF16"])
def test_outputs_without_a_matching_definition_are_not_judged(kind: str) -> None:
    node = next(n for n in _drawn(True) if n.source(1).type == kind)
    data = np.random.default_rng(1).standard_normal(node.output.shape).astype(np.float32)
    with pytest.raises(NoDefinition):
        judge(with_output(replace(node, backend="Vulkan"), data))
