"""Nodes of operations that llama.cpp's CPU backend computes, and what their judgements must see.

right      every node that an operation draws is computed and judged: all must pass, and the worst utilisation must
           be at least 1/16, so that the bound is no wider than 16 times what right outputs are off by.
nudged     the element of the worst utilisation, 17 times as far off as it is, must fail; a NaN must, too.
faulty     a node computed with a planted fault must fail, in a place where the fault changed the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.llama.node import BF16, NUMBERS
from gguf_verify_graph.operations import OPERATIONS, Judged, Node, NoDefinition, Operand, judge

#: Times that a right output's error must be multiplied by to fail.
FACTOR = 16.0


@dataclass(frozen=True)
class Fault:
    """A planted fault of an operation.

    Args:
        what: in words.
        of: makes of a node another one, which is computed in its place and judged as the node itself; None where the
            fault does not concern the node.
        in_output: or makes of the right output a wrong one, [ne3, ne2, ne1, ne0]; None likewise.
    """

    what: str
    of: Callable[[Node], Node | None] | None = None
    in_output: Callable[[Node, npt.NDArray[np.generic]], npt.NDArray[np.generic] | None] | None = None


@cache
def drawn(op: str, seed: int = 0) -> tuple[Node, ...]:
    """The nodes of an operation, not yet computed."""
    return tuple(OPERATIONS[op].draw(np.random.default_rng(seed)))


_computed: dict[tuple[str, int], list[Node]] = {}


def computed(llama: Llama, op: str, seed: int = 0) -> list[Node]:
    """The nodes that an operation draws, computed on the CPU backend, which must offer all of them."""
    if (op, seed) not in _computed:
        made = [llama.compute_node(node, threads=1) for node in drawn(op, seed)]
        assert made
        assert None not in made, f"the CPU backend does not offer some nodes of {op}"
        _computed[op, seed] = [node for node in made if node is not None]
    return _computed[op, seed]


def with_output(node: Node, data: npt.NDArray[np.generic]) -> Node:
    """The node with other output data, in the output's own layout."""
    output = node.output
    span = output.span.copy()
    flat = span.view(NUMBERS.get(output.type_id, np.dtype(np.uint8)))
    shape, strides = node.output.data.shape, node.output.data.strides
    np.lib.stride_tricks.as_strided(flat, shape, strides)[...] = data
    return replace(node, output=replace(output, span=span))


def check_right(llama: Llama, op: str, tight: bool = True, only: Callable[[Node], bool] | None = None) -> None:
    """All that an operation draws is right, by a bound that is not wide, and what is off further is wrong.

    Args:
        tight: False for an operation that is judged by bits or by a predicate, so that a utilisation says nothing.
        only: which of its nodes, such as those of a variant.
    """
    nodes = [node for node in (*computed(llama, op), *computed(llama, op, seed=1)) if only is None or only(node)]
    assert nodes
    judged = [judge(node) for node in nodes]
    for node, one in zip(nodes, judged, strict=True):
        assert one.passed, f"{node.operation} of {[None if s is None else (s.type, s.ne) for s in node.sources]}: {one}"
        assert one.elements == np.size(node.output.data)
    assert max(one.utilisation for one in judged) <= 1
    if tight:
        node, worst = max(zip(nodes, judged, strict=True), key=lambda pair: pair[1].utilisation)
        assert worst.utilisation >= 1 / FACTOR, f"the bound of {op} is wide: {worst.utilisation} at most"
        data = np.array(node.output.data)
        wrong = worst.expected + (FACTOR + 1) * (worst.got - worst.expected)
        data[worst.place] = _encoded(node.output, wrong)
        assert _wrong_at(with_output(node, data), worst.place)
    for node in nodes:
        data = np.array(node.output.data)
        if data.size and data.dtype.kind == "f":
            place = tuple(n // 2 for n in data.shape)
            data[place] = np.nan
            if not np.isnan(node.output.data[place]):
                assert _wrong_at(with_output(node, data), place)


def _encoded(output: Operand, value: float) -> npt.NDArray[np.generic]:
    """A number as the output holds it."""
    if output.type_id == BF16:
        return np.asarray(np.float32(value).view(np.uint32) >> 16, np.uint16)
    return np.asarray(value, output.data.dtype)


def _wrong_at(node: Node, place: tuple[int, ...]) -> bool:
    found = judge(node)
    return found.wrong == 1 and found.place == place and not found.utilisation <= 1


def check_faults(llama: Llama, op: str, *faults: Fault, only: Callable[[Node], bool] | None = None) -> None:
    """Each fault makes at least one drawn node wrong, and the first wrong place is one that it changed.

    Args:
        only: which of its nodes are considered, such as those of a variant.
    """
    assert len(faults) >= 5
    for fault in faults:
        found = False
        for node, right in zip(drawn(op), computed(llama, op), strict=True):
            wrong = _faulty(llama, fault, node, right) if only is None or only(node) else None
            if wrong is None or np.array_equal(wrong.output.span, right.output.span):
                continue
            verdict: Judged = judge(wrong)
            if verdict.wrong:
                before, after = (each.output.data[verdict.place].tobytes() for each in (right, wrong))
                changed = before != after
                assert changed or np.isnan(wrong.output.values).any(), f"{op}, {fault.what}: blamed at {verdict.place}"
                found = True
        assert found, f"{op}, {fault.what}: not seen in any node"


def check_undefined(*nodes: Node) -> None:
    """No definition covers these nodes: a node that a definition does not describe is not judged."""
    for node in nodes:
        with pytest.raises(NoDefinition):
            judge(node)


def _faulty(llama: Llama, fault: Fault, node: Node, right: Node) -> Node | None:
    if fault.in_output is not None:
        data = fault.in_output(right, np.array(right.output.data))
        return None if data is None else with_output(right, data)
    assert fault.of is not None
    other = fault.of(node)
    made = None if other is None else llama.compute_node(other, threads=1)
    return None if made is None else replace(right, output=made.output)


def source(node: Node, i: int, change: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]]) -> Node:
    """The node with source i's data changed; it becomes contiguous."""
    given = node.source(i)
    data = change(np.array(given.data))
    other = Operand.of(data, given.type_id, given.name)
    return replace(node, sources=(*node.sources[:i], other, *node.sources[i + 1 :]))


def stale(node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """The last row was never written."""
    if not data.size or not data[-1, -1, -1].any():
        return None
    data[-1, -1, -1] = 0
    return data


def rows_shifted(node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """Each row is the one before it."""
    return np.roll(data, 1, axis=2) if data.shape[2] > 1 else None
