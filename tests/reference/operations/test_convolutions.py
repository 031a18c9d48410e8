"""Convolutions and their columns: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32
from gguf_verify_graph.operations import Node, NoDefinition, judge
from tests.reference.operations.test_state_space import halved, rolled
from tests.support.operations import (
    Fault,
    check_faults,
    check_undefined,
    computed,
    rows_shifted,
    source,
    stale,
    with_output,
)

CONVOLUTIONS = ("CONV_2D", "CONV_2D_DW", "CONV_3D", "CONV_TRANSPOSE_1D", "CONV_TRANSPOSE_2D")
COLUMNS = ("IM2COL", "IM2COL_3D")


def _parameter(i: int, by: int, what: str) -> Fault:
    """Parameter i changed by so much, where the kernel then still reads inside of its sources."""

    def of(node: Node) -> Node:
        given = np.frombuffer(node.parameters, "<i4").copy()
        given[i] += by
        return replace(node, parameters=given.tobytes())

    return Fault(what, of)


def _backwards(node: Node) -> Node:
    return source(node, 0, lambda w: w[..., ::-1])


def _plain(node: Node) -> bool:
    """CONV_2D_DW takes a changed source, which is contiguous, only beside another contiguous one."""
    return node.source(0).contiguous and node.source(1).contiguous


@pytest.mark.parametrize("op", CONVOLUTIONS)
def test_faults(llama: Llama, op: str) -> None:
    moves: tuple[Fault, ...] = ()
    if not op.startswith("CONV_TRANSPOSE"):  # those would write outside of their results
        wide = 3 if op == "CONV_3D" else 2
        moves = (
            _parameter(0, 1, "another stride"), _parameter(wide, 1, "padding one off"),
            _parameter(2 * wide, 1, "another dilation"),
        )  # fmt: skip
    check_faults(
        llama, op, *moves, halved(0), halved(1), Fault("the kernel backwards", _backwards),
        rolled(0, -1, "the kernel one tap off"), rolled(1, -1, "the input one off"),
        rolled(1, -2, "input rows one off"),
        Fault("the last row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted), only=_plain,
    )  # fmt: skip


def _truncated(node: Node, data: np.ndarray) -> np.ndarray | None:
    """Halves rounded towards zero: the nearest ones of a slightly smaller image."""
    return np.nextafter(data, np.float16(0)) if node.output.type_id == F16 else None


@pytest.mark.parametrize("op", COLUMNS)
def test_faults_of_columns(llama: Llama, op: str) -> None:
    wide = 3 if op == "IM2COL_3D" else 2
    check_faults(
        llama, op, _parameter(0, 1, "another stride"), _parameter(wide, 1, "padding one off"),
        _parameter(2 * wide, 1, "another dilation"), rolled(1, -1, "the image one off"),
        rolled(1, -3 if op == "IM2COL" else 0, "channels one off"), halved(1),
        Fault("halves one below", in_output=_truncated), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_faults_of_signals(llama: Llama) -> None:
    check_faults(
        llama, "COL2IM_1D", _parameter(0, 1, "another stride"), _parameter(2, 1, "padding one off"), halved(0),
        rolled(0, -1, "taps one off"), rolled(0, -2, "columns one off"),
        Fault("the last row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


@pytest.mark.parametrize("op", [*CONVOLUTIONS, *COLUMNS])
def test_an_output_that_does_not_fit(llama: Llama, op: str) -> None:
    node = computed(llama, op)[-1]
    check_undefined(replace(node, output=node.source(0)))


@pytest.mark.parametrize("op", ["CONV_2D", "CONV_3D", "CONV_TRANSPOSE_2D"])
def test_devices_that_may_compute_in_halves(llama: Llama, op: str) -> None:
    if op != "CONV_TRANSPOSE_2D":
        halves = next(node for node in computed(llama, op) if node.source(0).type_id == F16)
        with pytest.raises(NoDefinition, match="round the input"):
            judge(replace(halves, backend="CUDA"))
    floats = next(node for node in computed(llama, op) if node.source(0).type_id == F32 and node.output.data.size > 1)
    node = replace(floats, backend="Vulkan")
    assert judge(node).passed
    data = np.array(node.output.data)
    with pytest.raises(NoDefinition, match="cooperative"):
        judge(with_output(node, data.astype(np.float16).astype(np.float32)))
    data.flat[1] *= 1.01
    assert judge(with_output(node, data)).wrong == 1
