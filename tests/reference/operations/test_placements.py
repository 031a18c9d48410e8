"""Masks, triangles, parts, padding and rolls: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import F16, F32
from gguf_verify_graph.operations import Node, Operand, parameters
from tests.support.operations import Fault, check_faults, check_undefined, rows_shifted, source, stale

OPS = ("DIAG_MASK_INF", "DIAG_MASK_ZERO", "DIAG", "TRI", "SET", "ACC", "PAD", "PAD_REFLECT_1D", "ROLL")
Data = npt.NDArray[Any]


def _changed(i: int, change: Callable[[int], int]) -> Callable[[Node], Node]:
    """A parameter changed."""

    def of(node: Node) -> Node:
        given = np.frombuffer(node.parameters, "<i4").copy()
        given[i] = change(int(given[i]))
        return replace(node, parameters=given.tobytes())

    return of


def _other(op: str) -> Callable[[Node], Node]:
    return lambda node: replace(node, op=op)


def _elsewhere(node: Node) -> Node | None:
    """The part one value further, where there is room."""
    return _changed(3, lambda at: at + 4)(node) if node.integer(3) == 20 else None


def _first_of_part(node: Node) -> Node:
    def change(z: Data) -> Data:
        z[..., 0] = 0
        return z

    return source(node, 1, change)


def _wrapped(node: Node) -> Node:
    return _changed(8, lambda circular: 1 - circular)(node)


def _other_side(node: Node) -> Node:
    """The padding before and after dimension 0 exchanged."""
    given = np.frombuffer(node.parameters, "<i4").copy()
    given[:2] = given[1::-1]
    return replace(node, parameters=given.tobytes())


def _edge(node: Node, data: Data) -> Data:
    """The last value repeated instead of the one before it."""
    return np.pad(node.source(0).data, ((0, 0), (0, 0), (0, 0), (node.integer(0), node.integer(1))), mode="symmetric")


_MASK = (Fault("one more is seen", _changed(0, lambda past: past + 1)),
         Fault("the past left out", _changed(0, lambda _: 0)), Fault("a triangle", lambda node: (
             replace(node, op="TRI", parameters=parameters(3)) if node.view_of is None
             and node.source(0).ne[0] == node.source(0).ne[1] else None)))  # fmt: skip
_OWN: dict[str, tuple[Fault, ...]] = {
    "DIAG_MASK_INF": (*_MASK, Fault("zeros", _other("DIAG_MASK_ZERO"))),
    "DIAG_MASK_ZERO": (*_MASK, Fault("-∞", _other("DIAG_MASK_INF"))),
    "DIAG": (Fault("the other diagonal", in_output=lambda node, data: data[..., ::-1]),
             Fault("everywhere", in_output=lambda node, data: data + node.source(0).data)),
    "TRI": (Fault("with or without its diagonal", _changed(0, lambda which: which ^ 1)),
            Fault("the other triangle", _changed(0, lambda which: which ^ 2))),
    "SET": (Fault("added", lambda node: _other("ACC")(node) if node.output.type_id == F32 else None),
            Fault("elsewhere", _elsewhere), Fault("its first values", _first_of_part)),
    "ACC": (Fault("set", _other("SET")), Fault("elsewhere", _elsewhere), Fault("its first values", _first_of_part),
            Fault("in half", lambda node: source(node, 1, lambda z: z.astype(np.float16).astype(z.dtype)))),
    "PAD": (Fault("around, or not", _wrapped), Fault("the other side", _other_side)),
    "PAD_REFLECT_1D": (Fault("the last value repeated", in_output=_edge),),
    "ROLL": (Fault("the other way", _changed(0, lambda shift: -shift)),
             Fault("one further", _changed(1, lambda shift: shift + 1 if shift < 2 else shift - 1))),
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, *_OWN[op], Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
        Fault("values one off", in_output=lambda node, data: np.roll(data, 1, axis=-1)),
        Fault("matrices one off", in_output=lambda node, data: np.roll(data, 1, axis=1)),
    )  # fmt: skip


def test_nodes_without_a_definition() -> None:
    x, out = Operand.of(np.ones((7, 7), np.float32)), Operand.blank(F32, 7, 7)
    part, after = Operand.of(np.ones((2, 3), np.float32)), Operand.blank(F32, 7, 6)
    half = Operand.blank(F16, 7, 7)
    nodes = [
        Node("DIAG_MASK_INF", (x,), out, parameters(-1)), Node("DIAG_MASK_INF", (half,), half),
        Node("DIAG_MASK_ZERO", (x,), after), Node("DIAG", (x,), out), Node("TRI", (x,), out, parameters(4)),
        Node("PAD", (x,), out, parameters(0, 1)), Node("PAD", (x,), after, parameters(0, -1)),
        Node("PAD", (x,), Operand.blank(F32, 7, 15), parameters(8, 0, 0, 0, 0, 0, 0, 0, 1)),
        Node("PAD_REFLECT_1D", (x,), Operand.blank(F32, 7, 14), parameters(7, 0)),
        Node("PAD_REFLECT_1D", (x,), out, parameters(1, 0)), Node("ROLL", (x,), out, parameters(7)),
    ]  # fmt: skip
    for op in ("SET", "ACC"):
        for steps in ((28, 196, 196, 172), (8, 196, 196, 0), (28, 196, 196, -4), (28, 196, 196, 2), (30, 196, 196, 0)):
            nodes.append(Node(op, (x, part), out, parameters(*steps, 0)))
        nodes.append(Node(op, (x, Operand.blank(F16, 2, 3)), out, parameters(28, 196, 196, 0, 0)))
    check_undefined(*nodes)
