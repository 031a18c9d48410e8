"""ADD, SUB, MUL and DIV: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16
from gguf_verify_graph.operations import Node, Operand, judge
from tests.support.operations import Fault, check_faults, rows_shifted, source, stale, with_output

OPS = ("ADD", "SUB", "MUL", "DIV")


def _exchanged(node: Node) -> Node | None:
    """The operands exchanged, or, where that changes nothing, the other operation."""
    if node.source(0).shape != node.source(1).shape:
        return None
    other = {"ADD": "SUB", "SUB": "SUB", "MUL": "DIV", "DIV": "DIV"}[node.op]
    return replace(node, op=other, sources=node.sources[::-1])


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, Fault("operands exchanged", _exchanged),
        Fault("the second operand rounded to half",
              lambda node: source(node, 1, lambda z: z.astype(np.float16).astype(z.dtype))),
        Fault("repeated one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=-1))),
        Fault("the second operand's rows one off", lambda node: source(node, 1, lambda z: np.roll(z, 1, axis=-2))),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_products_beyond_the_largest_half(llama: Llama) -> None:
    """A product beyond the largest half is infinite, and one that is not must not be."""
    x = Operand.of(np.array([300, 300, 200, -300], np.float16))
    node = llama.compute_node(
        Node("MUL", (x, Operand.of(np.array([300, 1, 320, 300], np.float16))), Operand.blank(F16, 4))
    )
    assert node is not None
    assert np.isinf(node.output.data.ravel()).tolist() == [True, False, False, True]
    assert judge(node).passed
    data = np.array(node.output.data)
    for i, wrong in ((0, 65504), (1, np.inf), (2, np.inf), (3, np.inf)):
        other = data.copy()
        other[..., i] = wrong
        assert judge(with_output(node, other)).wrong == 1
