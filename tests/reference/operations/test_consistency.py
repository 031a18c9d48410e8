"""Errors of one size: which outputs beside others are left out, and how near the tolerance of sums in half comes to
what right kernels, simulated in NumPy, are off by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge
from gguf_verify_graph.operations.consistency import admitted
from gguf_verify_graph.operations.judging import within
from tests.support.narrow_sums import HALF_SUMS, half
from tests.support.operations import with_output

Doubles = npt.NDArray[np.float64]


def left_out(off: Doubles) -> npt.NDArray[np.bool_]:
    """Of outputs that are off by so much of their tolerance."""
    return off > admitted(off, np.ones_like(off), np.zeros_like(off), 2.0**-11)


@pytest.mark.parametrize("n", [5, 8, 31, 32, 100])
def test_one_outlier_is_not_admitted(n: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        off = np.abs(rng.standard_normal((9, n))) * 0.005
        assert not left_out(off).any()
        off[4, 2] = 0.9
        assert np.argwhere(left_out(off)).tolist() == [[4, 2]]


def test_a_row_with_larger_errors_throughout_is_admitted() -> None:
    rng = np.random.default_rng(0)
    for n in (5, 8, 31, 32):
        for _ in range(100):
            off = np.abs(rng.standard_normal((9, n))) * 1e-3
            off[4] *= 200
            assert not left_out(off).any()


def test_few_outputs_are_not_checked() -> None:
    off = np.full((20, 4), 1e-3)
    off[4, 2] = 0.9
    assert not left_out(off).any()  # four in a row
    off = np.full((6, 5), 1e-3)
    off[4, 2] = 0.9
    assert not left_out(off).any()  # thirty in all
    assert left_out(np.concatenate([off, off[:1]])).any()


def test_an_infinite_bound_is_no_definition() -> None:
    y = np.ones((1, 1, 1, 3), np.float32)
    node = Node("ADD", (), Operand.of(y))
    assert within(node, "f32", np.array([1.0, np.inf, 1.0]), np.array([0.1, np.inf, 0.1])).wrong == 1
    with pytest.raises(NoDefinition, match="ADD with an output that may be anything by f32"):
        within(node, "f32", np.ones(3), np.array([0.1, np.inf, 0.1]))


# ---- sums in half ----------------------------------------------------------------------------------------------------


def product(columns: int, k: int, added: int, positive: bool) -> tuple[Node, Doubles, Doubles]:
    """A product that a device adds in half in one of several orders, and both factors."""
    rng = np.random.default_rng(1)
    a, w = (half(rng.standard_normal((n, k))) for n in (9, columns))
    a, w = (np.abs(a), np.abs(w)) if positive else (a, w)
    y = HALF_SUMS[added](a, w).astype(np.float32)[None, None]
    sources = Operand.of(w.astype(np.float16)), Operand.of(a.astype(np.float32))
    return Node("MUL_MAT", sources, Operand.of(y), backend="Vulkan", device="Vulkan0"), a, w


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("added", range(len(HALF_SUMS)))
@pytest.mark.parametrize(("columns", "k"), [(5, 64), (5, 1536), (24, 320), (48, 1536)])
def test_errors_of_half_sums_are_at_least_a_32nd(columns: int, k: int, added: int, positive: bool) -> None:
    """The same outputs, one of them as far off as 33 times the worst, or with another sign, are wrong."""
    node, a, w = product(columns, k, added, positive)
    found = judge(node)
    assert found.passed
    assert found.definition.endswith("added in float16")
    assert found.utilisation > 1 / 32
    data = np.array(node.output.data)
    exact = a @ w.T
    data[found.place] += 33 * (data[found.place] - exact[found.place[2:]])
    assert judge(with_output(node, data)).place == found.place
    data = np.array(node.output.data)
    row, column = divmod(int(np.argmax(np.abs(exact))), columns)
    at = 0, 0, row, column
    data[at] *= -1
    wrong = judge(with_output(node, data))
    assert (wrong.wrong, wrong.place) == (1, at)
