"""Sums: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import BF16, F16, F32, I64
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge
from tests.support.operations import Fault, check_faults, check_right, computed, rows_shifted, source, with_output

OPS = ("SUM", "SUM_ROWS", "MEAN", "CUMSUM", "REPEAT_BACK")
Data = npt.NDArray[Any]


@pytest.mark.parametrize("op", OPS)
def test_right(llama: Llama, op: str) -> None:
    check_right(llama, op)


def test_right_counts(llama: Llama) -> None:
    check_right(llama, "COUNT_EQUAL", tight=False)


def _sources(change: Callable[[Data], Data]) -> Callable[[Node], Node | None]:
    return lambda node: None if node.source(0).type_id == BF16 else source(node, 0, change)


def _last_left_out(x: Data) -> Data:
    x[..., -1] = 0
    return x


def _last_row_left_out(x: Data) -> Data:
    x[..., -1, :] = 0
    return x


def _half_sums(node: Node, data: Data) -> Data | None:
    """Sums of rows that are added in half."""
    if data.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        return np.where(np.abs(data) < 60000, data.astype(np.float16), data).astype(np.float32)


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    own = {
        "SUM": Fault("twice", in_output=lambda node, data: data if data.dtype.kind == "u" else data * 2),
        "SUM_ROWS": Fault("the mean", lambda node: replace(node, op="MEAN")),
        "MEAN": Fault("the sum", lambda node: replace(node, op="SUM_ROWS")),
        "CUMSUM": Fault("without its own value", in_output=lambda node, data: data - node.source(0).data),
        "REPEAT_BACK": Fault("the first one alone", in_output=lambda node, data: node.source(0).data[
            tuple(slice(n) for n in data.shape)]),
    }  # fmt: skip
    rows = () if op == "SUM" else (Fault("rows one off", in_output=rows_shifted),)
    check_faults(
        llama, op, own[op], *rows, Fault("the last values left out", _sources(_last_left_out)),
        Fault("the last rows left out", _sources(_last_row_left_out)),
        Fault("values in half", _sources(lambda x: x.astype(np.float16).astype(x.dtype))),
        Fault("sums in half", in_output=_half_sums), Fault("magnitudes", _sources(np.abs)),
    )  # fmt: skip


def test_faults_of_counts(llama: Llama) -> None:
    check_faults(
        llama, "COUNT_EQUAL", Fault("one more", in_output=lambda node, data: data + 1),
        Fault("those that differ", in_output=lambda node, data: node.source(0).data.size - data),
        Fault("rows one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=2))),
        Fault("values one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=3))),
        Fault("the last row left out", lambda node: source(node, 1, lambda z: _last_row_left_out(z + 1) - 1)),
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
@pytest.mark.parametrize("op", OPS)
def test_other_backends_may_add_like_the_cpu(llama: Llama, op: str, backend: str) -> None:
    """What is added one by one, or in double, is among what other backends may add, and a wrong sum is not."""
    for node in computed(llama, op):
        assert judge(replace(node, backend=backend)).passed
    node = max(computed(llama, op), key=lambda each: each.source(0).data.size if each.output.type_id == F32 else 0)
    off = np.array(node.output.data)
    off[(0,) * 4] += np.abs(node.source(0).values).sum() * 2.0**-10
    assert judge(with_output(replace(node, backend=backend), off)).wrong == 1


def test_counts_of_more_dimensions(llama: Llama) -> None:
    """The CPU backend counts wrong rows where there are more than two dimensions (v0.5.0); a wrong count fails."""
    x, z = np.zeros((3, 4, 5), np.int32), np.zeros((3, 4, 5), np.int32)
    x[2, 3] = 1
    node = llama.compute_node(Node("COUNT_EQUAL", (Operand.of(x), Operand.of(z)), Operand.blank(I64, 1)))
    assert node is not None
    found = judge(node)
    assert found.expected == 55
    assert found.passed == (found.got == 55)


def test_nodes_without_a_definition() -> None:
    x, half = Operand.of(np.ones((3, 7), np.float32)), Operand.of(np.ones((3, 7), np.float16))
    for node in (
        Node("SUM", (x,), Operand.blank(F16, 1)), Node("SUM", (x,), Operand.blank(F32, 3)),
        Node("SUM", (Operand.blank(F32, 3, 0),), Operand.blank(F32, 1)),
        Node("SUM_ROWS", (half,), Operand.blank(F16, 3, 1)), Node("SUM_ROWS", (x,), Operand.blank(F32, 2, 1)),
        Node("MEAN", (x,), Operand.blank(F32, 1)), Node("CUMSUM", (x,), Operand.blank(F32, 3, 6)),
        Node("REPEAT_BACK", (x,), Operand.blank(F32, 2, 7)), Node("COUNT_EQUAL", (x, x), Operand.blank(I64, 1)),
        Node("SUM", (x,), Operand.blank(F32, 1), backend="SYCL"),
    ):  # fmt: skip
        with pytest.raises(NoDefinition):
            judge(node)
