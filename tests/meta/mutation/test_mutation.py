"""The measure of the harness itself: mutants of the sources, what becomes of some, and the figures made of results."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats import FORMATS
from gguf_verify.semantics import Product
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import kernel_root
from tests.support.tools import ROOT

sys.path.append(str(ROOT / "scripts"))

from gguf_verify.measure.bench.figures import between_markers
from gguf_verify.measure.mutation import command as mutation_score
from gguf_verify.measure.mutation import gate, kill, mutator, report
from gguf_verify.measure.mutation.check import agrees
from gguf_verify.measure.mutation.units import Unit, lines_alive

KERNELS = kernel_root()
FILES = mutator.sources(KERNELS)
NAIVE = "gemm/q8_1/01_naive.cu"
TEXTS = {file: (KERNELS / file).read_text() for file in FILES}


# -- the mutator ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_tokens_are_the_source(file: str) -> None:
    """Nothing but white space lies between them, and their places are right."""
    text, at = TEXTS[file], 0
    lines = text.splitlines(keepends=True)
    for token in mutator.tokens(text):
        assert text[at : token.start].strip() == ""
        assert lines[token.line - 1][token.column - 1 :].startswith(token.text.split("\n")[0])
        at = token.end
    assert text[at:].strip() == ""


def test_tokens_of_every_kind() -> None:
    text = "a<<=0x1p-14f; // x + 1\n#define B 1 + \\\n 2\nf(\"a+b\", 'c', 1.5f, .5e-3, 0xFFu, 12L)->x ? y::z : !w;"
    found = [(t.kind, t.text) for t in mutator.tokens(text)]
    assert ("float", "0x1p-14f") in found
    assert ("op", "<<=") in found
    assert ("comment", "// x + 1") in found
    assert ("directive", "#define B 1 + \\\n 2") in found
    assert [t for k, t in found if k == "text"] == ['"a+b"', "'c'"]
    assert [t for k, t in found if k in ("float", "int")] == ["0x1p-14f", "1.5f", ".5e-3", "0xFFu", "12L"]
    with pytest.raises(ValueError, match=r"line 2: no token begins with '@'"):
        mutator.tokens("a\n@")


def code(text: str) -> list[str]:
    return [t.text for t in mutator.tokens(text) if t.kind != "comment"]


@pytest.mark.parametrize("file", FILES)
def test_each_mutant_is_one_edit(file: str) -> None:
    """One token replaced, or something inserted or left out in one place; never a comment, string or directive."""
    text = TEXTS[file]
    original = code(text)
    left_alone = [(t.start, t.end) for t in mutator.tokens(text) if t.kind in ("comment", "text", "directive")]
    mutants = mutator.mutants(file, text)
    assert mutants == mutator.mutants(file, text)
    assert len({m.id for m in mutants}) == len(mutants)
    for mutant in mutants:
        assert not any(a <= mutant.start < b for a, b in left_alone), mutant.id
        assert mutant.old != mutant.new
        assert text[mutant.start :].startswith(mutant.old)
    for mutant in random.Random(1).sample(mutants, min(12, len(mutants))):
        changed = code(mutant.applied(text))
        assert changed != original, mutant.id
        first = next(i for i in range(len(original) + 1) if changed[i : i + 1] != original[i : i + 1])
        last = next(i for i in range(len(original)) if changed[-1 - i] != original[-1 - i])
        gone, came = original[first : len(original) - last], changed[first : len(changed) - last]
        one = max(len(gone), len(came)) <= 4  # `]` → `+ 1]`, `?` → `== 0 ?`, a function → a cast
        assert one or (mutant.operator == "statement-left-out" and len(came) <= 1), (mutant.id, gone, came)


def test_ids_hold_a_place_and_an_operator() -> None:
    mutants = {m.id: m for m in mutator.mutants(NAIVE, TEXTS[NAIVE])}
    place = next(i for i in mutants if i.endswith(":op+=to-="))
    assert re.fullmatch(re.escape(NAIVE) + r":\d+:\d+:op\+=to-=", place)
    line = TEXTS[NAIVE].splitlines()[mutants[place].line - 1]
    assert line[mutants[place].column - 1 :].startswith("+=")
    assert "⟦+= → -=⟧" in mutants[place].diff(TEXTS[NAIVE])
    with pytest.raises(ValueError, match="does not read"):
        mutants[place].applied("x" + TEXTS[NAIVE])


def test_operators_of_a_made_source() -> None:
    """What each operator makes of a source that has one place for it."""
    text = (
        "struct alignas(4) B {\n    uint8_t qs[16];\n};\n"
        "#ifdef __CUDACC__\nint left = alone + 1;\n#else\nint too = 2;\n#endif\n"
        "void f(int low, int n) {\n"
        "    if (low < 0x0F) __syncthreads();\n"
        "    y[low] = -1.5f * fminf(a << 4, b >> 2) + (n % 3 ? 1 : 0);\n"
        "    acc = __fmaf_rn(a->d, b, acc);\n}\n"
    )
    made = {(m.old, m.new) for m in mutator.mutants("gemm/made.cu", text)}
    for pair in (
        ("0x0F", "0xF0"), ("<", "<="), ("if", "IF_NOT"), ("__syncthreads", "LEFT_OUT"), ("]", " + 1]"), ("-", ""),
        ("1.5f", "2.5f"), ("1.5f", "0.0f"), ("fminf", "fmaxf"), ("<<", ">>"), ("4", "3"), (">>", "<<"), ("%", "/"),
        ("?", "== 0 ?"), ("*", "+"), ("+", "-"), ("__fmaf_rn", "UNFUSED"), ("d", "s"), ("low", "high"),
        ("acc = __fmaf_rn(a->d, b, acc)", ""), ("uint8_t", "int8_t"),
    ):  # fmt: skip
        assert pair in made, pair
    of_lines = {m.line for m in mutator.mutants("gemm/made.cu", text)}
    assert not of_lines & {4, 5, 6, 7, 8}
    unobservable = [m for m in mutator.mutants("gemm/made.cu", text) if m.unobservable]
    assert {m.line for m in unobservable} == {1}


def test_what_is_mutated() -> None:
    assert {"common.cuh", "packed.cuh", "quantize/q8_1.cuh", "pack/weights.cu", "formats/q4_0.cuh", NAIVE} <= set(FILES)
    assert not any("host" in f or f == "hopper.cuh" for f in FILES)
    for file in FILES:
        assert kill.subjects(KERNELS, file) or not mutator.mutants(file, TEXTS[file]), file
        assert kill.row_of(file) in report.ROWS


def test_a_larger_sample_holds_a_smaller_one() -> None:
    everything = {file: mutator.mutants(file, TEXTS[file]) for file in (NAIVE, "common.cuh")}
    few, more = (kill.sampled(everything, f, 3) for f in (0.1, 0.3))
    for file, all_of_it in everything.items():
        assert set(few[file]) < set(more[file]) < set(all_of_it)
        assert few[file] != sorted(few[file], key=lambda m: m.start)
    assert kill.sampled(everything, 0.1, 4) != few


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_process_tells_its_answer_death_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    def dies(phase: Callable[[str], None]) -> dict[str, Any]:
        phase("probes")
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    def loops(phase: Callable[[str], None]) -> dict[str, Any]:
        while True:
            pass

    def raises(phase: Callable[[str], None]) -> dict[str, Any]:
        raise RuntimeError("a mutant's")

    answer = kill.in_child(lambda phase: {"outcome": "same", "by": "é"}, 5)
    assert (answer["outcome"], answer["by"]) == ("same", "é")
    assert kill.in_child(dies, 5) == {"outcome": "died", "by": "SIGSEGV", "phase": "probes"}
    start = time.monotonic()
    assert kill.in_child(loops, 0.5)["by"] == "time limit"
    assert time.monotonic() - start < 30
    with pytest.raises(EnvironmentFault, match="a mutant's"):  # our own failure kills no mutant
        kill.in_child(raises, 5)


# -- some mutants -----------------------------------------------------------------------------------------------------


def chosen(*edits: tuple[str, str], file: str = NAIVE) -> list[mutator.Mutant]:
    """The mutants of a source with these differences in lines that hold these texts."""
    everything = mutator.mutants(file, TEXTS[file])
    found = []
    for old_new, within in edits:
        of = [m for m in everything if f"⟦{old_new}⟧" in m.diff(TEXTS[file]) and within in m.diff(TEXTS[file])]
        assert of, (old_new, within)
        found.append(of[0])
    return found


def test_what_becomes_of_mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "subjects", lambda root, file: [gate.Subject("q8_1_naive", "Q4_0")])
    some = chosen(
        ("+= → -=", "xb->qs[k]"),  # wrong
        ("s → d", "half_to_float"),  # wrong in what a sum over many hides least
        ("+= → -=", "stride"),  # writes far outside
        ("] → + 1]", "int8_t q[QK"),  # the same
        ("h → s", "++"),  # loops
        ("i → j", "y["),  # does not compile
        ("< → <=", "i "),  # writes one output too many
    )
    bench = kill.Bench(tmp_path)
    found = {r["id"]: r for r in bench.batch(some)}
    outcomes = [found[m.id]["outcome"] for m in some]
    assert outcomes == ["killed", "killed", "killed", "same", "killed", "uncompilable", "killed"]
    wrong, exchanged, crash, same, loop, _, outside = (found[m.id] for m in some)
    assert set(wrong["gates"]) == set(gate.GATES)
    assert wrong["by"] == exchanged["by"] == "bound"
    assert crash["by"].startswith("SIG") or crash["by"] == "time limit"
    assert loop["by"] == "time limit"
    assert "wrote outside its output" in outside["by"]
    assert outside["gates"] == []  # no other gate looks there
    assert same["by"] == ""
    source = TEXTS[NAIVE]
    assert bench.same_code(some[3], source)
    assert not bench.same_code(some[0], source)
    assert list(tmp_path.glob("batch-*")) == []


def test_what_only_other_shapes_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail that the model's own shapes never have, and a read past the end that is not used."""
    file = "quantize/q8_1.cu"
    monkeypatch.setattr(kill, "subjects", lambda root, file: [gate.Subject("q8_1_naive", "Q4_0")])
    some = chosen(("+ → -", "8 <= n_blocks"), ("< → <=", "if (b "), file=file)
    tail, beyond = kill.Bench(tmp_path).batch(some)
    assert tail["outcome"] == "killed"
    assert "wrote outside its output" in tail["by"]
    assert (beyond["outcome"], beyond["overreads"]) == ("same", True)


