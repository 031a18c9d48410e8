"""DSV4_HC_PRE, DSV4_HC_POST and DSV4_HC_COMB: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, check_right, computed, rows_shifted, source, stale

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def test_gated_and_identity_are_tight(llama: Llama) -> None:
    check_right(llama, "DSV4_HC_PRE", only=lambda node: node.integer(1) != 0)
    check_right(llama, "DSV4_HC_PRE", only=lambda node: node.integer(1) == 0)
    check_right(llama, "DSV4_HC_POST", only=lambda node: node.optional(3) is None)
    check_right(llama, "DSV4_HC_COMB", only=lambda node: node.integer(1) == 20)


def _changed(what: str, i: int, change: Change, only: Callable[[Node], bool] = lambda _: True) -> Fault:
    return Fault(what, lambda node: source(node, i, change) if node.optional(i) is not None and only(node) else None)


def _rolled(what: str, i: int, axis: int, by: int = 1) -> Fault:
    return _changed(what, i, lambda x: np.roll(x, by, axis))


def _halved(i: int) -> Fault:
    def change(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)

    return _changed(f"src[{i}] in half", i, change)


def _last_stream_left_out(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    x[..., -1, :] = 0
    return x


def _gated(node: Node) -> bool:
    return node.integer(1) != 0


def _scale_left_out(node: Node) -> Node | None:
    return replace(node, parameters=parameters(1.0, 1)) if _gated(node) else None


def test_pre_faults(llama: Llama) -> None:
    check_faults(
        llama, "DSV4_HC_PRE", _halved(0), _halved(1), _rolled("streams one off", 0, -2),
        _rolled("weights one off", 1, -1), _rolled("another token's weights", 1, -2),
        _changed("the last stream left out", 0, _last_stream_left_out),
        Fault("s left out", _scale_left_out), _changed("the gate's sign", 1, np.negative, _gated),
        _changed("gates cut at 20", 1, lambda x: np.clip(x, -20, 20), _gated),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def _without_comb(node: Node) -> Node | None:
    return replace(node, sources=node.sources[:3]) if node.optional(3) is not None else None


def test_post_faults(llama: Llama) -> None:
    check_faults(
        llama, "DSV4_HC_POST", _halved(0), _halved(1), _halved(2), _halved(3), _rolled("streams one off", 1, -2),
        _changed("comb transposed", 3, lambda x: x.swapaxes(-1, -2)), _rolled("another token's comb", 3, 1),
        _rolled("another token's x", 0, -2), _rolled("post one off", 2, -1), Fault("comb left out", _without_comb),
        _changed("the last stream left out", 1, _last_stream_left_out),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def _iterations(more: int) -> Fault:
    def of(node: Node) -> Node | None:
        count = node.integer(1) + more
        return replace(node, parameters=parameters(node.number(0), count)) if 0 < count < 6 else None

    return Fault(f"{more:+} iterations", of)


def _transposed(_node: Node, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return data.swapaxes(-1, -2)


def _rows_last(node: Node, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One more normalization, over the written streams."""
    return data / (data.sum(axis=-1, keepdims=True) + np.float32(node.number(0)))


def test_comb_faults(llama: Llama) -> None:
    check_faults(
        llama, "DSV4_HC_COMB", _iterations(1), _iterations(-1), _halved(0), _halved(1), _halved(2),
        Fault("ε left out", lambda node: replace(node, parameters=parameters(0.0, node.integer(1)))),
        _rolled("scale[1]", 1, -1), _rolled("scale[0]", 1, -1, 2), _rolled("post's part of mixes", 0, -1, 4),
        _rolled("base one off", 2, -1), _changed("base left out", 2, np.zeros_like),
        Fault("streams exchanged", in_output=_transposed), Fault("rows normalized last", in_output=_rows_last),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


@pytest.mark.parametrize(("op", "sources"), [("DSV4_HC_PRE", 2), ("DSV4_HC_POST", 4), ("DSV4_HC_COMB", 3)])
def test_shapes_and_types_that_do_not_fit(llama: Llama, op: str, sources: int) -> None:
    node = computed(llama, op)[2 if op == "DSV4_HC_POST" else 1]
    for i in range(sources):
        given = node.source(i).data
        for axis in (-1, -3):
            if op == "DSV4_HC_COMB" and (i, axis) == (1, -1):  # scale may be longer
                continue
            with pytest.raises(NoDefinition):
                judge(source(node, i, lambda x, axis=axis: np.concatenate([x, x], axis=axis)))  # type: ignore[misc]
        half = Operand.of(given.astype(np.float16))
        with pytest.raises(NoDefinition):
            judge(replace(node, sources=(*node.sources[:i], half, *node.sources[i + 1 :])))
    with pytest.raises(NoDefinition):
        judge(replace(node, backend="SYCL"))
    for backend in ("CUDA", "Vulkan"):
        assert judge(replace(node, backend=backend)).passed


def test_comb_without_definition(llama: Llama) -> None:
    node = computed(llama, "DSV4_HC_COMB")[1]
    for eps, iterations in ((1e-6, 0), (1e-6, 1 << 30), (-1.0, 2), (np.nan, 2)):
        with pytest.raises(NoDefinition):
            judge(replace(node, parameters=parameters(eps, iterations)))
    with pytest.raises(NoDefinition):  # softmaxes of one 1 each, whose zeros are then divided by each other
        judge(replace(source(node, 0, lambda x: np.multiply(x, np.float32(1e4))), parameters=parameters(0.0, 3)))
    with pytest.raises(NoDefinition):
        judge(source(node, 0, lambda x: np.copysign(np.float32(2e38), x)))


def test_comb_of_nan(llama: Llama) -> None:
    """A token of NaN is NaN, and others are judged all the same."""

    def change(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        x[..., 3, 11] = np.nan
        return x

    node = llama.compute_node(source(computed(llama, "DSV4_HC_COMB")[2], 0, change))
    assert node is not None
    assert np.isnan(node.output.data[0, 3]).all()
    assert judge(node).passed
    data = np.array(node.output.data)
    data[0, 4, 1, 1] *= np.float32(1 + 1e-5)
    found = judge(replace(node, output=Operand.of(data)))
    assert (found.wrong, found.place) == (1, (0, 4, 1, 1))
