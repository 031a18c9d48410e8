"""GET_ROWS and SET_ROWS: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32
from gguf_verify_graph.operations import Node, Operand, judge
from tests.support.operations import (
    Fault,
    check_faults,
    check_undefined,
    computed,
    drawn,
    rows_shifted,
    source,
    stale,
    with_output,
)  # fmt: skip

Data = npt.NDArray[Any]


def test_every_type(llama: Llama) -> None:
    """Rows of every type of weights are looked up, and written in every type of a cache."""
    assert {n.source(0).type for n in drawn("GET_ROWS")} == {"F32", "F16", "BF16", "I32", *FORMATS}
    assert {n.output.type for n in drawn("SET_ROWS")} == {
        "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL",
    }  # fmt: skip


def _one_off(node: Node) -> Node:
    """Each index is one more."""
    rows = (node.source(0) if node.op == "GET_ROWS" else node.output).ne[1]
    return source(node, 1, lambda z: (z + 1) % rows)


def _halves(node: Node) -> Node | None:
    if node.source(0).type_id != F32:
        return None
    return source(node, 0, lambda x: x.astype(np.float16).astype(np.float32))


def test_faults_of_get_rows(llama: Llama) -> None:
    check_faults(
        llama, "GET_ROWS", Fault("indices one off", _one_off), Fault("in half", _halves),
        Fault("another matrix's indices", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=2))),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
        Fault("values one off", in_output=lambda node, data: np.roll(data, 1, axis=-1)),
    )  # fmt: skip


def _scaled(x: Data) -> Data:
    return np.asarray(x * 1.125, x.dtype)


def _unwritten(node: Node, data: Data) -> Data:
    """The first row that is named keeps its old bytes."""
    at = int(node.source(1).data[0, 0, 0, 0])
    data[0, 0, at] = node.source(2).data[0, 0, at]
    return data


def test_faults_of_set_rows(llama: Llama) -> None:
    check_faults(
        llama, "SET_ROWS", Fault("indices one off", _one_off), Fault("in half", _halves),
        Fault("another matrix's indices", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=2))),
        Fault("rows in another order", lambda node: source(node, 0, lambda x: np.roll(x, 1, axis=2))),
        Fault("old rows are lost", lambda node: source(node, 2, np.zeros_like)),
        Fault("a row not written", in_output=_unwritten), Fault("rows one off", in_output=rows_shifted),
        Fault("values scaled", lambda node: source(node, 0, _scaled)),
    )  # fmt: skip


def test_rows_with_one_index(llama: Llama) -> None:
    """Of several rows with one index each may be there, and no other."""
    node = next(n for n in computed(llama, "SET_ROWS") if list(n.source(1).data.reshape(-1)) == [3, 0, 3, 5, 3])
    for row in (0, 2, 4):
        data = np.array(node.output.data)
        data[0, 0, 3] = node.source(0).data[0, 0, row]
        assert judge(with_output(node, data)).passed
    data[0, 0, 3] = node.source(0).data[0, 0, 1]
    assert judge(with_output(node, data)).wrong == 7


def test_nodes_without_a_definition() -> None:
    x, cache = Operand.of(np.ones((3, 32), np.float32)), Operand.blank(F32, 8, 32)
    outside, right = (Operand.of(np.array(z, np.int32)) for z in ([0, 8, 1], [0, 2, 1]))
    many, negative = Operand.of(np.arange(4, dtype=np.int32)), Operand.of(np.array([0, -1, 1], np.int32))
    get = [Node("GET_ROWS", (cache, z), Operand.blank(F32, 3, 32)) for z in (outside, negative, many, x)]
    put = [Node("SET_ROWS", (x, z, cache), cache, view_of=2) for z in (outside, negative, many, x)]
    others = [
        Node("GET_ROWS", (cache, right), Operand.blank(F16, 3, 32)),
        Node("SET_ROWS", (x, right), cache), Node("SET_ROWS", (x, right, Operand.blank(F32, 8, 31)), cache),
        Node("SET_ROWS", (x, right, cache), Operand.blank(F16, 8, 32)),
    ]  # fmt: skip
    check_undefined(*get, *put, *others)


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
def test_codes_of_other_backends(llama: Llama, backend: str) -> None:
    """A code may be another one only where its ratio lies at the boundary of both."""
    four = FORMATS["Q4_0"]
    x = np.zeros((1, 32), np.float32)
    x[0, :3] = -8, 0.5, 1.25  # d = 1: 0.5 lies between the codes 8 and 9, and 1.25 between none
    raw = four.encode(x)
    before, at = Operand.blank(four.type_id, 2, 32), Operand.of(np.array([1], np.int64))
    for place, passes in ((1, True), (2, False)):
        codes = raw.copy()
        codes[0, 2 + place] = codes[0, 2 + place] & 0xF0 | (codes[0, 2 + place] & 0x0F) - 1
        data = np.concatenate([np.zeros_like(codes), codes])
        node = Node("SET_ROWS", (Operand.of(x), at, before), Operand.of(data, four.type_id), view_of=2)
        assert judge(replace(node, backend=backend)).passed is passes
        assert not judge(node).passed