# -- a run ------------------------------------------------------------------------------------------------------------


def options(tmp_path: Path, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    kill.add_arguments(parser)
    paths = ["--lines", str(tmp_path / "lines.jsonl"), "--work", str(tmp_path / "work")]
    return parser.parse_args([*arguments, *paths])


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def batch(self: kill.Bench, some: list[mutator.Mutant]) -> Any:
        for m in some:
            (tmp_path / "seen").open("a").write(m.id + "\n")
            yield {"id": m.id, "outcome": "same", "by": "", "diff": "", "seconds": 0.0}

    monkeypatch.setattr(kill.Bench, "batch", batch)
    asked = options(tmp_path, "--only", "01_naive", "--sample", "0.2", "-j", "1")
    assert kill.run(asked) == 0
    seen = (tmp_path / "seen").read_text().splitlines()
    lines = asked.lines.read_text().splitlines(keepends=True)
    assert len(seen) == len(lines) == len(set(seen)) > 30
    assert "0 s left" in capsys.readouterr().err
    asked.lines.write_text("".join(lines[:10]) + lines[10][:20])  # cut off within a line
    assert kill.run(asked) == 0
    again = (tmp_path / "seen").read_text().splitlines()[len(seen) :]
    assert sorted(again) == sorted(json.loads(line)["id"] for line in lines[10:])
    assert set(kill.finished(asked.lines)) == set(seen)
    assert kill.run(asked) == 0
    assert len((tmp_path / "seen").read_text().splitlines()) == len(seen) + len(again)


def test_survivors_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--again` those that nothing explains, `--again-all` every one but what a compiler proved or this run judged."""

    def batch(self: kill.Bench, some: list[mutator.Mutant]) -> Any:
        for m in some:
            yield {"id": m.id, "outcome": "killed", "by": "anew"}

    monkeypatch.setattr(kill.Bench, "batch", batch)
    names = [m.id for m in kill.population(KERNELS)[NAIVE]]
    outcomes = [
        ("killed", ""), ("missed", ""), ("same", ""), ("same", "said"), ("same", kill.SAME_CODE), ("uncompilable", ""),
    ]  # fmt: skip
    rest = [("unobservable", "")] * (len(names) - len(outcomes))
    before = {i: {"id": i, "outcome": o, "by": by} for i, (o, by) in zip(names, [*outcomes, *rest], strict=True)}
    only = ["--only", NAIVE, "-j", "1"]
    for more, judged in (([], []), (["--again"], [1, 2]), (["--again-all"], [3]), (["--again-all"], [])):
        asked = options(tmp_path, *only, *more)
        had = set(kill.finished(asked.lines))
        assert kill.run(asked, lambda r: bool(r["by"]), before) == 0
        assert set(kill.finished(asked.lines)) - had == {names[i] for i in judged}


GEMV, WGMMA = "gemm/q8_1/08_gemv.cu", "gemm/q8_1/07_wgmma.cu"
RING = {"TOKENS": "2", "WARPS": "8", "STAGES": "2", "X_BLOCKS": "32"}
TILES = {"TOKENS": "64", "WARPGROUPS": "2", "CTAS": "1", "STAGES": "8", "PART_STAGES": "0"}


def line_of(file: str, what: str) -> int:
    return TEXTS[file][: TEXTS[file].index(what)].count("\n") + 1


def unit_of(file: str, macros: dict[str, str]) -> Unit:
    return Unit(file, tuple({**FORMATS["Q5_1"].macros, **macros}.items()))


def test_lines_of_functions_that_nobody_calls() -> None:
    bytes_of, halves_of = (line_of("packed.cuh", f) for f in ("a[r + 2 * j] = p.codes", "a[j][r + 2 * odd] = two"))
    constant = line_of("packed.cuh", "constexpr int WORDS")
    for file, macros, alive, dead in ((GEMV, RING, bytes_of, halves_of), (WGMMA, TILES, halves_of, bytes_of)):
        lines = lines_alive(KERNELS, unit_of(file, macros), ("gemm",))
        assert {constant, alive} <= lines["packed.cuh"]
        assert dead not in lines["packed.cuh"]
        assert line_of(file, "__launch_bounds__") in lines[file]


def test_units_that_a_mutant_is_part_of(tmp_path: Path) -> None:
    """All that hold its line; of a header without macros, those whose ring alone differs once."""
    units = [unit_of(GEMV, RING | change) for change in ({}, {"X_BLOCKS": "64"}, {"TOKENS": "4"}, {"STAGES": "3"})]
    other = unit_of("pack/weights.cu", {"STRIPS": "1"})
    alive = {unit: {"packed.cuh": frozenset({36, 37}), GEMV: frozenset({31})} for unit in units} | {other: {}}
    subject = gate.Subject("q8_1_gemv", "Q5_1")
    none = gate.Calls(subject.weights)
    bench = kill.Bench(tmp_path)
    bench._gates[subject] = gate.Gate(subject, none, none, dict.fromkeys(alive, ("gemm",)), alive)
    in_header, in_source = (next(m for m in mutator.mutants(f, TEXTS[f]) if m.line == line)
                            for f, line in (("packed.cuh", 36), (GEMV, 31)))  # fmt: skip
    assert bench.units(subject, in_header) == [units[0], units[2]]
    assert bench.units(subject, in_source) == units


def test_no_mutant_of_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kill.run(options(tmp_path, "--mutant", "common.cuh:1:1:none")) == 2
    assert "no mutant is called common.cuh:1:1:none" in capsys.readouterr().err


# -- other gates ------------------------------------------------------------------------------------------------------


def call_of(exact: np.ndarray, values: np.ndarray) -> gate.Call:
    product = Product(exact, np.ones_like(exact), np.ones_like(exact), None)
    return gate.Call("product", 0, np.zeros((1, 1)), exact.astype(np.float32), product, values)


def test_other_gates() -> None:
    o = np.array([[3.0, 4.0]])
    assert gate.nmse(np.array([[3.0, 4.5]]), o) == pytest.approx(0.25 / 25)
    assert gate.cosine(np.array([[4.0, 3.0]]), o) == pytest.approx(24 / 25)
    call = call_of(o, 1.1 * o)
    passed = gate.other_gates(np.float32([[3.0, 4.0]]), call)
    assert passed == {
        "nmse values": False, "allclose values": False, "cosine values": True,
        "nmse definition": True, "allclose definition": True, "cosine definition": True,
    }  # fmt: skip
    # each limit from both sides
    assert gate.other_gates(np.float32([[3.0, 4.0 + 5 * 0.0223]]), call)["nmse definition"]
    assert not gate.other_gates(np.float32([[3.0, 4.0 + 5 * 0.0225]]), call)["nmse definition"]
    assert gate.other_gates(np.float32([[3.0, 4.049]]), call)["allclose definition"]
    assert not gate.other_gates(np.float32([[3.0, 4.051]]), call)["allclose definition"]
    assert not gate.other_gates(np.float32([[5.0, 4.0]]), call)["cosine definition"]
    assert not any(gate.other_gates(np.float32([[np.nan, 4.0]]), call).values())
    assert set(passed) == set(gate.GATES)


def test_verify_model_agrees_where_both_pass_or_neither() -> None:
    assert agrees("killed", "mismatch")
    assert agrees("killed", "time limit")
    assert agrees("same", "verified")
    assert not agrees("killed", "verified")
    assert not agrees("missed", "mismatch")


# -- figures ----------------------------------------------------------------------------------------------------------

RECORDS = {
    r["id"]: r
    for r in (
        {"id": "gemm/a.cu:10:2:x", "outcome": "killed", "by": "bound", "gates": list(gate.GATES), "diff": "d"},
        {"id": "gemm/a.cu:9:2:x", "outcome": "killed", "by": "time limit", "gates": ["nmse values"], "diff": "d"},
        {"id": "gemm/a.cu:9:3:x", "outcome": "missed", "by": "M=1", "diff": "d|`e", "subject": "k Q4_0"},
        {"id": "gemm/a.cu:9:4:x", "outcome": "same", "by": "", "diff": "why not"},
        {"id": "gemm/a.cu:9:5:x", "outcome": "uncompilable", "by": "", "diff": "d"},
        {"id": "pack/b.cu:1:1:x", "outcome": "unobservable", "by": "", "diff": "d"},
        {"id": "pack/b.cu:1:2:y", "outcome": "same", "by": "the same object code", "diff": "d"},
        {"id": "pack/b.cu:1:3:y", "outcome": "same", "by": "", "diff": "mystery"},
        {"id": "pack/b.cu:1:4:y", "outcome": "same", "by": "", "diff": "further", "overreads": True},
    )
}


