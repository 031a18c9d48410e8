"""docs/backends.json and its page: results are merged by row, and what no finding explains is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.measure.backends import page
from gguf_verify.measure.backends.records import GraphRow, Measured, OperationRow, load, merged, save
from gguf_verify.support.errors import UsageError

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
    with pytest.raises(UsageError, match="holds no results"):
        load(path)
    assert load(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("known", "explained"),
    [((), False), ((finding("Vulkan", "GROUP_NORM"),), True), ((finding("CPU", "GROUP_NORM"),), False),
     ((finding("Vulkan", "ROPE"),), False)],
)  # fmt: skip
def test_what_no_finding_explains(known: tuple[page.Finding, ...], explained: bool) -> None:
    wrong = GraphRow(
        model="m.gguf", architecture="llama", flash="auto", nodes=9, outputs=90, verdict="mismatch",
        wrong=("GROUP_NORM norm-0: 1 of 9 wrong",),
    )  # fmt: skip
    of = measured(RIGHT, WRONG, graphs=(GRAPH, wrong))
    left = page.unexplained({of.key: of}, known)
    assert len(left) == (0 if explained else 2)
    made = page.render({of.key: of}, known)
    assert "| `ROPE` | 3 | 30 | f32: 0.5 |" in made["operations"]
    assert ("[a-finding](#a-finding)" in made["operations"]) is explained
    assert "| m.gguf (llama) | one operation | 9 | 90 | mismatch |" in made["graphs"]
    assert ("### a-finding" in made["findings"]) is bool(known)


def test_every_finding_of_the_page_is_read() -> None:
    known = page.findings()
    assert len({f.id for f in known}) == len(known) >= 8
    for each in known:
        assert each.backend in ("CPU", "Vulkan")
        assert all(text.strip() for text in (each.title, each.seen, each.cause, each.repetition))
