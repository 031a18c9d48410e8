"""LIGHTNING_INDEXER: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import Doubles
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge
from tests.support.operations import Fault, check_faults, computed, rows_shifted, source, stale
from tests.support.operations import with_output as given

OP = "LIGHTNING_INDEXER"


def _rolled(what: str, i: int, axis: int) -> Fault:
    return Fault(what, lambda node: source(node, i, lambda x: np.roll(x, 1, axis)))


def _zeroed(what: str, i: int, index: tuple[object, ...]) -> Fault:
    def change(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        x[index] = 0  # type: ignore[index]
        return x

    return Fault(what, lambda node: source(node, i, change))


def _in_half(i: int) -> Fault:
    return Fault(f"src[{i}] in half", lambda node: source(node, i, lambda x: x.astype(np.float16).astype(np.float32)))


def _scores(node: Node, of_product: Callable[[Doubles], Doubles]) -> npt.NDArray[np.float32]:
    q, k, w, mask = (node.source(i).values for i in range(4))
    z = np.einsum("sthi,ski->sthk", q, k[:, :, 0])
    y = np.einsum("sth,sthk->stk", w[:, 0], of_product(z))[:, None]
    return (y + np.tile(mask, (len(q) // len(mask), 1, 1, 1))).astype(np.float32)


def _without_relu(node: Node, _data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return _scores(node, lambda z: z)


def _sums_in_half(node: Node, _data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    with np.errstate(over="ignore", invalid="ignore"):
        return _scores(node, lambda z: np.maximum(z, 0).astype(np.float16).astype(np.float64))


def _repeated_masks(node: Node) -> Node | None:
    """Streams that follow each other share a mask, not every second one."""
    mask, streams = node.source(3).data, node.source(0).ne[3]
    if len(mask) in (1, streams):
        return None
    return source(node, 3, lambda x: np.repeat(x, streams // len(x), axis=0))


def _of_a_common_type(node: Node) -> bool:
    return node.source(1).type in ("F32", "F16", "Q4_0", "Q8_0")


def test_faults(llama: Llama) -> None:
    check_faults(
        llama, OP, _in_half(0), _in_half(2), _rolled("keys one off", 1, 1), _rolled("another stream's keys", 1, 0),
        _rolled("weights one head off", 2, -1), _rolled("another token's weights", 2, -2),
        _rolled("the mask one token off", 3, -2), _rolled("the mask one key off", 3, -1),
        Fault("the mask left out", lambda node: source(node, 3, np.zeros_like)),
        Fault("masks of the wrong streams", _repeated_masks), _zeroed("the last head left out", 2, (..., -1)),
        _zeroed("the last value of a row left out", 0, (..., -1)),
        _zeroed("the last key left out", 1, (slice(None), -1)),
        Fault("no max(0, ·)", in_output=_without_relu), Fault("products in half", in_output=_sums_in_half),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
        only=_of_a_common_type,
    )  # fmt: skip


def test_a_negative_product_counts_as_zero(llama: Llama) -> None:
    """Where all products are negative, the score is the mask itself."""
    node = source(source(computed(llama, OP)[0], 0, np.abs), 1, lambda k: -np.abs(k) - 1)
    made = llama.compute_node(node)
    assert made is not None
    assert judge(made).passed
    data = np.array(made.output.data)
    place = tuple(int(i[0]) for i in np.nonzero(np.isfinite(data)))
    data[place] += np.float32(1e-30) + np.float32(1e-7) * np.abs(data[place])
    data[place] = np.nextafter(data[place], np.float32(np.inf))
    found = judge(given(made, data))
    assert (found.wrong, found.place) == (1, place)


def _on_cuda(node: Node) -> Node:
    """The node as a card with tensor cores computes it, in exact sums."""
    q, k = node.source(0), node.source(1)
    halves = [Operand.of(x.values.astype(np.float16).astype(np.float32)) for x in (q, k)]
    data = _scores(replace(node, sources=(*halves, *node.sources[2:])), lambda z: np.maximum(z, 0))
    return replace(given(node, data), backend="CUDA")


def test_cuda_has_two_definitions(llama: Llama) -> None:
    seen = set()
    for node in computed(llama, OP):
        kind = node.source(1).type
        if kind in ("F32", "BF16", "F16", "Q4_0", "Q5_0", "Q8_0"):
            assert judge(replace(node, backend="CUDA")).definition == f"{kind} keys, f32"
            found = judge(_on_cuda(node))
            seen.add((kind, found.passed))
        else:
            with pytest.raises(NoDefinition):
                judge(replace(node, backend="CUDA"))
    assert {kind for kind, passed in seen if passed} >= {"F16", "Q4_0", "Q5_0", "Q8_0"}
    assert ("F16", False) not in seen
    assert ("F32", False) in seen


def test_shapes_and_types_that_do_not_fit(llama: Llama) -> None:
    node = computed(llama, OP)[-4]
    for i in range(4):
        for axis in (0, 2, 3):
            if (i, axis) != (3, 0):
                with pytest.raises(NoDefinition):
                    judge(source(node, i, lambda x, axis=axis: np.concatenate([x, x, x], axis=axis)))  # type: ignore[misc]
        whole = Operand.of(np.zeros(node.source(i).shape, np.int32))
        with pytest.raises(NoDefinition):
            judge(replace(node, sources=(*node.sources[:i], whole, *node.sources[i + 1 :])))
    with pytest.raises(NoDefinition):
        judge(replace(node, backend="SYCL"))
    assert judge(replace(node, backend="Vulkan")).passed
