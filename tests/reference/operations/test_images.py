"""UPSCALE, POOL_1D and POOL_2D: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, check_undefined, computed, rows_shifted, source, stale

OPS = ("UPSCALE", "POOL_1D", "POOL_2D")
Data = npt.NDArray[Any]


def _changed(i: int, change: Callable[[int], int]) -> Callable[[Node], Node]:
    def of(node: Node) -> Node:
        given = np.frombuffer(node.parameters, "<i4").copy()
        given[i] = change(int(given[i]))
        return replace(node, parameters=given.tobytes())

    return of


def _half(x: Data) -> Data:
    return x.astype(np.float16).astype(x.dtype)


_POOL = (Fault("average or greatest", _changed(0, lambda how: 1 - how)),)
_OWN = {
    "UPSCALE": (Fault("between pixels, or not", _changed(0, lambda mode: mode ^ 1)),
                Fault("corners aligned, or not", _changed(0, lambda mode: mode ^ 256)),
                Fault("columns one off", lambda node: source(node, 0, lambda x: np.roll(x, 1, axis=-1)))),
    "POOL_1D": (*_POOL, Fault("the padding one off", _changed(3, lambda p: p + 1 if p else p)),
                Fault("a window of one more", _changed(1, lambda k: k + 1))),
    "POOL_2D": (*_POOL, Fault("the padding one off", _changed(5, lambda p: p + 1 if p else p)),
                Fault("a window of one more", _changed(1, lambda k: k + 1))),
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, *_OWN[op], Fault("in half", lambda node: source(node, 0, _half)),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
        Fault("values one off", in_output=lambda node, data: np.roll(data, 1, axis=-1)),
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
@pytest.mark.parametrize("op", OPS)
def test_other_backends_may_round_like_the_cpu(llama: Llama, op: str, backend: str) -> None:
    for node in computed(llama, op):
        assert judge(replace(node, backend=backend)).passed


def test_nodes_without_a_definition() -> None:
    x = Operand.of(np.ones((6, 8), np.float32))
    nan = Operand.of(np.full((6, 8), np.nan, np.float32))
    check_undefined(
        Node("UPSCALE", (x,), Operand.blank(F32, 12, 16), parameters(2)),
        Node("UPSCALE", (x,), Operand.blank(F32, 12, 16), parameters(513)),
        Node("UPSCALE", (x,), Operand.blank(F16, 12, 16), parameters(0)),
        Node("UPSCALE", (x,), Operand.blank(F32, 12, 0), parameters(0)),
        Node("POOL_1D", (x,), Operand.blank(F32, 6, 4), parameters(2, 2, 2, 0)),
        Node("POOL_1D", (x,), Operand.blank(F32, 6, 5), parameters(0, 2, 2, 0)),
        Node("POOL_1D", (x,), Operand.blank(F32, 5, 4), parameters(0, 2, 2, 0)),
        Node("POOL_1D", (nan,), Operand.blank(F32, 6, 4), parameters(0, 2, 2, 0)),
        Node("POOL_1D", (x,), Operand.blank(F32, 6, 4), parameters(0, 2, 0, 0)),
        Node("POOL_2D", (x,), Operand.blank(F32, 3, 4), parameters(0, 2, 2, 2, 2, 2, 2)),
        Node("POOL_2D", (x,), Operand.blank(F32, 3, 4), parameters(0, 1 << 30, 2, 2, 2, 0, 0)),
    )  # fmt: skip
