"""The mutation score: the outcomes of some mutants, and runs that resume where they stopped."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.packed import Layout
from gguf_verify.rungs import plan
from gguf_verify.semantics.sums import Product
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import kernel_root
from tools.measure.__main__ import main
from tools.measure.inputs import Floats
from tools.measure.mutation import forked, kill, mutator, population, probes, recording
from tools.measure.mutation.check import agrees
from tools.measure.mutation.recording import Call, Calls, Recording, Subject, cosine, nmse
from tools.measure.mutation.units import Unit, lines_alive
from tools.measure.results import OTHER_CHECKS

KERNELS = kernel_root()
NAIVE, TILED = "gemm/q8_1/01_naive.cu", "gemm/q8_1/02_tiled.cu"
TEXTS = {file: (KERNELS / file).read_text() for file in mutator.sources(KERNELS)}


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_process_returns_its_answer_death_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    def dies(phase: Callable[[str], None]) -> dict[str, Any]:
        phase("probes")
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    def loops(phase: Callable[[str], None]) -> dict[str, Any]:
        while True:
            pass

    def raises(phase: Callable[[str], None]) -> dict[str, Any]:
        raise RuntimeError("a mutant's")

    answer = forked.forked(lambda phase: {"outcome": "same", "by": "é"}, 5)
    assert (answer["outcome"], answer["by"]) == ("same", "é")
    assert forked.forked(dies, 5) == {"outcome": "died", "by": "SIGSEGV", "phase": "probes"}
    start = time.monotonic()
    assert forked.forked(loops, 0.5)["by"] == "time limit"
    assert time.monotonic() - start < 30
    with pytest.raises(EnvironmentFault, match="a mutant's"):  # our own failure kills no mutant
        forked.forked(raises, 5)


# -- some mutants -----------------------------------------------------------------------------------------------------


def chosen(*edits: tuple[str, str], file: str = NAIVE) -> list[mutator.Mutant]:
    """Return the mutants of a source with these differences in lines that contain these texts."""
    everything = mutator.mutants(file, TEXTS[file])
    found = []
    for old_new, within in edits:
        of = [m for m in everything if f"⟦{old_new}⟧" in m.diff(TEXTS[file]) and within in m.diff(TEXTS[file])]
        assert of, (old_new, within)
        found.append(of[0])
    return found


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix, and fewer other shapes."""
    monkeypatch.setattr(probes, "_SHAPES", probes._SHAPES[:3])
    monkeypatch.setattr(plan, "_SHAPES", plan._SHAPES[:4])
    monkeypatch.setattr(recording, "TENSORS", r"^blk\.0\.attn_k\.weight$")


@pytest.mark.usefixtures("few_probes")
def test_outcomes_of_mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "subjects", lambda root, file: [Subject("q8_1_tiled", "Q4_0")])
    low = "wq[load_slice][load_row][j] = low"
    some = chosen(
        ("+= → -=", "a[k]"),  # wrong
        (f"{low} → {low}; {low}", ""),
        ("g → c", "slices) {"),  # does not compile
        ("< → <=", "n0 + row ⟦< → <=⟧ N) y"),  # writes one output too many
        ("< → <=", "n0 + load_row ⟦< → <=⟧ N ?"),  # reads a row past the last one, which no output shows
        file=TILED,
    )
    judge = kill.MutantJudge(tmp_path)
    found = {r["id"]: r for r in judge.batch(some)}
    outcomes = [found[m.id]["outcome"] for m in some]
    assert outcomes == ["killed", "same", "uncompilable", "killed", "killed"]
    wrong, same, _, outside, beyond = (found[m.id] for m in some)
    assert set(wrong["checks"]) == set(OTHER_CHECKS)
    assert wrong["by"] == "bound"
    assert "wrote outside its output" in outside["by"]
    assert same["by"] == ""
    assert "reads outside its buffers" in beyond["by"]
    assert beyond["checks"] == []
    assert judge.same_code(some[1], TEXTS[TILED])
    assert not judge.same_code(some[0], TEXTS[TILED])
    assert list(tmp_path.glob("batch-*")) == []


@pytest.mark.usefixtures("few_probes")
def test_outcomes_of_a_checked_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unused part of a buffer is read; no rung's rows reveal it."""
    file = "quantize/q8_1.cu"
    monkeypatch.setattr(kill, "subjects", lambda root, file: [Subject("q8_1_naive", "Q4_0")])
    some = chosen(("+ → -", "8 <= n_blocks"), ("< → <=", "if (b "), file=file)
    tail, beyond = kill.MutantJudge(tmp_path).batch(some)
    assert tail["outcome"] == "killed"
    assert "wrote outside its output" in tail["by"]
    assert beyond["outcome"] == "killed"
    assert "reads" in beyond["by"]


