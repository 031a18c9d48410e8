"""CPY, CONT, DUP, CONCAT and REPEAT: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32, I64
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from tests.support.operations import (
    Fault,
    check_faults,
    check_undefined,
    computed,
    rows_shifted,
    source,
    stale,
    with_output,
)  # fmt: skip

OPS = ("CPY", "CONT", "DUP", "CONCAT", "REPEAT")
Data = npt.NDArray[Any]


def last_bit(node: Node, data: Data) -> Data | None:
    """The last bit of the middle value."""
    bits = data.view(f"<u{data.itemsize}")
    if not bits.size or (data.dtype.kind == "f" and not np.isfinite(data).all()):
        return None
    bits[tuple(n // 2 for n in bits.shape)] ^= 1
    return data


def values_shifted(node: Node, data: Data) -> Data:
    """Each value of a row is the one before it."""
    return np.roll(data, 1, axis=-1)


def planes_shifted(node: Node, data: Data) -> Data:
    """Each matrix is the one before it."""
    return np.roll(data, 1, axis=1)


def _steps_ignored(node: Node) -> Node | None:
    """A source read as if its values followed each other."""
    x = node.source(0)
    if x.contiguous:
        return None
    flat = x.span if x.blocks else x.span.view(x.data.dtype)
    return replace(node, sources=(Operand.of(flat.reshape(x.data.shape), x.type_id), *node.sources[1:]))


def _scaled(node: Node) -> Node | None:
    if node.source(0).type_id != F32:
        return None
    return source(node, 0, lambda x: np.multiply(x, 1.125).astype(np.float32))


def _by_itself(node: Node, data: Data) -> Data:
    """Values repeated one after the other."""
    x = node.source(0).data
    for axis in range(4):
        x = np.repeat(x, data.shape[axis] // x.shape[axis], axis=axis)
    return x


_OWN = {
    "CPY": Fault("source scaled", _scaled),
    "CONT": Fault("steps ignored", _steps_ignored), "DUP": Fault("steps ignored", _steps_ignored),
    "CONCAT": Fault("the second one twice", lambda node: replace(node, sources=(
        node.source(0), Operand.of(np.roll(node.source(1).data, 1, axis=2), node.source(1).type_id)))),
    "REPEAT": Fault("each value by itself", in_output=_by_itself),
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, _OWN[op], Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
        Fault("values one off", in_output=values_shifted), Fault("matrices one off", in_output=planes_shifted),
        Fault("the last bit", in_output=last_bit),
    )  # fmt: skip


def _quantized(llama: Llama) -> list[Node]:
    return [n for n in computed(llama, "CPY") if n.output.blocks and not n.source(0).blocks]


def test_faults_of_quantized_blocks(llama: Llama) -> None:
    """A wrong scale, a wrong code and a wrong minimum are seen in each type that a cache is quantized to."""
    seen = set()
    for node in _quantized(llama):
        fmt = FORMATS[node.output.type]
        blocks = np.array(node.output.data).reshape(-1, fmt.block_bytes)
        whole = np.flatnonzero(np.abs(fmt.decode(blocks)).max(axis=-1) > 1e-3)[0]
        for field in fmt.dtype.names or ():
            wrong = blocks.copy()
            part = fmt.view(wrong)[field][whole : whole + 1]
            part.view(np.uint8)[..., 0] ^= 1
            fmt.view(wrong)[field][whole : whole + 1] = part
            verdict = judge(with_output(node, wrong.reshape(node.output.data.shape)))
            assert verdict.wrong == 1, (fmt.name, field)
            seen.add((fmt.name, field))
    assert {name for name, _ in seen} == {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"}


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
def test_other_backends_may_round_like_the_cpu(llama: Llama, backend: str) -> None:
    """What the CPU wrote is among what other backends may write, but for the codes that it leaves unset."""
    for node in _quantized(llama):
        if node.output.type != "IQ4_NL":
            assert judge(replace(node, backend=backend)).passed, node.output.type


def test_halves_towards_zero() -> None:
    """Vulkan may round to half towards zero, and flush what is subnormal; the others may not."""
    x = Operand.of(np.array([[1 + 2.0**-10 - 2.0**-14, 2.0**-20]], np.float32))
    for data, passing in (
        ([1 + 2.0**-10, 2.0**-20], ("CPU", "CUDA", "Vulkan")), ([1, 2.0**-20], ("Vulkan",)),
        ([1 + 2.0**-10, 0], ("Vulkan",)), ([1 - 2.0**-11, 2.0**-20], ()),
    ):  # fmt: skip
        out = Operand.of(np.array([data], np.float16))
        passed = [b for b in ("CPU", "CUDA", "Vulkan") if judge(Node("CPY", (x, out), out, backend=b)).passed]
        assert passed == list(passing)


def test_nodes_without_a_definition() -> None:
    x = Operand.of(np.ones((3, 32), np.float32))
    check_undefined(
        Node("CPY", (x,), Operand.blank(F32, 3, 31)), Node("CPY", (x,), Operand.blank(FORMATS["Q4_K"].type_id, 3, 256)),
        Node("CPY", (x,), Operand.blank(I64, 3, 32)), Node("CONT", (), Operand.blank(F32, 3, 32)),
        Node("CPY", (Operand.of(np.full((1, 32), np.nan, np.float32)),), Operand.blank(FORMATS["Q8_0"].type_id, 1, 32)),
        Node("CPY", (x,), Operand.blank(FORMATS["Q8_0"].type_id, 3, 32), backend="SYCL"),
        Node("CPY", (x,), Operand.blank(F16, 3, 32), backend="SYCL"),
        Node("CONCAT", (x, x), Operand.blank(F32, 6, 32), parameters(0)),
        Node("CONCAT", (x, x), Operand.blank(F32, 6, 32), parameters(7)),
        Node("REPEAT", (x,), Operand.blank(F32, 4, 32)), Node("REPEAT", (x,), Operand.blank(F16, 6, 32)),
    )  # fmt: skip
