"""GLU, variant by variant: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F32
from gguf_verify_graph.operations import Node, Operand, judge, parameters
from gguf_verify_graph.operations.glu import VARIANTS
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

#: Another one that a kernel may take for it.
MISTAKEN = {
    "REGLU": "SWIGLU", "GEGLU": "GEGLU_ERF", "SWIGLU": "GEGLU_QUICK", "SWIGLU_OAI": "SWIGLU_CLAMP",
    "GEGLU_ERF": "GEGLU", "GEGLU_QUICK": "SWIGLU", "SWIGLU_CLAMP": "SWIGLU",
}  # fmt: skip


def _of(variant: str) -> Callable[[Node], bool]:
    return lambda node: node.variant == variant


@pytest.mark.parametrize("variant", VARIANTS)
def test_right(llama: Llama, variant: str) -> None:
    check_right(llama, "GLU", only=lambda node: node.variant == variant and node.output.type_id == F32)
    if variant != "SWIGLU_OAI":
        check_right(llama, "GLU", only=lambda node: node.variant == variant and node.output.type_id != F32)


def _with(node: Node, variant: str | None = None, swapped: int | None = None, more: tuple[float, ...] = ()) -> Node:
    index = VARIANTS.index(variant or node.variant)
    values = more or (node.number(2), node.number(3))
    return replace(node, parameters=parameters(index, node.integer(1) if swapped is None else swapped, *values))


def _swapped(node: Node) -> Node:
    """The other half, or the other source, is activated."""
    if node.optional(1) is None:
        return _with(node, swapped=1 - node.integer(1))
    return replace(node, sources=node.sources[::-1])


def _interleaved(node: Node) -> Node | None:
    """Even and odd columns are taken for halves."""
    if node.optional(1) is not None:
        return None
    return source(node, 0, lambda x: np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1))


def _bfloat(x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def _coarse(node: Node) -> Node | None:
    return source(node, 0, _bfloat) if node.output.type_id == F32 else None


def _gate_one_off(node: Node) -> Node | None:
    return None if node.optional(1) is None else source(node, 1, lambda g: np.roll(g, 1, axis=-1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_faults(llama: Llama, variant: str) -> None:
    check_faults(
        llama, "GLU", Fault(f"{MISTAKEN[variant]} in its place", lambda node: _with(node, MISTAKEN[variant])),
        Fault("swapped", _swapped), Fault("interleaved", _interleaved), Fault("gate one off", _gate_one_off),
        Fault("in bfloat16", _coarse), Fault("a row left out", in_output=stale),
        Fault("rows one off", in_output=rows_shifted), only=_of(variant),
    )  # fmt: skip


@pytest.mark.parametrize("variant", ["SWIGLU_OAI", "SWIGLU_CLAMP"])
def test_limits(llama: Llama, variant: str) -> None:
    check_faults(
        llama, "GLU", Fault("no limit", lambda node: _with(node, more=(node.number(2), np.inf))),
        *4 * (Fault("a limit off", lambda node: _with(node, more=(node.number(2), 1.001 * node.number(3)))),),
        only=_of(variant),
    )  # fmt: skip
    if variant == "SWIGLU_OAI":
        alpha = Fault("α is 1", lambda node: _with(node, more=(1.0, node.number(3))))
        check_faults(llama, "GLU", *5 * (alpha,), only=_of(variant))


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
def test_other_backends(llama: Llama, backend: str) -> None:
    """They have no tables: what the CPU looks up is wrong there, and what it computes is right."""
    looked_up: dict[str, bool] = {}
    for node in computed(llama, "GLU"):
        if node.output.type_id == F32:
            passed = judge(replace(node, backend=backend)).passed
            looked_up[node.variant] = looked_up.get(node.variant, True) and passed
    assert looked_up == {variant: variant not in ("GEGLU", "GEGLU_QUICK") for variant in VARIANTS}


def test_nodes_without_a_definition(llama: Llama) -> None:
    node = next(n for n in computed(llama, "GLU") if n.optional(1) is not None)
    other = Operand.blank(F32, 1, 1, 1, 77)
    check_undefined(
        replace(node, variant="LIGLU"), replace(node, backend="Metal"), replace(node, sources=()),
        replace(node, sources=(node.source(0), other)), replace(node, sources=(other,)),
        replace(node, sources=(node.source(0), Operand.blank(1, *node.output.shape))),
    )  # fmt: skip


def test_every_variant_has_random_nodes() -> None:
    assert {node.variant for node in drawn("GLU")} == set(VARIANTS)