def test_outcomes_and_gates_as_codes() -> None:
    for outcome in report.LETTERS:
        assert report.decoded(report.encoded(outcome)) == (outcome, frozenset())
    for i, name in enumerate(gate.GATES):
        assert report.encoded("killed", [name]) == f"K{1 << i:02x}"
        assert report.decoded(f"P{1 << i:02x}") == ("passed", {name})
    with pytest.raises(ValueError, match="is no outcome"):
        report.decoded("X00")


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
    report.save(path, data)
    assert report.load(path) == data
    lines = report.table(data)
    assert lines[2].split(" | ")[:5] == ["| GEMM sources", "4", "3", "2 (66.7 %)", "2 (66.7 %)"]
    assert lines[3].split(" | ")[:4] == ["| packing", "3", "0", ""]
    assert lines[4].split(" | ")[:5] == ["| catalogue faults", "1", "1", "1 (100 %)", "1 (100 %)"]
    kill_part["population"]["gemm/c.cu"] = 0
    assert "None yet" not in report.summary(data)
    kill_part["population"]["gemm/c.cu"] = 1
    assert report.summary(data).endswith("None yet of `gemm/c.cu`.")
    del kill_part["population"]["gemm/c.cu"]
    assert "Of 45 mutants, a random part, 9 were run: 1 do not compile, 1 mean nothing" in report.summary(data)
    assert "2 were killed (1 by a time limit), 1 changed a bit of some valid input and were not" in report.summary(data)
    text = report.page(data, [{"file": "gemm/.*", "diff": "why not", "why": "because"}])
    missed, equivalent, unexplained = (text.split(f"## {t}")[1] for t in ("Missed", "Equivalent", "Unexplained"))
    assert "`gemm/a.cu:9:3:x` `d|e`: `M=1` (k Q4_0)" in missed
    assert "`gemm/a.cu:1:1:x` `seen`: `M=7`" in missed.split("beside those that count")[1]
    assert "`gemm/a.cu:9:4:x` `why not`: because" in equivalent
    assert "the same object code" in equivalent.split("## ")[0]
    assert "mystery" in unexplained
    assert "`further`: reads past the end" in text.split("## Not observable on this host")[1].split("## ")[0]
    assert "mystery" not in equivalent.split("## ")[0]
    path.write_text('{"kill": {"mutants": {"a": {"1:1:x": "X"}}}}')
    with pytest.raises(SystemExit, match="holds no results"):
        report.load(path)
    assert report.load(tmp_path / "none.json") == {}


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
    assert "9,999 (99.9 %)" in report.table(data)[2]


def test_markers() -> None:
    text = "a\n<!-- mutation: kill -->\nold\n<!-- end -->\nb\n"
    assert (
        between_markers(text, {"kill": "new \\1"}, "mutation")
        == "a\n<!-- mutation: kill -->\nnew \\1\n<!-- end -->\nb\n"
    )
    with pytest.raises(SystemExit, match="0 places are marked"):
        between_markers(text, {"run": ""}, "mutation")


def test_reasons_are_a_file_of_reasons(tmp_path: Path) -> None:
    assert all(r["why"] for r in report.reasons())
    path = tmp_path / "r.toml"
    path.write_text('[[equivalent]]\nfile = "a"\ndiff = "("\nwhy = "x"\n')
    with pytest.raises(SystemExit):
        report.reasons(path)


def test_tables_and_page_are_what_the_results_give() -> None:
    data = report.load(report.RESULTS)
    text = report.TABLES.read_text()
    assert between_markers(text, mutation_score.tables(data), "mutation") == text
    assert report.page(data) == report.PAGE.read_text()
    assert report.RESULTS.stat().st_size < 1_000_000
