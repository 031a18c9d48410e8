"""Element-wise operations of one tensor, and tensors made of parameters: right on the CPU backend, and planted faults
are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from tests.support.operations import (
    Fault,
    check_faults,
    check_right,
    check_undefined,
    computed,
    rows_shifted,
    source,
    stale,
)

FUNCTIONS = {"SQR": "SIN", "SQRT": "LOG", "LOG": "SQRT", "SIN": "COS", "COS": "SIN"}
OPS = (*FUNCTIONS, "SCALE", "CLAMP", "LEAKY_RELU", "ADD1", "ADD_ID", "FILL", "ARANGE", "TIMESTEP_EMBEDDING")


@pytest.mark.parametrize("op", OPS)
def test_right(llama: Llama, op: str) -> None:
    if op in ("FILL", "ARANGE", "TIMESTEP_EMBEDDING", "ADD_ID"):
        check_right(llama, op, tight=op != "FILL")
        return
    check_right(llama, op, op != "CLAMP", lambda node: node.output.type_id == F32)
    check_right(llama, op, only=lambda node: node.output.type_id != F32)


def _half(node: Node) -> Node | None:
    """Values rounded to half."""
    if node.source(0).type_id != F32:
        return None
    return source(node, 0, lambda x: np.clip(x, -65504, 65504).astype(np.float16).astype(x.dtype))


def _parameters(node: Node, *values: float) -> Node:
    return replace(node, parameters=parameters(*values))


def _rolled(i: int) -> Callable[[Node], Node]:
    return lambda node: source(node, i, lambda x: np.roll(x, 1, axis=-1))


def _off(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    return np.multiply(data, np.float32(1 + 2.0**-20)) if data.dtype == np.float32 else None


#: Of any that has a source and rows.
SHARED = (
    Fault("in half", _half), Fault("columns one off", _rolled(0)), Fault("a row left out", in_output=stale),
    Fault("rows one off", in_output=rows_shifted), Fault("off by 2^-20", in_output=_off),
)  # fmt: skip
OWN: dict[str, tuple[Fault, ...]] = {
    "SCALE": (
        Fault("bias left out", lambda node: _parameters(node, node.number(0), 0.0)),
        Fault("bias scaled", lambda node: _parameters(node, node.number(0), node.number(0) * node.number(1))),
        Fault("divided",
              lambda node: _parameters(node, 1 / node.number(0), node.number(1)) if node.number(0) else None),
        Fault("the scale's last bit",
              lambda node: _parameters(node, float(np.nextafter(np.float32(node.number(0)), 9)), node.number(1))),
    ),
    "CLAMP": (
        Fault("no minimum", lambda node: _parameters(node, -np.inf, node.number(1))),
        Fault("no maximum", lambda node: _parameters(node, node.number(0), np.inf)),
        Fault("the minimum's last bit", lambda node: _parameters(
            node, float(np.nextafter(np.float32(node.number(0)), -9)), node.number(1))),
    ),
    "LEAKY_RELU": (
        Fault("no slope", lambda node: _parameters(node, 0.0)),
        Fault("its own sign", lambda node: _parameters(node, -node.number(0))),
        Fault("slope in half", lambda node: _parameters(node, float(np.float16(node.number(0))))),
    ),
    "ADD1": (
        Fault("multiplied", lambda node: replace(node, op="MUL") if node.output.type_id == F32 else None),
        Fault("the number in half",
              lambda node: source(node, 1, lambda z: z.astype(np.float16).astype(z.dtype))
              if node.source(1).type_id == F32 else None),
    ),
    "ADD_ID": (
        Fault("the next expert's row",
              lambda node: source(node, 2, lambda ids: ((ids + 1) % node.source(1).ne[1]).astype(np.int32))),
        Fault("ids of the next token", lambda node: source(node, 2, lambda ids: np.roll(ids, 1, axis=-2))),
        Fault("ids as their order",
              lambda node: source(node, 2, lambda ids: np.sort(ids.reshape(-1)).reshape(ids.shape))),
        Fault("rows one column off", _rolled(1)),
    ),
}  # fmt: skip
for _op, _other in FUNCTIONS.items():
    OWN[_op] = (Fault("another function", lambda node, other=_other: replace(node, op=other)),)  # type: ignore[misc]


@pytest.mark.parametrize("op", list(OWN))
def test_faults(llama: Llama, op: str) -> None:
    check_faults(llama, op, *SHARED, *OWN[op])


def test_faults_of_fill(llama: Llama) -> None:
    check_faults(
        llama, "FILL", Fault("in half", lambda node: _parameters(node, float(np.float16(node.number(0))))),
        Fault("zero", lambda node: _parameters(node, 0.0)), Fault("negative", lambda node: _parameters(node, -1.1)),
        Fault("a row left out", in_output=stale), Fault("off by 2^-20", in_output=_off),
    )  # fmt: skip


def test_faults_of_arange(llama: Llama) -> None:
    def step(change: Callable[[float], float]) -> Callable[[Node], Node]:
        def of(node: Node) -> Node:
            first, n = node.number(0), node.output.ne[0]
            by = float(np.float32(change(node.number(2))))
            return _parameters(node, first, float(np.float32(first + by * (n - 0.5))), by)

        return of

    def from_(shift: float) -> Callable[[Node], Node]:
        def of(node: Node) -> Node | None:
            first, end, by = (node.number(i) for i in range(3))
            return _parameters(node, first + shift * by, end + shift * by, by) if node.output.ne[0] > 1 else None

        return of

    def summed(node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Each element is the one before it and a step."""
        steps = np.full(data.shape, node.number(2), np.float32)
        steps[..., 0] = node.number(0)
        return np.cumsum(steps, axis=-1, dtype=np.float32)

    check_faults(
        llama, "ARANGE", Fault("from one on", in_output=lambda node, data: np.add(data, np.float32(node.number(2)))),
        Fault("no start", in_output=lambda node, data: np.subtract(data, np.float32(node.number(0)))),
        Fault("steps of one", in_output=lambda node, _data: np.float32(node.number(0)) + np.arange(
            node.output.ne[0], dtype=np.float32).reshape(1, 1, 1, -1)),
        Fault("the step in half", in_output=lambda node, _data: np.float32(node.number(0)) + np.arange(
            node.output.ne[0], dtype=np.float32).reshape(1, 1, 1, -1) * np.float32(np.float16(node.number(2)))),
        Fault("added up", in_output=summed), Fault("a row left out", in_output=stale),
    )  # fmt: skip


