"""UNARY, variant by variant: right on the CPU backend, planted faults are seen, and other backends' formulas fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from gguf_verify_graph.operations.unary import VARIANTS
from tests.support.operations import (
    Fault,
    check_faults,
    check_right,
    check_undefined,
    computed,
    drawn,
    rows_shifted,
    source,
    stale,
)

#: Variants that are not rounded: any error at all is wrong.
FIXED = ("ABS", "SGN", "NEG", "STEP", "RELU", "FLOOR", "CEIL", "ROUND", "TRUNC")
#: Another function that a kernel may take for it.
MISTAKEN = {
    "ABS": "RELU", "SGN": "STEP", "NEG": "ABS", "STEP": "SGN", "TANH": "SIGMOID", "ELU": "EXPM1", "RELU": "ELU",
    "SIGMOID": "HARDSIGMOID", "GELU": "GELU_ERF", "GELU_QUICK": "SILU", "SILU": "GELU_QUICK", "HARDSWISH": "SILU",
    "HARDSIGMOID": "SIGMOID", "EXP": "EXPM1", "EXPM1": "EXP", "SOFTPLUS": "RELU", "GELU_ERF": "GELU", "XIELU": "ELU",
    "FLOOR": "TRUNC", "CEIL": "ROUND", "ROUND": "FLOOR", "TRUNC": "ROUND",
}  # fmt: skip


def _of(variant: str, *types: int) -> Callable[[Node], bool]:
    return lambda node: node.variant == variant and (not types or node.output.type_id in types)


@pytest.mark.parametrize("variant", VARIANTS)
def test_right(llama: Llama, variant: str) -> None:
    check_right(llama, "UNARY", variant not in FIXED, _of(variant, F32))
    check_right(llama, "UNARY", variant not in FIXED, lambda node: _of(variant)(node) and node.output.type_id != F32)


def _replaced(node: Node) -> Node:
    return replace(node, parameters=parameters(VARIANTS.index(MISTAKEN[node.variant])))


def _coarse(variant: str) -> Fault:
    """Inputs in half, or, where a table of halves does that, with the 8 bits of a bfloat16."""

    def bfloat(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)

    def half(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)

    def of(node: Node) -> Node | None:
        if node.output.type_id != F32:
            return None
        return source(node, 0, bfloat if variant in ("GELU", "GELU_QUICK") else half)

    return Fault("coarse inputs", of)


def _low_bits(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """Results in float16 of a result in float32 that is more than that."""
    return np.multiply(data, np.float32(1 + 2.0**-9)) if data.dtype == np.float32 else None


@pytest.mark.parametrize("variant", VARIANTS)
def test_faults(llama: Llama, variant: str) -> None:
    check_faults(
        llama, "UNARY", Fault(f"{MISTAKEN[variant]} in its place", _replaced), _coarse(variant),
        Fault("off by 2^-9", in_output=_low_bits), Fault("a row left out", in_output=stale),
        Fault("rows one off", in_output=rows_shifted),
        Fault("columns one off", lambda node: source(node, 0, lambda x: np.roll(x, 1, axis=-1))),
        Fault("as it is", in_output=lambda node, _data: np.array(node.source(0).data)), only=_of(variant),
    )  # fmt: skip


@pytest.mark.parametrize("which", range(4), ids=["β for α", "α exchanged", "β left out", "ε left out"])
def test_parameters_of_xielu(llama: Llama, which: int) -> None:
    def of(node: Node) -> Node:
        b, a, beta, eps = (node.number(i) for i in range(1, 5))
        wrong = ((beta, a, beta, eps), (a, b, beta, eps), (b, a, 0.0, eps), (b, a, beta, 0.0))[which]
        return replace(node, parameters=parameters(VARIANTS.index("XIELU"), *wrong))

    check_faults(llama, "UNARY", *5 * (Fault("wrong parameter", of),), only=_of("XIELU"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_infinities_and_nan(llama: Llama, variant: str) -> None:
    """Infinities and NaN go through the CPU backend as its definition has them."""
    index = VARIANTS.index(variant)
    more = (0.8, 0.9, 0.5, -1e-6) if variant == "XIELU" else ()
    x = np.tile(np.array([np.inf, -np.inf, np.nan, 1, -3e38, 3e38, -0.0], np.float32), 5).reshape(1, 1, 1, -1)
    for type_id in (F32, F16):
        values = x if type_id == F32 else np.where(np.abs(x) > 1e5, np.copysign(np.inf, x), x).astype(np.float16)
        node = Node("UNARY", (Operand.of(values),), Operand.blank(type_id, *x.shape), parameters(index, *more), variant)
        made = llama.compute_node(node)
        assert made is not None
        assert judge(made).passed, judge(made)


def test_nodes_without_a_definition(llama: Llama) -> None:
    node = computed(llama, "UNARY")[0]
    blocks = replace(node.source(0), type_id=8)
    check_undefined(
        replace(node, variant="SINH"), replace(node, backend="Metal"), replace(node, sources=()),
        replace(node, sources=(blocks,)), replace(node, sources=(Operand.blank(F32, 2, 2),)),
    )  # fmt: skip


def _in_float32(backend: str, variant: str) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
    """A backend's formula as NumPy computes it, whose functions are better than the backend's need be."""
    f = np.float32

    def tanh(v: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return f(1) - f(2) / (np.exp(f(2) * v) + f(1)) if backend == "Vulkan" else np.tanh(v)

    def gelu(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        v = f(np.sqrt(2 / np.pi)) * x * (f(1) + f(0.044715) * x * x)
        return f(0.5) * x * (f(2) - f(2) / (np.exp(f(2) * v) + f(1)) if backend == "Vulkan" else f(1) + np.tanh(v))

    def gelu_erf(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        v = x * f(np.sqrt(0.5))
        t = f(1) / (f(1) + f(0.3275911) * np.abs(v))
        powers = np.full_like(x, 1.061405429)
        for b in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
            powers = powers * t + f(b)
        return f(0.5) * x * (f(1) + np.sign(v) * (f(1) - powers * t * np.exp(-v * v)))

    def expm1(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        series = np.full_like(x, 1 / 720)
        for divisor in (120, 24, 6, 2, 1):
            series = f(1 / divisor) + x * series
        near = np.abs(x) <= 0.25
        return np.where(near, x * series, np.exp(x) - f(1))

    def elu(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.where(x > 0, x, np.exp(x) - f(1))

    def rounded(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.where(x >= 0, np.floor(x + f(0.5)), np.ceil(x - f(0.5)))

    return {
        "TANH": tanh, "GELU": gelu, "GELU_ERF": gelu_erf, "EXPM1": expm1, "ELU": elu, "ROUND": rounded,
    }[variant]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "variant"),
    [("Vulkan", v) for v in ("TANH", "GELU", "GELU_ERF", "EXPM1", "ELU", "ROUND")]
    + [("CUDA", v) for v in ("TANH", "GELU")],
)
def test_formulas_of_other_backends(backend: str, variant: str) -> None:
    """What no CPU backend computes: the steps of the other backends hold their formulas, and no other function's."""
    for node in drawn("UNARY"):
        if node.variant != variant or node.output.type_id != F32:
            continue
        with np.errstate(all="ignore"):
            y = _in_float32(backend, variant)(np.ascontiguousarray(node.source(0).data))
        made = replace(node, output=Operand.of(y), backend=backend)
        assert judge(made).passed, judge(made)
        wrong = replace(made, output=Operand.of(y + np.float32(0.01)))
        assert not judge(wrong).passed
