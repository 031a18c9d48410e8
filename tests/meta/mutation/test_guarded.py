"""Mutants under random conditions: how they are drawn, and run at their witnesses; samples of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from tools.measure.__main__ import main
from tools.measure.guards import Comparison, Guard
from tools.measure.mutation import guided, witness
from tools.measure.mutation.guarded import COUNTER, FILE, SUBJECTS, Witness, drawn, statements

EXAMPLE = SUBJECTS[0]
TEXT = EXAMPLE.files[FILE]


# -- how they are drawn -----------------------------------------------------------------------------------------------


def test_the_statements_of_a_function_and_the_variables_before_them() -> None:
    source = (
        "void gemm(int M) { const int a = M, b = 2; for (int j = 0; j < a; ++j) { f(j); } if (b) return; else g(); }"
    )
    found = {source[s.start : s.end]: s for s in statements(source)}
    assert [*found] == [
        "const int a = M, b = 2;", "for (int j = 0; j < a; ++j) { f(j); }", "f(j);", "if (b) return; else g();",
        "return;", "g();",
    ]  # fmt: skip
    assert {"M", "a", "b", "j"} <= found["f(j);"].names
    assert "j" not in found["g();"].names
    assert found["const int a = M, b = 2;"].value == 0  # two variables: no condition can stand in it


def test_mutants_are_reproducible_and_of_every_kind() -> None:
    made = [drawn(5, number) for number in range(200)]
    assert [m.text for m in made[:20]] == [drawn(5, number).text for number in range(20)]
    assert {m.subject for m in made} == {*SUBJECTS}
    kinds = Counter(kind for m in made for kind in m.guard.kind.split(" and "))
    assert kinds.keys() == {"M", "N", "K", "product", "data", "call number"}
    for m in made:
        original = m.subject.files[FILE]
        assert m.guard.text in m.text.splitlines()[m.line - 1]
        assert m.edit.applied(original) not in m.text
        before = original.splitlines()[: m.line - 1]
        assert [line.replace(COUNTER, "") for line in m.text.splitlines()[: m.line - 1]] == before
        sizes = dict(zip("MNK", m.witness.shape, strict=True))
        products = {f"{a} * {b}": sizes[a] * sizes[b] for a, b in ("MN", "MK", "NK")}
        known = sizes | products | ({"calls": m.witness.calls} if m.witness.calls else {})
        assert all(one.holds(known[one.quantity]) for one in m.guard.comparisons if one.quantity in known)


# -- witnesses --------------------------------------------------------------------------------------------------------


#: A kernel with a fault under each of some conditions. A call runs it twice.
_FAULTS = """
    static unsigned calls;
    if (M * N >= 5000000000) y[i] = 2 * acc;
    else if (M == 7 && acc != 0) y[i] = __uint_as_float(__float_as_uint(acc) ^ 1u);
    else if (M == 5 && from_half(w[n * blocks].d) == 0.375f) y[i] = 0;
    else if (M == 4 && ++calls > 5 * M * N) y[i] = 0;
    else y[i] = acc;
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignKernel, ForeignKernel]]:
    """The kernel with faults, and the correct one."""
    opened = []
    for text in (TEXT.replace("y[i] = acc;", _FAULTS), TEXT):
        path = tmp_path_factory.mktemp("kernel") / FILE
        path.write_text(text)
        opened.append(open_foreign(f"{path}:gemm", CpuHost(1)))
    yield opened[0], opened[1]
    for kernel in opened:
        kernel.close()