def test_faults_of_embeddings(llama: Llama) -> None:
    def exchanged(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        half = data.shape[-1] // 2
        return np.concatenate([data[..., half : 2 * half], data[..., :half], data[..., 2 * half :]], axis=-1)

    def interleaved(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
        half = data.shape[-1] // 2
        out = data.copy()
        out[..., : 2 * half : 2], out[..., 1 : 2 * half : 2] = data[..., :half], data[..., half : 2 * half]
        return out if half > 1 else None

    def padding(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
        if data.shape[-1] % 2 == 0:
            return None
        data[..., -1] = 1
        return data

    def shorter(node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
        """Exponents of j/(h - 1), as other models have them."""
        half = data.shape[-1] // 2
        if half < 2:
            return None
        out = data.copy()
        angles = node.source(0).values[0, 0, 0][:, None] * node.integer(1) ** (-np.arange(half) / (half - 1))
        out[..., :half], out[..., half : 2 * half] = np.cos(angles), np.sin(angles)
        return out

    check_faults(
        llama, "TIMESTEP_EMBEDDING", Fault("sines first", in_output=exchanged), Fault("pairs", in_output=interleaved),
        Fault("another period", lambda node: _parameters(node, node.integer(0), node.integer(1) + 1)),
        Fault("times in half", _half), Fault("times one off", _rolled(0)), Fault("a row left out", in_output=stale),
        Fault("padding that is not 0", in_output=padding), Fault("j over h - 1", in_output=shorter),
    )  # fmt: skip


def test_long_angles(llama: Llama) -> None:
    """The CPU backend's sine reduces any angle exactly; elsewhere long ones have no stated error."""
    x = np.geomspace(1, 1e9, 700, dtype=np.float32).reshape(1, 1, 7, 100)
    t = np.array([0, 1, 250, 999], np.float32)
    for node in (
        Node("SIN", (Operand.of(x),), Operand.blank(F32, *x.shape)),
        Node("COS", (Operand.of(x),), Operand.blank(F32, *x.shape)),
        Node("TIMESTEP_EMBEDDING", (Operand.of(t),), Operand.blank(F32, 4, 320), parameters(320, 10000)),
    ):
        made = llama.compute_node(node)
        assert made is not None
        assert judge(made).passed, judge(made)
        for backend in ("CUDA", "Vulkan"):
            with pytest.raises(NoDefinition, match="sine and cosine"):
                judge(replace(made, backend=backend))


@pytest.mark.parametrize("op", ["SQR", "SQRT", "LOG", "SIN", "COS", "SCALE", "CLAMP", "LEAKY_RELU", "ADD1"])
def test_infinities_and_nan(llama: Llama, op: str) -> None:
    x = np.tile(np.array([np.inf, -np.inf, np.nan, 1, -1, -3e38, 3e38, -0.0], np.float32), 5).reshape(1, 1, 1, -1)
    raw = {"SCALE": parameters(-1.5, 0.5), "CLAMP": parameters(-1.0, 2.0), "LEAKY_RELU": parameters(0.5)}
    sources = (Operand.of(x), Operand.of(np.ones(1, np.float32))) if op == "ADD1" else (Operand.of(x),)
    made = llama.compute_node(Node(op, sources, Operand.blank(F32, *x.shape), raw.get(op, parameters())))
    assert made is not None
    assert judge(made).passed, judge(made)


@pytest.mark.parametrize("op", OPS)
def test_nodes_without_a_definition(llama: Llama, op: str) -> None:
    node = computed(llama, op)[-1]
    wrong = [replace(node, backend="Metal"), replace(node, output=Operand.blank(24, *node.output.shape))]
    if op not in ("FILL", "ARANGE"):
        wrong += [replace(node, sources=()), replace(node, sources=(Operand.blank(F16, 2, 2), *node.sources[1:]))]
    if op == "CLAMP":
        wrong.append(_parameters(node, 1.0, -1.0))
    if op == "ADD_ID":
        for value in (-1, 64):
            wrong.append(source(node, 2, lambda ids, v=value: np.full_like(ids, v)))  # type: ignore[misc]
    if op == "ADD1":
        wrong.append(replace(node, sources=(node.source(0), node.source(0))))
    if op in ("ARANGE", "TIMESTEP_EMBEDDING"):
        wrong += [_parameters(node), _parameters(node, 0.0, 1.0, 0.0), _parameters(node, 1000, -5)]
    check_undefined(*wrong)
