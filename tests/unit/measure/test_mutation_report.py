"""The figures, tables and page that are made of the results of the mutation score."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.support.errors import UsageError
from tools.measure import markdown, results
from tools.measure.guards import Comparison, Guard, Quantity, comparison, guard, log_uniform
from tools.measure.mutation import population, report
from tools.measure.results import LETTERS, OTHER_CHECKS, decoded, encoded

_RECORDS: tuple[dict[str, Any], ...] = (
    {"id": "gemm/a.cu:10:2:x", "outcome": "killed", "by": "bound", "checks": list(OTHER_CHECKS), "diff": "d"},
    {"id": "gemm/a.cu:9:2:x", "outcome": "killed", "by": "time limit", "checks": ["nmse values"], "diff": "d"},
    {"id": "gemm/a.cu:9:3:x", "outcome": "missed", "by": "M=1", "diff": "d|`e", "subject": "k Q4_0"},
    {"id": "gemm/a.cu:9:4:x", "outcome": "same", "by": "", "diff": "why not"},
    {"id": "gemm/a.cu:9:5:x", "outcome": "uncompilable", "by": "", "diff": "d"},
    {"id": "pack/b.cu:1:1:x", "outcome": "unobservable", "by": "", "diff": "d"},
    {"id": "pack/b.cu:1:2:y", "outcome": "same", "by": population.SAME_CODE, "diff": "d"},
    {"id": "pack/b.cu:1:3:y", "outcome": "same", "by": "", "diff": "mystery"},
    {"id": "pack/b.cu:1:4:y", "outcome": "same", "by": "", "diff": "further"},
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
    changed = report.records(data, {"gemm/a.cu": "2", "pack/b.cu": "1"})
    assert {name for name in RECORDS if name.startswith("pack/")} == changed.keys()
    assert report.records(data, {"pack/b.cu": "1"}) == changed
    assert report.records({}, then) == {}


def test_table_and_page(tmp_path: Path) -> None:
    kill_part = report.collected(RECORDS, {"gemm/a.cu": 40, "pack/b.cu": 5}, {"gemm/a.cu": "0"})
    data = {"kill": kill_part, "catalogue": {"k": {"f": "K01"}}}
    path = tmp_path / "results.json"
    results.save(path, data)
    assert results.load(path) == data
    lines = report.table(data).splitlines()
    assert lines[2].split(" | ")[:5] == ["| GEMM sources", "4", "3", "2 (66.7 %)", "2 (66.7 %)"]
    assert lines[3].split(" | ")[:4] == ["| packing", "3", "0", ""]
    assert lines[4].split(" | ")[:5] == ["| catalogue faults", "1", "1", "1 (100 %)", "1 (100 %)"]
    summary = report.summary(kill_part)
    assert "Of 45 mutants, a random sample of 9 were run: 1 do not compile, 1 make no" in summary
    said = "2 were killed (1 by a time limit), 1 changed a bit of the output for some valid input and were not"
    assert said in summary
    assert summary.endswith(f"They were judged by {report.VERSION}.")
    del kill_part["version"]
    assert "before other schedules" in report.summary(kill_part)
    known = [{"file": "gemm/.*", "diff": "why not", "why": "because"}]
    known.append({"file": "pack/.*", "diff": "further", "why": f"{report.UNSEEN}: masks"})
    text = report.page(data, known)
    missed, proved, explained, unexplained = (
        text.split(f"## {t}")[1].split("## ")[0] for t in ("Missed", report.PROVED, report.EXPLAINED, "Unexplained")
    )
    assert "`gemm/a.cu:9:3:x` `d|e`: `M=1` (k Q4_0)" in missed
    assert "`gemm/a.cu:9:4:x` `why not`: because" in explained
    assert population.SAME_CODE in proved
    assert "mystery" in unexplained
    assert "mystery" not in proved + explained
    assert "`further`: masks" in text.split("## Not observable on this host")[1].split("## ")[0]
    path.write_text('{"kill": {"mutants": {"a": {"1:1:x": "X"}}}}')
    with pytest.raises(UsageError, match="holds no results"):
        results.load(path)
    assert results.load(tmp_path / "none.json") == {}


def test_a_share_is_never_rounded_to_all() -> None:
    data = {"kill": {"mutants": {"gemm/a.cu": {**{f"{i}:1:x": "K00" for i in range(9999)}, "0:2:x": "M"}}}}
    assert "9,999 (99.9 %)" in report.table(data).splitlines()[2]


def test_reasons_are_a_file_of_reasons(tmp_path: Path) -> None:
    assert all(r["why"] for r in report.reasons())
    path = tmp_path / "r.toml"
    path.write_text('[[equivalent]]\nfile = "a"\ndiff = "("\nwhy = "x"\n')
    with pytest.raises(UsageError):
        report.reasons(path)


def test_tables_and_page_match_the_results() -> None:
    data = results.load(results.RESULTS)
    text = markdown.EVIDENCE.read_text()
    assert markdown.filled(text, report.tables(data), "mutation") == text
    assert report.page(data) == report.PAGE.read_text()
    assert results.RESULTS.stat().st_size < 1_000_000


# ---- guards ----------------------------------------------------------------------------------------------------------
# Random conditions: they hold for their witnesses, and read in C++ as they are evaluated here.


SIZE = Quantity("N", "N", lambda rng: log_uniform(rng, 1, 1 << 18))
CODE = Quantity("codes[j]", "data", lambda rng: float(rng.integers(-128, 128)))
SCALE = Quantity(
    "d", "data", lambda rng: float(np.float32(rng.standard_normal() * 2.0 ** rng.integers(-20, 10))), False
)
PRODUCT = Quantity("M * N", "product", lambda rng: log_uniform(rng, 1, 1 << 36))
QUANTITIES = (SIZE, CODE, SCALE, PRODUCT)


def evaluated(text: str, values: dict[str, float]) -> bool:
    """A condition in C++, of whole numbers with the sign of the dividend in remainders."""
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(name, "v" + str(sorted(values).index(name)))
    text = re.sub(r"\(?(v\d)\)? % (\d+)", r"fmod(\1, \2)", text.replace("&&", "and"))
    text = re.sub(r"(\d[\d.]*(?:e[-+]\d+)?)f\b", r"float32(\1)", re.sub(r"(?<=\d)ll\b", "", text))
    variables = {f"v{sorted(values).index(name)}": value for name, value in values.items()}
    return bool(eval(text, {"fmod": np.fmod, "float32": np.float32} | variables))


def test_a_condition_holds_for_its_witness_and_reads_as_it_is_evaluated() -> None:
    rng = np.random.default_rng(3)
    forms, held = Counter[str](), Counter[bool]()
    for _ in range(600):
        witness = {of.name: of.draw(rng) for of in QUANTITIES}
        made = guard(rng, QUANTITIES, witness)
        assert made.holds(witness), (made.text, witness)
        assert evaluated(made.text, witness), (made.text, witness)
        other = {of.name: of.draw(rng) for of in QUANTITIES}
        assert bool(made.holds(other)) == evaluated(made.text, other), (made.text, other)
        forms.update(made.forms)
        held[bool(made.holds(other))] += 1
    assert forms.keys() == {"==", "<", ">=", "window", "remainder"}
    assert min(forms.values()) > 60
    assert held[False] > 150 < held[True]


def test_arrays_are_compared_at_once() -> None:
    made = Guard((Comparison("i", "place", "remainder", (4, 1)), Comparison("N", "N", ">=", (9,))))
    assert made.text == "i % 4 == 1 && N >= 9"
    assert made.kind == "N and place"
    assert np.flatnonzero(made.holds({"i": np.arange(9), "N": 9})).tolist() == [1, 5]
    assert not np.any(made.holds({"i": np.arange(9), "N": 8}))


def test_a_remainder_has_the_sign_of_the_dividend() -> None:
    assert Comparison("q", "data", "remainder", (7, -3)).holds(-10)
    assert not Comparison("q", "data", "remainder", (7, 4)).holds(-10)


def test_a_number_without_another_one_beside_it_is_compared_for_equality() -> None:
    zero = Quantity("m", "data", lambda rng: 0.0, False)
    rng = np.random.default_rng(0)
    assert {comparison(rng, zero, 0.0).text for _ in range(40)} == {"m == 0.0f", "m >= 0.0f"}
