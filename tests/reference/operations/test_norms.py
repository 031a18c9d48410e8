"""Norms: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.llama import Llama
from gguf_verify.operations import Node, parameters
from tests.support.operations import Fault, check_faults, check_right, rows_shifted, source, stale

OPS = ("RMS_NORM", "NORM", "L2_NORM", "GROUP_NORM")
#: Another norm that a kernel may take for it.
MISTAKEN = {"RMS_NORM": "NORM", "NORM": "RMS_NORM", "L2_NORM": "RMS_NORM", "GROUP_NORM": "RMS_NORM"}


@pytest.mark.parametrize("op", OPS)
def test_right(llama: Llama, op: str) -> None:
    check_right(llama, op)


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
