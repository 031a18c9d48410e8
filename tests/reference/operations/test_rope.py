"""ROPE: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, NoDefinition, judge
from tests.support.operations import Fault, check_faults, computed, rows_shifted, source, stale

DIMS, MODE, BASE, SCALE, EXTENSION, FACTOR, FAST, SECTIONS, OFFSET = 1, 2, 5, 6, 7, 8, 9, 11, 15


OPS = ("ROPE", "ROPE_BACK")


def _with(node: Node, i: int, value: float) -> Node:
    """The node with another parameter, an int32 or a float32."""
    raw = struct.pack("<f" if isinstance(value, float) else "<i", value)
    return replace(node, parameters=node.parameters[: 4 * i] + raw + node.parameters[4 * i + 4 :])


def _times(i: int, factor: float) -> Fault:
    return Fault(f"parameter {i} times {factor}", lambda node: _with(node, i, factor * node.number(i)))


def _other_order(node: Node) -> Node | None:
    """Pairs of neighbours for pairs of halves, and the other way round."""
    return _with(node, MODE, 2 - node.integer(MODE)) if node.integer(MODE) in (0, 2) else None


def _other_sections(node: Node) -> Node | None:
    return _with(node, MODE, 48 - node.integer(MODE)) if node.integer(MODE) in (8, 40) else None


def _without_factors(node: Node) -> Node | None:
    return replace(node, sources=node.sources[:2]) if node.optional(2) is not None else None


def _without_yarn(node: Node) -> Node | None:
    return _with(node, EXTENSION, 0.0) if node.number(EXTENSION) else None


def _ramp(node: Node) -> Node | None:
    return _with(node, FAST, node.number(FAST) / 2) if node.number(EXTENSION) else None


def _all_dimensions(node: Node) -> Node | None:
    """All of a row is rotated where only a part should be."""
    whole = node.source(0).ne[0]
    partial = node.integer(DIMS) < whole and node.integer(MODE) in (0, 2) and node.optional(2) is None
    return _with(_with(node, OFFSET, 0), DIMS, whole) if partial else None


def _inverse(node: Node) -> Node:
    """Rotated the other way."""
    return source(node, 1, np.negative)


def _copied_one_off(node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """A column that should be copied is off by one unit in the last place."""
    if node.integer(DIMS) == node.source(0).ne[0] or node.integer(MODE) == 24:
        return None
    column = -1
    data[..., column] = np.nextafter(data[..., column], np.inf, dtype=data.dtype)
    return data


@pytest.mark.parametrize("op", OPS)
def test_faults(llama: Llama, op: str) -> None:
    check_faults(
        llama, op, Fault("positions one off", lambda node: source(node, 1, lambda p: p + 1)),
        Fault("one token's position for all", lambda node: source(node, 1, lambda p: np.full_like(p, p.flat[0]))),
        Fault("tokens one off", lambda node: source(node, 0, lambda x: np.roll(x, 1, axis=1))),
        Fault("rotated the other way", _inverse), Fault("the other order of pairs", _other_order),
        Fault("sections interleaved or not", _other_sections), Fault("freq factors left out", _without_factors),
        Fault("YaRN left out", _without_yarn), Fault("another ramp", _ramp), Fault("all rotated", _all_dimensions),
        Fault("in half", lambda node: source(node, 0, lambda x: x.astype(np.float16).astype(x.dtype))),
        _times(BASE, 1.001), _times(SCALE, 1.0001), _times(FACTOR, 1.00001),
        Fault("a copied column off", in_output=_copied_one_off), Fault("a row left out", in_output=stale),
        Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_parameters_that_do_not_fit_have_no_definition(llama: Llama) -> None:
    node = computed(llama, "ROPE")[0]
    for i, value in ((MODE, 1), (MODE, 8), (DIMS, 3), (DIMS, 0), (DIMS, 4), (OFFSET, 2), (BASE, 0.0), (SCALE, np.inf)):
        with pytest.raises(NoDefinition):
            judge(_with(node, i, float(value) if i in (BASE, SCALE) else value))
    with pytest.raises(NoDefinition):
        judge(source(node, 1, lambda positions: np.repeat(positions, 2, axis=-1)))


def test_an_error_of_the_angle_is_allowed_to_grow_with_the_position(llama: Llama) -> None:
    """At a large position an angle may be off more than at a small one."""
    nodes = [n for n in computed(llama, "ROPE") if n.integer(DIMS) == 128 and n.number(BASE) == 10000]
    near = source(nodes[0], 1, lambda p: p % 16)
    far = source(nodes[0], 1, lambda p: p + 4_000_000)
    made = [llama.compute_node(each) for each in (near, far)]
    tolerances = [judge(each).tolerance for each in made if each is not None]
    assert tolerances[1] > 1000 * tolerances[0]
