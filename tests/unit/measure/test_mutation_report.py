"""The figures, tables and page that are made of the results of the mutation score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguf_verify.measure import markdown, results
from gguf_verify.measure.mutation import kill, mutator, report
from gguf_verify.measure.results import LETTERS, OTHER_CHECKS, decoded, encoded
from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import kernel_root

FILES = ("gemm/q8_1/01_naive.cu", "common.cuh")
TEXTS = {file: (kernel_root() / file).read_text() for file in FILES}
NAIVE = FILES[0]

_RECORDS: tuple[dict[str, Any], ...] = (
    {"id": "gemm/a.cu:10:2:x", "outcome": "killed", "by": "bound", "checks": list(OTHER_CHECKS), "diff": "d"},
    {"id": "gemm/a.cu:9:2:x", "outcome": "killed", "by": "time limit", "checks": ["nmse values"], "diff": "d"},
    {"id": "gemm/a.cu:9:3:x", "outcome": "missed", "by": "M=1", "diff": "d|`e", "subject": "k Q4_0"},
    {"id": "gemm/a.cu:9:4:x", "outcome": "same", "by": "", "diff": "why not"},
    {"id": "gemm/a.cu:9:5:x", "outcome": "uncompilable", "by": "", "diff": "d"},
    {"id": "pack/b.cu:1:1:x", "outcome": "unobservable", "by": "", "diff": "d"},
    {"id": "pack/b.cu:1:2:y", "outcome": "same", "by": "the same object code", "diff": "d"},
    {"id": "pack/b.cu:1:3:y", "outcome": "same", "by": "", "diff": "mystery"},
    {"id": "pack/b.cu:1:4:y", "outcome": "same", "by": "", "diff": "further", "overreads": True},
)  # fmt: skip
RECORDS = {r["id"]: r for r in _RECORDS}


def test_outcomes_as_codes() -> None:
    for outcome in LETTERS:
        assert decoded(encoded(outcome)) == (outcome, frozenset())
    for i, name in enumerate(OTHER_CHECKS):
        assert encoded("killed", [name]) == f"K{1 << i:02x}"
        assert decoded(f"P{1 << i:02x}") == ("passed", frozenset({name}))
    with pytest.raises(ValueError, match="is no outcome"):
        decoded("X00")


def test_records_of_earlier_runs() -> None:
    """What a run goes on from: all that the report needs, of the files that have not changed since."""
    then = {"gemm/a.cu": "0", "pack/b.cu": "1"}
    data = {"kill": report.collected(RECORDS, {"gemm/a.cu": 40, "pack/b.cu": 5}, then)}
    known = report.records(data, then)
    assert known.keys() == RECORDS.keys()
    assert report.collected(known, {"gemm/a.cu": 40, "pack/b.cu": 5}, then) == data["kill"]
    assert known["gemm/a.cu:9:3:x"]["by"] == "M=1"
    assert known["pack/b.cu:1:4:y"]["overreads"]
    changed = report.records(data, {"gemm/a.cu": "2", "pack/b.cu": "1"})
    assert {name for name in RECORDS if name.startswith("pack/")} == changed.keys()
    assert report.records(data, {"pack/b.cu": "1"}) == changed
    assert report.records({}, then) == {}


def test_table_and_page(tmp_path: Path) -> None:
    beside = [{"id": "gemm/a.cu:1:1:x", "outcome": "missed", "by": "M=7", "diff": "seen"}]
    kill_part = report.collected(RECORDS, {"gemm/a.cu": 40, "pack/b.cu": 5}, {"gemm/a.cu": "0"}, beside)
    data = {"kill": kill_part, "catalogue": {"k": {"f": "K01"}}}
    path = tmp_path / "results.json"
    results.save(path, data)
    assert results.load(path) == data
    lines = report.table(data).splitlines()
    assert lines[2].split(" | ")[:5] == ["| GEMM sources", "4", "3", "2 (66.7 %)", "2 (66.7 %)"]
    assert lines[3].split(" | ")[:4] == ["| packing", "3", "0", ""]
    assert lines[4].split(" | ")[:5] == ["| catalogue faults", "1", "1", "1 (100 %)", "1 (100 %)"]
    kill_part["population"]["gemm/c.cu"] = 0
    assert "run yet" not in report.summary(data)
    kill_part["population"]["gemm/c.cu"] = 1
    assert report.summary(data).endswith("None of `gemm/c.cu` were run yet.")
    del kill_part["population"]["gemm/c.cu"]
    assert "Of 45 mutants, a random part, 9 were run: 1 do not compile, 1 make no" in report.summary(data)
    said = "2 were killed (1 by a time limit), 1 changed a bit of the output for some valid input and were not"
    assert said in report.summary(data)
    text = report.page(data, [{"file": "gemm/.*", "diff": "why not", "why": "because"}])
    missed, equivalent, unexplained = (text.split(f"## {t}")[1] for t in ("Missed", "Equivalent", "Unexplained"))
    assert "`gemm/a.cu:9:3:x` `d|e`: `M=1` (k Q4_0)" in missed
    assert "`gemm/a.cu:1:1:x` `seen`: `M=7`" in missed.split("do not count above")[1]
    assert "`gemm/a.cu:9:4:x` `why not`: because" in equivalent
    assert "the same object code" in equivalent.split("## ")[0]
    assert "mystery" in unexplained
    assert "`further`: It reads past the end" in text.split("## Not observable on this host")[1].split("## ")[0]
    assert "mystery" not in equivalent.split("## ")[0]
    path.write_text('{"kill": {"mutants": {"a": {"1:1:x": "X"}}}}')
    with pytest.raises(UsageError, match="holds no results"):
        results.load(path)
    assert results.load(tmp_path / "none.json") == {}


def test_what_was_cut_off_does_not_count() -> None:
    """Of a file, the largest part counts of which all were judged."""
    everything = {file: mutator.mutants(file, TEXTS[file]) for file in (NAIVE, "common.cuh")}
    few, more = (kill.sampled(everything, part, 0) for part in (0.05, 0.1))
    records: dict[str, Any] = {m.id: {"id": m.id} for m in (*more[NAIVE], *few["common.cuh"], *more["common.cuh"][:-1])}
    counted = report.whole_part(records, everything, 0)
    assert {i for i in counted if i.startswith(NAIVE)} == {m.id for m in more[NAIVE]}
    of_common = {m.id for m in kill.sampled(everything, 0.07, 0)["common.cuh"]}
    assert {i for i in counted if i.startswith("common.cuh")} == of_common


def test_a_share_is_never_rounded_to_all() -> None:
    data = {"kill": {"mutants": {"gemm/a.cu": {**{f"{i}:1:x": "K00" for i in range(9999)}, "0:2:x": "M"}}}}
    assert "9,999 (99.9 %)" in report.table(data).splitlines()[2]


def test_reasons_are_a_file_of_reasons(tmp_path: Path) -> None:
    assert all(r["why"] for r in report.reasons())
    path = tmp_path / "r.toml"
    path.write_text('[[equivalent]]\nfile = "a"\ndiff = "("\nwhy = "x"\n')
    with pytest.raises(UsageError):
        report.reasons(path)


def test_tables_and_page_are_what_the_results_give() -> None:
    data = results.load(results.RESULTS)
    text = markdown.EVIDENCE.read_text()
    assert markdown.filled(text, report.tables(data), "mutation") == text
    assert report.page(data) == report.PAGE.read_text()
    assert results.RESULTS.stat().st_size < 1_000_000
