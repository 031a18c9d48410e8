"""Norms: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, rows_shifted, source, stale, with_output

OPS = ("RMS_NORM", "NORM", "L2_NORM", "GROUP_NORM")
#: Another norm that a kernel may take for it.
MISTAKEN = {"RMS_NORM": "NORM", "NORM": "RMS_NORM", "L2_NORM": "RMS_NORM", "GROUP_NORM": "RMS_NORM"}


def _epsilon(factor: float) -> Fault:
    def of(node: Node) -> Node:
        if node.op == "GROUP_NORM":
            return replace(node, parameters=parameters(node.integer(0), 1e5 * factor * node.number(1)))
        return replace(node, parameters=parameters(factor * node.number(0)))

    return Fault(f"ε times {factor}", of)


def _half(node: Node) -> Node:
    """Activations rounded to half."""
    return source(node, 0, lambda x: x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, _epsilon(1e4), Fault("in half", _half),
        Fault("another norm", lambda node: replace(node, op=MISTAKEN[op], parameters=parameters(1e-5))),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
        Fault("the last value left out of the sum", _last_left_out),
    )  # fmt: skip


def _last_left_out(node: Node) -> Node:
    def change(x: np.ndarray) -> np.ndarray:
        x[..., -1] = 0
        return x

    return source(node, 0, change)


# ---- NORM in one pass, as on GPUs ------------------------------------------------------------------------------------


def _in_one_pass(x: npt.NDArray[np.float32], eps: float, backend: str) -> Node:
    n, one = np.float32(x.shape[-1]), np.float32(1)
    mean = x.sum(axis=-1, keepdims=True) / n
    variance = (x * x).sum(axis=-1, keepdims=True) / n - mean * mean
    y = (x - mean) * (one / np.sqrt(variance + np.float32(eps)))
    return Node("NORM", (Operand.of(x),), Operand.of(y), parameters(eps), backend=backend)


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
def test_a_variance_that_lost_digits_is_right_in_one_pass(backend: str) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((4, 5, 96)) + 30).astype(np.float32)
    node = _in_one_pass(x, 1e-5, backend)
    assert judge(node).passed
    assert judge(node).utilisation > 1 / 100
    assert not judge(replace(node, backend="CPU")).passed
    wrong = np.array(node.output.data)
    wrong[0, 1, 2] *= 1.05
    assert judge(with_output(node, wrong)).wrong == 96
    near = _in_one_pass(x - np.float32(30), 1e-5, backend)
    assert judge(near).passed
    wrong = np.array(near.output.data)
    wrong[0, 1, 2] *= 1.0001
    assert judge(with_output(near, wrong)).wrong > 90


def test_a_variance_without_digits_has_no_definition() -> None:
    x = (np.random.default_rng(3).standard_normal((4, 96)) + 30000).astype(np.float32)
    with pytest.raises(NoDefinition, match="digits"):
        judge(_in_one_pass(x, 1e-5, "Vulkan"))
