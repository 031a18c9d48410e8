"""docs/backends.json and its page: results are merged by row, and what no finding explains is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gguf_verify.support.errors import UsageError
from gguf_verify_graph.operations import OPERATIONS, Judged, Operand
from tools.measure.backends import RESULTS, page
from tools.measure.backends.explaining import DESCRIBED, explaining
from tools.measure.backends.functions import inputs
from tools.measure.backends.random_nodes import without_folders
from tools.measure.backends.records import FunctionRow, GraphRow, Measured, OperationRow, load, merged, save

RIGHT = OperationRow(operation="ROPE", nodes=3, outputs=30, definitions={"f32": 0.5}, exact=False)
WRONG = OperationRow(operation="GROUP_NORM", nodes=3, outputs=30, wrong=1, first="F32 2 × 3: 1 of 6 wrong")
GRAPH = GraphRow(model="m.gguf", architecture="llama", flash="auto", nodes=9, outputs=90, verdict="verified")


def measured(*operations: OperationRow, graphs: tuple[GraphRow, ...] = (), date: str = "2026-11-24") -> Measured:
    return Measured(
        device="a card (Vulkan)", build="llama.cpp 0.5.0", date=date, seeds=2, operations=operations, graphs=graphs
    )


def finding(backend: str = "Vulkan", *operations: str) -> page.Finding:
    return page.Finding(
        id="a-finding", title="It is wrong", backend=backend, operations=operations, seen="there", cause="This.",
        repetition="gguf-verify devices",
    )  # fmt: skip


def test_results_are_kept_and_merged_by_row(tmp_path: Path) -> None:
    first = measured(RIGHT, WRONG, graphs=(GRAPH,))
    again = measured(OperationRow(operation="ROPE", nodes=5), date="2026-11-25")
    made = merged({first.key: first}, {again.key: again})
    path = tmp_path / "r.json"
    save(made, path)
    assert load(path) == made
    (one,) = made.values()
    assert [(row.operation, row.nodes) for row in one.operations] == [("GROUP_NORM", 3), ("ROPE", 5)]
    assert (one.graphs, one.date) == ((GRAPH,), "2026-11-25")
    path.write_text("{")
    with pytest.raises(UsageError, match="contains no valid results"):
        load(path)
    assert load(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("known", "explained"),
    [((), False), ((finding("Vulkan", "GROUP_NORM"),), True), ((finding("CPU", "GROUP_NORM"),), False),
     ((finding("Vulkan", "ROPE"),), False)],
)  # fmt: skip
def test_outputs_that_no_finding_explains(known: tuple[page.Finding, ...], explained: bool) -> None:
    wrong = GraphRow(
        model="m.gguf", architecture="llama", flash="auto", nodes=9, outputs=90, verdict="mismatch",
        wrong=("GROUP_NORM norm-0: 1 of 9 wrong",),
    )  # fmt: skip
    of = measured(RIGHT, WRONG, graphs=(GRAPH, wrong))
    left = page.unexplained({of.key: of}, known)
    assert len(left) == (1 if explained else 2)  # what is wrong in a graph is always told
    made = page.render({of.key: of}, known)
    assert "| `ROPE` | 3 | 30 | f32: 0.5 |" in made["operations"]
    assert ("[a-finding](#a-finding)" in made["operations"]) is explained
    assert "| m.gguf (llama) | one operation | 9 | 90 | mismatch |" in made["graphs"]
    assert ("### a-finding" in made["findings"]) is bool(known)


def test_a_finding_explains_only_its_nodes() -> None:
    """Three experts of 5 rows: of one token the rows beyond are written over the first ones of the next expert."""
    known = page.findings()
    node = replace(next(iter(OPERATIONS["MUL_MAT_ID"].draw(np.random.default_rng(0)))), backend="CUDA")
    tokens, used, n = node.output.shape[1:]
    assert (node.source(0).type, tokens, used, n) == ("Q4_0", 1, 2, 5)
    where = Judged("q8_1", 10, 2, 9.0, (0, 0, 1, 0), 1.0, 2.0, 0.1, extent=((0, 0, 1), (0, 0, 1), (1, 1, 1), (0, 2, 2)))
    assert explaining(node, where, known) == "cuda-rows-of-experts"
    first = replace(where, extent=((0, 0, 1), (0, 0, 1), (0, 1, 2), (0, 2, 2)))
    later = replace(where, extent=((0, 0, 1), (0, 0, 1), (1, 1, 1), (0, 3, 2)))
    floats = replace(node, sources=(Operand.blank(0, 3, 5, 32), *node.sources[1:]))
    for other, judged in (
        (node, first), (node, later), (replace(node, backend="CPU"), where), (replace(node, op="MUL_MAT"), where),
        (floats, where),
    ):  # fmt: skip
        assert explaining(other, judged, known) == ""
    assert {f.id for f in known if f.operations} == set(DESCRIBED)


def test_partly_explained_outputs_are_reported() -> None:
    known = (finding("Vulkan", "GROUP_NORM"),)
    for explained, left in ((None, 0), ({"a-finding": 3}, 0), ({"a-finding": 2}, 1), ({}, 1), ({"another": 3}, 1)):
        row = msgspec.structs.replace(WRONG, wrong=3, explained=explained)
        of = measured(row)
        assert len(page.unexplained({of.key: of}, known)) == left


def test_every_finding_of_the_page_is_read() -> None:
    known = page.findings()
    assert len({f.id for f in known}) == len(known) >= 8
    for each in known:
        assert each.backend in ("CPU", "CUDA", "Vulkan")
        assert all(text.strip() for text in (each.title, each.seen, each.cause, each.repetition))


def test_functions_are_merged_and_reported() -> None:
    row = FunctionRow(function="exp x", domain="all halves", inputs=63488, ulps=0.5012, at=-0.5, utilisation=0.5)
    first = msgspec.structs.replace(measured(), functions=(row,))
    again = msgspec.structs.replace(measured(), functions=(msgspec.structs.replace(row, ulps=9.0, wrong=3),))
    (one,) = merged({first.key: first}, {again.key: again}).values()
    assert [each.ulps for each in one.functions] == [9.0]
    assert "| exp x | all halves | 63,488 | 0.5012 | -0.5 | 0.5 |" in page.render({first.key: first}, ())["functions"]
    assert page.unexplained({first.key: first}, ()) == []
    (line,) = page.unexplained({again.key: again}, ())
    assert "exp x: 3 of 63,488 results exceed the declared error, all halves" in line


def test_measured_functions_are_within_declared_errors() -> None:
    kept = load(RESULTS).values()
    rows = [row for one in kept for row in one.functions]
    assert len(rows) > 30
    assert all(row.utilisation <= 1 and not row.wrong and row.inputs for row in rows)


def test_the_inputs_of_functions() -> None:
    ((_, halves),) = inputs("halves")
    assert (len(halves), halves.max(), halves.min()) == (63488, 65504, -65504)
    parts = list(inputs("floats"))
    dense = np.concatenate([x for words, x in parts if words.startswith("all")])
    assert len(dense) == 2 << 24
    assert (np.diff(dense[dense > 0]) > 0).all()
    assert (np.diff(dense[dense < 0]) < 0).all()
    assert (np.abs(dense).min(), np.abs(dense).max()) == (0.5, np.nextafter(np.float32(2), np.float32(0)))


def test_folders_of_the_compiling_machine_are_removed() -> None:
    said = "it said: /tmp/a-b/vendor/ggml/../fattn.cuh:1844: ERROR (2/3) | /home/me/x.cu and src/y.cu"
    assert without_folders(said) == "it said: …/fattn.cuh:1844: ERROR (2/3) | …/x.cu and src/y.cu"
