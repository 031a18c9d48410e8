"""GATED_LINEAR_ATTN, GATED_DELTA_NET and SOLVE_TRI: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from tests.reference.operations.test_state_space import exchanged, halved, rolled
from tests.support.operations import Fault, check_faults, computed, drawn, rows_shifted, source, stale


def test_gated_faults(llama: Llama) -> None:
    check_faults(
        llama, "GATED_LINEAR_ATTN", exchanged(0, 1), exchanged(0, 2), rolled(3, 1, "gates one token off"),
        rolled(2, 2, "another head"), rolled(4, 2, "another sequence's state"), halved(4), halved(2),
        Fault("no gate", lambda node: source(node, 3, np.ones_like)),
        Fault("the scale left out", lambda node: replace(node, parameters=parameters(1.0))),
        Fault("the last row of the new state left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def _slots_reversed(node: Node, data: np.ndarray) -> np.ndarray | None:
    slots, n, sequences = node.integer(0), node.source(2).ne[0], node.source(2).ne[3]
    rows = data[0, 0, -slots * n * sequences :].reshape(slots, -1)
    data[0, 0, -slots * n * sequences :] = rows[::-1].reshape(-1, data.shape[-1])
    return data


def test_delta_faults(llama: Llama) -> None:
    check_faults(
        llama, "GATED_DELTA_NET", exchanged(0, 1), rolled(3, 1, "gates one token off"),
        rolled(4, 2, "another head's β"),
        rolled(1, 2, "another head's key"), rolled(5, 0, "another sequence's state"), halved(5), halved(0), halved(1),
        Fault("no gate", lambda node: source(node, 3, np.zeros_like)),
        Fault("β left out", lambda node: source(node, 4, np.ones_like)),
        Fault("the state transposed", lambda node: source(node, 5, lambda s: np.swapaxes(s, -1, -2))),
        Fault("snapshots in the order of tokens", in_output=_slots_reversed),
        Fault("the last row of the new state left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_slots_that_the_tokens_do_not_reach(llama: Llama) -> None:
    node = next(node for node in drawn("GATED_DELTA_NET") if node.integer(0) == 3)
    n, heads, tokens, sequences = node.source(2).ne
    blank = Operand.blank(0, (tokens + 9 * n) * sequences, n * heads)
    made = llama.compute_node(replace(node, output=blank, parameters=parameters(9)), threads=2)
    assert made is not None
    found = judge(made)
    assert found.passed
    assert found.elements == (tokens + tokens * n) * sequences * n * heads
    assert found.definition == f"f32, {tokens} of 9 states"


def _unit_diagonal(triangle: np.ndarray) -> np.ndarray:
    at = np.arange(triangle.shape[-1])
    triangle[..., at, at] = 1
    return triangle


def test_triangle_faults(llama: Llama) -> None:
    check_faults(
        llama, "SOLVE_TRI", halved(0), halved(1), rolled(1, -1, "columns one off"), rolled(1, 1, "another matrix"),
        Fault("the upper triangle", lambda node: source(node, 0, lambda a: np.swapaxes(a, -1, -2))),
        Fault("a diagonal of ones", lambda node: source(node, 0, _unit_diagonal)),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_triangles_of_cublas(llama: Llama) -> None:
    with pytest.raises(NoDefinition, match="cuBLAS"):
        judge(replace(computed(llama, "SOLVE_TRI")[-1], backend="CUDA"))
