"""What moved between releases of llama.cpp: numbers of functions, and parameters that older ones lack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import NUMBERED
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from tests.support.operations import computed


def test_functions_are_found_by_name(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a table in another order, the number of a node's parameters means another function, and that is computed."""
    monkeypatch.setitem(NUMBERED, "UNARY", ("NEG", "XIELU", "NONE_SUCH"))
    monkeypatch.setitem(NUMBERED, "GLU", ("SWIGLU_OAI", "SWIGLU_CLAMP"))
    x = Operand.of(np.array([[[[1.0, -2.0, 3.0, 4.0]]]], np.float32))

    def made(op: str, sources: tuple[Operand, ...], *given: float) -> Node | None:
        return llama.compute_node(Node(op, sources, Operand.blank(0, 1, 1, 1, 4), parameters(*given)))

    negative = made("UNARY", (x,), 0)
    assert negative is not None
    assert negative.output.values.tolist() == (-x.values).tolist()
    assert made("UNARY", (x,), 2) is None  # a function that this release lacks is not offered
    assert made("UNARY", (x,), 1, 0.8, 0.9, 0.5, -1e-6) is not None
    for number in (0, 1):
        assert made("GLU", (x, x), number, 0, 1.702, 7.0) is not None


@pytest.mark.parametrize("op", ["SSM_SCAN", "GATED_DELTA_NET"])
def test_one_state_without_the_number_of_states(llama: Llama, op: str) -> None:
    found = 0
    for node in computed(llama, op):
        if node.integer(0) == 1:
            older = replace(node, parameters=bytes(4) + node.parameters[4:])
            assert judge(older).wrong == 0
            found += 1
    assert found