@pytest.mark.usefixtures("few_probes")
def test_kernels_of_weights_that_are_not_quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run they accompany the kernel under test; here they are judged themselves."""
    file = "gemm/elements/01_naive.cu"
    monkeypatch.setattr(kill, "subjects", lambda root, file: [Subject("elements", "F16")])
    (wrong,) = chosen(("N → M", "i % "), file=file)
    (record,) = kill.MutantJudge(tmp_path).batch([wrong])
    assert record["outcome"] == "killed"


@pytest.mark.usefixtures("few_probes")
def test_copies_without_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of asynchronous copies that are not committed, and waits that are missing or too late."""
    monkeypatch.setattr(kill, "subjects", lambda root, file: [Subject("q8_1_gemv", "Q4_0")])
    operators, copies = ("statement-left-out", "statements-swapped"), ("async_commit", "async_wait")
    some = [m for m in mutator.mutants(GEMV, TEXTS[GEMV]) if m.operator in operators and m.old.startswith(copies)]
    assert len(some) == 7
    for record in kill.MutantJudge(tmp_path).batch(some):
        assert record["outcome"] == "killed", record
        assert "how long copies take" in record["by"]


# -- a run ------------------------------------------------------------------------------------------------------------


def options(tmp_path: Path, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    kill.add_arguments(parser)
    paths = ["--lines", str(tmp_path / "lines.jsonl"), "--work", str(tmp_path / "work")]
    return parser.parse_args([*arguments, *paths])


def test_a_run_resumes_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def batch(self: kill.MutantJudge, some: list[mutator.Mutant]) -> Any:
        for m in some:
            (tmp_path / "seen").open("a").write(m.id + "\n")
            yield {"id": m.id, "outcome": "same", "by": "", "diff": "", "seconds": 0.0}

    monkeypatch.setattr(kill.MutantJudge, "batch", batch)
    asked = options(tmp_path, "--only", "01_naive", "--sample", "30", "-j", "1")
    kill.run(asked)
    seen = (tmp_path / "seen").read_text().splitlines()
    lines = asked.lines.read_text().splitlines(keepends=True)
    assert len(seen) == len(lines) == len(set(seen)) >= 28
    assert "0 s left" in capsys.readouterr().err
    asked.lines.write_text("".join(lines[:10]) + lines[10][:20])  # cut off within a line
    kill.run(asked)
    again = (tmp_path / "seen").read_text().splitlines()[len(seen) :]
    assert sorted(again) == sorted(json.loads(line)["id"] for line in lines[10:])
    assert set(kill.finished(asked.lines)) == set(seen)
    kill.run(asked)
    assert len((tmp_path / "seen").read_text().splitlines()) == len(seen) + len(again)


def test_an_interrupted_run_shows_what_it_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, slow = tmp_path / "lines.jsonl", tmp_path / "slow"

    def batch(self: kill.MutantJudge, some: list[mutator.Mutant]) -> Any:
        if slow.exists() and lines.exists():
            time.sleep(60)  # the second batch of the first run, which the time limit ends
        for i, m in enumerate(some):
            yield {"id": m.id, "outcome": "killed" if i else "missed", "by": "M=1", "diff": "", "checks": []}

    monkeypatch.setattr(kill.MutantJudge, "batch", batch)
    slow.touch()
    files = ["--lines", str(lines), "--work", str(tmp_path), "--results", str(tmp_path / "r.json")]
    run = ["mutation", "kill", "--sample", "30", "--only", "tiled", "--seed", "1", "-j", "1", *files]
    assert main([*run, "--seconds", "1e-9"]) == 1
    first = capsys.readouterr()
    assert "SURVIVED" in first.out
    assert f"mutants remain; the same command continues from {lines}" in first.err
    assert not (tmp_path / "r.json").exists()
    slow.unlink()
    assert main(run) == 1
    whole = capsys.readouterr()
    assert "remain" not in whole.err
    assert whole.out.count("SURVIVED") > first.out.count("SURVIVED")
    assert (tmp_path / "r.json").exists()


def test_survivors_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--again` judges every survivor once more, except those that a compiler proves equivalent."""

    def batch(self: kill.MutantJudge, some: list[mutator.Mutant]) -> Any:
        for m in some:
            yield {"id": m.id, "outcome": "killed", "by": "anew"}

    monkeypatch.setattr(kill.MutantJudge, "batch", batch)
    names = [m.id for m in population.population(KERNELS)[NAIVE]]
    outcomes = [
        ("killed", ""), ("missed", ""), ("same", ""), ("same", "said"), ("same", population.SAME_CODE),
        ("uncompilable", ""),
    ]  # fmt: skip
    rest = [("unobservable", "")] * (len(names) - len(outcomes))
    before = {i: {"id": i, "outcome": o, "by": by} for i, (o, by) in zip(names, [*outcomes, *rest], strict=True)}
    for more, judged in (([], []), (["--again"], [1, 2, 3]), (["--again"], [])):
        asked = options(tmp_path, "--only", NAIVE, "-j", "1", *more)
        had = set(kill.finished(asked.lines))
        kill.run(asked, before)
        assert set(kill.finished(asked.lines)) - had == {names[i] for i in judged}


GEMV, WGMMA = "gemm/q8_1/08_gemv.cu", "gemm/q8_1/07_wgmma.cu"
RING = {"TOKENS": "2", "WARPS": "8", "STAGES": "2", "X_BLOCKS": "32"}
TILES = {"TOKENS": "64", "WARPGROUPS": "2", "CTAS": "1", "STAGES": "8", "PART_STAGES": "0"}


def line_of(file: str, what: str) -> int:
    return TEXTS[file][: TEXTS[file].index(what)].count("\n") + 1


def unit_of(file: str, macros: dict[str, str]) -> Unit:
    fmt = FORMATS["Q5_1"]
    return Unit(file, tuple({**fmt.macros, **Layout.of(fmt).macros, **macros}.items()))


def test_lines_of_unused_functions() -> None:
    bytes_of, halves_of = (line_of("packed.cuh", f) for f in ("a[r + 2 * j] = p.codes", "a[r + 2 * odd] = two"))
    constant = line_of("packed.cuh", "constexpr int WORDS")
    for file, macros, alive, dead in ((GEMV, RING, bytes_of, halves_of), (WGMMA, TILES, halves_of, bytes_of)):
        lines = lines_alive(KERNELS, unit_of(file, macros), ("gemm",))
        assert {constant, alive} <= lines["packed.cuh"]
        assert dead not in lines["packed.cuh"]
        assert line_of(file, "__launch_bounds__") in lines[file]


def test_units_of_a_mutant(tmp_path: Path) -> None:
    """All units that contain its line; for a header without macros, one of those that differ in the pipeline."""
    units = [unit_of(GEMV, RING | change) for change in ({}, {"X_BLOCKS": "64"}, {"TOKENS": "4"}, {"STAGES": "3"})]
    other = unit_of("pack/weights.cu", {"STRIPS": "1"})
    words, slot = line_of("packed.cuh", "constexpr int WORDS"), line_of(GEMV, "constexpr int SLOT")
    alive = {unit: {"packed.cuh": frozenset({words}), GEMV: frozenset({slot})} for unit in units} | {other: {}}
    subject = Subject("q8_1_gemv", "Q5_1")
    none = Calls()
    judge = kill.MutantJudge(tmp_path)
    judge._recordings[subject] = Recording(subject, none, none, none, dict.fromkeys(alive, ("gemm",)), alive)
    in_header, in_source = (next(m for m in mutator.mutants(f, TEXTS[f]) if m.line == line)
                            for f, line in (("packed.cuh", words), (GEMV, slot)))  # fmt: skip
    assert judge.units(subject, in_header) == [units[0], units[2]]
    assert judge.units(subject, in_source) == units


def test_an_unknown_mutant(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no mutant has the id common"):
        kill.run(options(tmp_path, "--mutant", "common.cuh:1:1:none"))


# -- other checks -----------------------------------------------------------------------------------------------------


def floats(values: list[list[float]]) -> Floats:
    return np.array(values, np.float32)


def call_of(exact: np.ndarray, values: np.ndarray) -> Call:
    product = Product(exact, np.ones_like(exact), np.ones_like(exact), None)
    return Call("product", 0, np.zeros((1, 1)), exact.astype(np.float32), product, values)


def test_other_checks() -> None:
    o = np.array([[3.0, 4.0]])
    assert nmse(np.array([[3.0, 4.5]]), o) == pytest.approx(0.25 / 25)
    assert cosine(np.array([[4.0, 3.0]]), o) == pytest.approx(24 / 25)
    call = call_of(o, 1.1 * o)
    passed = call.passed(floats([[3.0, 4.0]]))
    assert passed == {
        "nmse values": False, "allclose values": False, "cosine values": True,
        "nmse definition": True, "allclose definition": True, "cosine definition": True,
    }  # fmt: skip
    # each limit from both sides
    assert call.passed(floats([[3.0, 4.0 + 5 * 0.0223]]))["nmse definition"]
    assert not call.passed(floats([[3.0, 4.0 + 5 * 0.0225]]))["nmse definition"]
    assert call.passed(floats([[3.0, 4.049]]))["allclose definition"]
    assert not call.passed(floats([[3.0, 4.051]]))["allclose definition"]
    assert not call.passed(floats([[5.0, 4.0]]))["cosine definition"]
    assert not any(call.passed(floats([[np.nan, 4.0]])).values())
    assert set(passed) == set(OTHER_CHECKS)


def test_verdicts_agree_if_both_pass_or_neither() -> None:
    assert agrees("killed", "mismatch")
    assert agrees("killed", "time limit")
    assert agrees("same", "verified")
    assert not agrees("killed", "verified")
    assert not agrees("missed", "mismatch")
