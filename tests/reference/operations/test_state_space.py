"""SSM_CONV and SSM_SCAN: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, computed, drawn, rows_shifted, source, stale


def halved(i: int) -> Fault:
    """Source i rounded to halves."""
    return Fault(f"src[{i}] in half", lambda node: source(node, i, lambda x: x.astype(np.float16).astype(x.dtype)))


def rolled(i: int, axis: int, what: str) -> Fault:
    """Source i one off along an axis."""
    return Fault(what, lambda node: source(node, i, lambda x: np.roll(x, 1, axis)))


def exchanged(i: int, j: int) -> Fault:
    """Two sources exchanged."""

    def of(node: Node) -> Node:
        given = list(node.sources)
        given[i], given[j] = given[j], given[i]
        return replace(node, sources=tuple(given))

    return Fault(f"src[{i}] and src[{j}] exchanged", of)


def test_conv_faults(llama: Llama) -> None:
    check_faults(
        llama, "SSM_CONV", Fault("the kernel backwards", lambda node: source(node, 1, lambda w: w[..., ::-1])),
        rolled(1, -1, "the kernel one tap off"), rolled(0, -1, "tokens one off"), rolled(0, -2, "channels one off"),
        halved(0), halved(1), Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def _without_softplus(node: Node) -> Node:
    """A step that softplus maps to the given one."""

    def change(dt: np.ndarray) -> np.ndarray:
        positive = np.maximum(dt.astype(np.float64), 1e-3)
        return np.where(dt > 0, np.log(np.expm1(positive)), dt).astype(np.float32)

    return source(node, 2, change)


def _states_one_off(node: Node, data: np.ndarray) -> np.ndarray:
    y = node.source(1).values.size
    data[..., y:] = np.roll(data[..., y:], 1, -1)
    return data


def test_scan_faults(llama: Llama) -> None:
    check_faults(
        llama, "SSM_SCAN", exchanged(4, 5), rolled(6, -1, "another sequence's state"),
        rolled(2, -1, "another head's step"), rolled(3, -2, "another head's decay"),
        rolled(4, 2, "another group"), rolled(1, 1, "tokens one off"), halved(0), halved(5),
        Fault("softplus left out", _without_softplus), Fault("new states one off", in_output=_states_one_off),
        Fault("the state not carried on", lambda node: source(node, 0, np.zeros_like)),
    )  # fmt: skip


def test_slots_that_the_tokens_do_not_reach(llama: Llama) -> None:
    node = next(node for node in drawn("SSM_SCAN") if node.integer(0) == 2)
    y, state = node.source(1).values.size, node.source(1).values.size * node.source(0).ne[0] // node.source(1).ne[2]
    more = replace(node, output=Operand.blank(0, y + 6 * state), parameters=parameters(6))
    made = llama.compute_node(more, threads=2)
    assert made is not None
    found = judge(made)
    assert found.passed
    assert found.elements == y + 4 * state
    assert found.definition == "f32, 4 of 6 states"


def test_a_state_out_of_range(llama: Llama) -> None:
    node = computed(llama, "SSM_SCAN")[1]
    with pytest.raises(NoDefinition, match="out of range"):
        judge(source(node, 6, lambda ids: ids + 100))


def test_products_of_matrices_on_cuda() -> None:
    shapes = ((1, 1, 8, 4), (1, 129, 1, 8), (1, 129, 1), (1, 1), (1, 129, 1, 4), (1, 129, 1, 4))
    sources = (*(Operand.of(np.zeros(shape, np.float32)) for shape in shapes), Operand.of(np.zeros(1, np.int32)))
    node = Node("SSM_SCAN", sources, Operand.blank(0, 129 * 8 + 32), parameters(1), backend="CUDA")
    with pytest.raises(NoDefinition, match="products of matrices"):
        judge(node)