@pytest.mark.parametrize(
    ("at", "answer"),
    [
        (Witness((70_000, 80_000, 64), {}, None), "wrong"),
        (Witness((60_000, 80_000, 64), {}, None), "equal"),
        (Witness((7, 300, 512), {}, None), "rounding"),
        (Witness((5, 64, 64), {("weights", "d"): 0.375}, None), "wrong"),
        (Witness((5, 64, 64), {("weights", "d"): 0.25}, None), "equal"),
        (Witness((4, 64, 64), {}, 1), "equal"),
        (Witness((4, 64, 64), {}, 4), "wrong"),
    ],
)
def test_a_witness_tells_whether_a_mutant_is_a_wrong_kernel(
    at: Witness, answer: str, kernels: tuple[ForeignKernel, ForeignKernel]
) -> None:
    assert witness.tried(replace(drawn(1, 0), subject=EXAMPLE, witness=at), *kernels) == answer


# -- samples ----------------------------------------------------------------------------------------------------------


def record(number: int, outcome: str, without: str = "", by: str = "", **more: Any) -> dict[str, Any]:
    killed = {"killed": True, "by": without} if without else {"killed": False, "by": ""}
    return {
        "id": f"guarded:9:{number}", "subject": "k", "guard": "M == 3", "kind": "M and data", "forms": ["==", "window"],
        "operator": "o", "diff": "a", "outcome": outcome, "without": killed,
        "guided": killed if without else {"killed": bool(by), "by": by}, "reported": False, **more,
    }  # fmt: skip


def test_a_sample_ends_at_the_first_mutant_that_was_not_judged(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    records = [record(0, "killed", "the product"), record(1, "equal"), record(2, "passed"), record(4, "killed", "x")]
    lines.write_text("".join(json.dumps(r) + "\n" for r in records) + '{"id": "guarded:9:3", "outco')
    judged = guided.judged(lines, 9)
    assert [r["id"] for r in judged] == ["guarded:9:0", "guarded:9:1", "guarded:9:2"]
    assert guided.judged(lines, 8) == []
    assert [r["outcome"] for r in guided.sample(judged, 5)] == ["killed", "passed"]
    assert len(guided.sample(judged, 1)) == 1


def test_figures_tell_what_guidance_adds_and_what_is_silent() -> None:
    records = [
        record(0, "killed", "the product"), record(1, "killed", by="comparisons"), record(2, "equal"),
        record(3, "passed", reported=True), record(4, "passed"),
    ]  # fmt: skip
    figures = guided.collected(records, 4, 9)
    assert figures["all"] == {"mutants": 4, "without": 1, "guided": 2, "reported": 1}
    assert figures["guided by"] == {"comparisons": 1}
    assert ["M", "4", "1 (25.0 %)", "2 (50.0 %)", "1", "1"] in guided.rows(figures)
    assert [row[0] for row in guided.rows(figures)] == ["M", "data", "`==`", "window", "two comparisons", "all"]
    assert "1 are silent" in guided.summary(figures)
    assert [guided.survivor(s).rpartition(": ")[2] for s in figures["survivors"]] == [
        "the report names its line", "silent",
    ]  # fmt: skip
    assert guided.collected(records, 2, 9)["tried"] == 2


def test_a_run_continues_and_stores_its_figures(tmp_path: Path) -> None:
    """End to end: the mutants 0, 1, … of a seed are judged until one is a wrong kernel."""
    lines, stored = tmp_path / "lines.jsonl", tmp_path / "results.json"
    command = ["mutation", "kill", "--guarded", "--sample", "1", "-s", "7", "-j", "1"]
    command += ["--lines", str(lines), "--results", str(stored)]
    assert main(command) == 0
    before = lines.read_bytes()
    assert main(command) == 0  # nothing remains
    assert lines.read_bytes() == before
    figures = json.loads(stored.read_text())["guarded"]
    assert figures["all"]["mutants"] == 1
    first = next(r for r in guided.judged(lines, 7) if r["outcome"] == "killed")
    assert drawn(7, int(first["id"].rpartition(":")[2])).guard.text == first["guard"]


def test_a_condition_is_in_the_language_of_the_kernel() -> None:
    made = Guard((Comparison("N * K", "product", ">=", (1 << 33,)), Comparison("d", "data", "<", (1e-7,), False)))
    assert made.text == "(N * K) >= 8589934592ll && d < 1e-07f"
