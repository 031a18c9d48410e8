"""FLASH_ATTN_EXT: right on the CPU backend by each of its paths, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, check_undefined, computed, rows_shifted, source, stale

OP = "FLASH_ATTN_EXT"


def test_random_nodes_cover_all_paths_with_tight_bounds(llama: Llama) -> None:
    worst: dict[str, float] = {}
    for node in computed(llama, OP):
        one = judge(node)
        worst[one.definition] = max(worst.get(one.definition, 0.0), one.utilisation)
    for path in ("half sums", "f32 sums", "tiles, f32 sums", "split, half sums"):
        assert worst[f"K F16, V F16, {path}" if path != "f32 sums" else "K F32, V F32, f32 sums"] > 1 / 32, worst


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_parts_of_any_size_are_right(llama: Llama, threads: int) -> None:
    for node in computed(llama, OP):
        if "split" in judge(node).definition:
            again = llama.compute_node(node, threads=threads)
            assert again is not None
            assert judge(again).passed


def _constant(shape: tuple[int, ...], value: float) -> Operand:
    return Operand.of(np.full(shape, value, np.float16))


@pytest.mark.parametrize("value", [1.0, 0.7001953125, -0.333251953125])
@pytest.mark.parametrize(("keys", "tokens"), [(400, 2), (3000, 2), (3000, 1)])
def test_roundings_in_one_direction_are_right(llama: Llama, value: float, keys: int, tokens: int) -> None:
    """Equal keys and values: a sum in half loses the same at each step, and all of an addend in the end."""
    queries = Operand.of(np.random.default_rng(1).standard_normal((1, 2, tokens, 128)).astype(np.float32))
    sources = (queries, _constant((1, 1, keys, 128), 0.25), _constant((1, 1, keys, 128), value))
    node = Node(OP, sources, Operand.blank(0, 1, tokens, 2, 128), parameters(0.125, 0.0, 0.0))
    for threads in (1, 2):
        made = llama.compute_node(node, threads=threads)
        assert made is not None
        assert judge(made).passed


def _without(i: int) -> Fault:
    def of(node: Node) -> Node | None:
        if node.optional(i) is None:
            return None
        sources = list(node.sources)
        sources[i] = None
        return replace(node, sources=tuple(sources))

    return Fault(f"src[{i}] left out", of)


def _rolled(i: int, axis: int) -> Fault:
    def of(node: Node) -> Node | None:
        return None if node.optional(i) is None else source(node, i, lambda data: np.roll(data, 1, axis=axis))

    return Fault(f"src[{i}] one off along axis {axis}", of)


def _with(i: int, factor: float) -> Fault:
    def of(node: Node) -> Node | None:
        values = [node.number(j) * (factor if i == j else 1) for j in range(3)]
        return replace(node, parameters=parameters(*values)) if node.number(i) else None

    return Fault(f"parameter {i} times {factor}", of)


def _last_key(node: Node) -> Node | None:
    """The last key is left out."""
    mask = node.optional(3)
    if mask is None:
        return None

    def masked(data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        data[..., -1] = np.float16(-np.inf)
        return data

    return source(node, 3, masked)


def _tokens_one_off(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    return np.roll(data, 1, axis=1) if data.shape[1] > 1 else None


def test_faults(llama: Llama) -> None:
    check_faults(
        llama, OP, _without(3), _without(4), _rolled(3, -2), _rolled(3, 1), _rolled(2, -2), _rolled(1, -2),
        _rolled(1, 1), _rolled(4, -1), _with(0, 1.001), _with(1, 1.01), _with(2, 1.01),
        Fault("the last key left out", _last_key),
        Fault("queries rounded to half", lambda node: source(node, 0, lambda q: q.astype(np.float16).astype(q.dtype))),
        Fault("a row left out", in_output=stale), Fault("heads one off", in_output=rows_shifted),
        Fault("tokens one off", in_output=_tokens_one_off),
    )  # fmt: skip


def test_nodes_without_a_definition(llama: Llama) -> None:
    node = computed(llama, OP)[0]
    others = (
        replace(node, backend="Metal"), source(node, 0, lambda q: np.full_like(q, np.inf)),
        source(node, 2, lambda v: np.full_like(v, np.nan)),
        source(node, 2, lambda v: np.full_like(v, 60000)), source(node, 1, lambda k: k[..., :-1, :]),
        source(node, 1, lambda k: np.concatenate([k] * 3, axis=1)),
    )  # fmt: skip
    check_undefined(*others)
