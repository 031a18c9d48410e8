"""How two graphs of a model differ."""

from __future__ import annotations

import pytest

from gguf_verify.backend_results import GraphStep
from gguf_verify_graph.bisection.graphs import differences, listed

NORM = GraphStep("RMS_NORM", "norm-0", "norm-0 F32 [64 × 3]", ("embd F32 [64 × 3]",), {"eps": "1e-05"})
PRODUCT = GraphStep("MUL_MAT", "node_7", "node_7 F32 [64 × 3]", ("w Q4_0 [64 × 64]", "norm-0 F32 [64 × 3]"))
LAST = GraphStep("ADD", "node_8", "node_8 F32 [64 × 3]", ("node_7 F32 [64 × 3]", "embd F32 [64 × 3]"))
GRAPH = [NORM, PRODUCT, LAST]


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (GRAPH, []),
        ([GraphStep(NORM.operation, NORM.node, NORM.output, NORM.sources, {"eps": "1e-06"}), PRODUCT, LAST],
         ["RMS_NORM norm-0: eps 1e-05 → 1e-06"]),
        ([GraphStep(NORM.operation, NORM.node, NORM.output, NORM.sources), PRODUCT, LAST],
         ["RMS_NORM norm-0: eps 1e-05 → 0"]),
        ([GraphStep(NORM.operation, NORM.node, "norm-0 F32 [64 × 4]", NORM.sources, NORM.parameters), PRODUCT, LAST],
         ["RMS_NORM norm-0: output norm-0 F32 [64 × 3] → norm-0 F32 [64 × 4]"]),
        ([NORM, GraphStep(PRODUCT.operation, PRODUCT.node, PRODUCT.output, ("v Q4_0 [64 × 64]", *PRODUCT.sources[1:])),
          LAST], ["MUL_MAT node_7: src[0] w Q4_0 [64 × 64] → v Q4_0 [64 × 64]"]),
        ([PRODUCT, LAST], ["RMS_NORM norm-0: no longer in the graph"]),
    ],
)  # fmt: skip
def test_each_difference_is_reported(after: list[GraphStep], found: list[str]) -> None:
    assert [*differences(GRAPH, after)] == found


def test_shifted_numbers_are_not_a_difference() -> None:
    shifted = [
        NORM, GraphStep("SCALE", "new", "new F32 [1]"),
        GraphStep("MUL_MAT", "node_8", "node_8 F32 [64 × 3]", PRODUCT.sources),
        GraphStep("ADD", "node_9", "node_9 F32 [64 × 3]", ("node_8 F32 [64 × 3]", "embd F32 [64 × 3]")),
    ]  # fmt: skip
    assert [*differences(GRAPH, shifted)] == ["SCALE new: new in the graph"]


def test_an_unknown_graph_is_not_compared() -> None:
    assert [*differences(GRAPH, [])] == [*differences([], GRAPH)] == []


def test_many_differences_are_counted() -> None:
    assert listed([str(i) for i in range(23)])[19:] == ("19", "… and 3 more differences")
