"""ARGSORT, TOP_K and ARGMAX: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F32, I32
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, check_undefined, rows_shifted, source, stale, with_output

OPS = ("ARGSORT", "TOP_K", "ARGMAX")
Data = npt.NDArray[Any]


def _twice(node: Node, data: Data) -> Data | None:
    if data.shape[3] < 2 or node.op == "ARGMAX":
        return None
    data[..., 1] = data[..., 0]
    return data


def _exchanged(node: Node, data: Data) -> Data:
    """The first and the last index exchanged."""
    return np.concatenate([data[..., -1:], data[..., 1:-1], data[..., :1]], axis=-1) if data.shape[3] > 1 else data


def _outside(node: Node, data: Data) -> Data:
    data[..., -1] = node.source(0).ne[0]
    return data


def _negative(node: Node, data: Data) -> Data:
    data[..., 0] = -1
    return data


def _one_off(node: Node, data: Data) -> Data:
    return (data + 1) % node.source(0).ne[0]


_OWN = {
    "ARGSORT": (Fault("the other order", lambda node: replace(node, parameters=parameters(1 - node.integer(0)))),
                Fault("an index twice", in_output=_twice), Fault("two exchanged", in_output=_exchanged),
                Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted)),
    "TOP_K": (Fault("an index twice", in_output=_twice), Fault("a row left out", in_output=stale),
              Fault("rows one off", in_output=rows_shifted)),
    "ARGMAX": (Fault("rows exchanged", in_output=_exchanged),),
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, *_OWN[op], Fault("the least", lambda node: source(node, 0, np.negative)),
        Fault("magnitudes", lambda node: source(node, 0, np.abs)), Fault("one off", in_output=_one_off),
        Fault("beyond the end", in_output=_outside), Fault("before the start", in_output=_negative),
    )  # fmt: skip


def test_ties() -> None:
    """Equal values may come in any order, and any of them may fill up the greatest."""
    x = Operand.of(np.array([[2, 1, 2, 1, 0]], np.float32))
    for order in ([0, 2, 1, 3, 4], [2, 0, 3, 1, 4]):
        assert judge(Node("ARGSORT", (x,), Operand.of(np.array([order], np.int32)), parameters(1))).passed
    for chosen, wrong in (([1, 0, 2], 0), ([2, 3, 0], 0), ([0, 1, 3], 1), ([4, 0, 2], 1), ([2, 2, 0], 1)):
        assert judge(Node("TOP_K", (x,), Operand.of(np.array([chosen], np.int32)))).wrong == wrong
    for i, wrong in enumerate((0, 1, 0, 1, 1)):
        assert judge(Node("ARGMAX", (x,), Operand.of(np.array([i], np.int32)))).wrong == wrong


def test_nodes_without_a_definition() -> None:
    x, out = Operand.of(np.ones((3, 7), np.float32)), Operand.blank(I32, 3, 7)
    nan = Operand.of(np.full((3, 7), np.nan, np.float32))
    check_undefined(
        Node("ARGSORT", (x,), out, parameters(2)), Node("ARGSORT", (nan,), out), Node("ARGSORT", (x,), x),
        Node("ARGSORT", (x,), Operand.blank(I32, 3, 6)), Node("TOP_K", (x,), Operand.blank(I32, 3, 8)),
        Node("TOP_K", (x,), Operand.blank(I32, 2, 7)), Node("ARGMAX", (x,), out),
        Node("ARGMAX", (Operand.blank(F32, 3, 0),), Operand.blank(I32, 3)),
    )  # fmt: skip


def test_the_wrong_place_is_reported() -> None:
    x = Operand.of(np.arange(6, dtype=np.float32).reshape(2, 3))
    node = Node("ARGSORT", (x,), Operand.of(np.array([[0, 1, 2], [0, 1, 2]], np.int32)))
    data = np.array(node.output.data)
    data[0, 0, 1] = 0, 0, 2
    found = judge(with_output(node, data))
    assert (found.wrong, found.place, found.got, found.expected) == (1, (0, 0, 1, 1), 0, 1)
