"""Records of measured verifications and planted faults: their file, the tables, and the plot."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gguf_verify.support.errors import EnvironmentFault, UsageError
from tools.measure import markdown
from tools.measure.bench import growth, options, planted, records, verify
from tools.measure.bench.records import Evaluation, Planted, Run

BASE: dict[str, Any] = {
    "date": "2026-01-02", "layers": 2, "width": 256, "ff": 512, "heads": 4, "kv_heads": 1, "vocab": 300,
    "type": "Q4_0", "file_bytes": 2_000_000, "tokens": 8, "kernel": "q8_1", "host": "cpu",
}  # fmt: skip


def ran(**changes: Any) -> Run:
    of = {"predicted": 4, "verdict": "verified", "seconds": 12.3, "rungs": {"bytes": 1.0}, "above": 1 << 29}
    return Run(**{**BASE, **of, **changes})


def faults(**changes: Any) -> Planted:
    of = {"seed": 0, "planted": 9, "seen": 8, "promised": 6, "promised_found": 6, "found": 7, "thorough": 8,
          "smallest": 0.004, "right": True}  # fmt: skip
    return Planted(**{**BASE, **of, **changes})


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_files_of_results(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert records.load(Run, path) == {}
    results = {"a": (ran(), ran(layers=3, gpu=0.5, llama=Evaluation(backend="CPU", threads=2, seconds=0.1)))}
    records.save(results, path)
    assert records.load(Run, path) == results
    assert len(path.read_text().splitlines()) == 4  # a run a line
    for damaged in ("{", '{"a": 1}', '{"a": [{"date": 1}]}', "[]"):
        path.write_text(damaged)
        with pytest.raises(UsageError, match="holds no results"):
            records.load(Run, path)


def test_the_last_of_equal_runs_counts() -> None:
    old, new = ran(seconds=1), ran(seconds=2, date="2026-02-03")
    others = [ran(**{name: value}) for name, value in {
        "layers": 1, "tokens": 9, "thorough": True, "gpus": 2, "ray": True, "options": "-x", "type": "Q8_0",
        "kernel": "f32", "host": "gpu", "predicted": 5,
    }.items()]  # fmt: skip
    results = records.merged({"a": (old, *others)}, {"a": (new,), "b": (old,)})
    assert results["b"] == (old,)
    assert len(results["a"]) == 1 + len(others)
    assert new in results["a"]
    assert old not in results["a"]
    assert records.merged(results, {}) == results


def test_a_row_of_a_verification() -> None:
    llama = Evaluation(backend="llama.cpp's CPU backend, 2 threads", threads=2, seconds=0.3)
    runs = (
        ran(processor=0.5, llama=llama),
        ran(layers=40, verdict="mismatch", above=None, thorough=True, ray=True, gpus=2),
    )
    head, _, first, second = rows(growth.tables({"cores": runs}, {})["verifications"])
    of_first, of_second = dict(zip(head, first, strict=True)), dict(zip(head, second, strict=True))
    assert of_first == {
        "weights": "Q4_0, 2 MB", "layers × width": "2 × 256", "prompt": "8", "predicted": "4", "how": "`q8_1`",
        "time": "12 s", "bytes": "1 s", "memory above the file's size": "0.50 GiB", "cores busy": "50 %",
        "llama.cpp": "0.3 s", "where": llama.backend, "time over llama.cpp's": "41×",
    }  # fmt: skip
    assert of_second["how"] == "`q8_1`, `--thorough`, `--ray`, 2 GPUs, **mismatch**"
    assert {of_second[name] for name in ("llama.cpp", "cores busy", "memory above the file's size")} == {""}


def test_a_row_of_planted_faults() -> None:
    made = growth.tables({}, {"cores": (faults(), faults(seed=1, promised_found=5, right=False))})["planted"]
    assert made.startswith("cores:\n\n|")
    _, _, first, second = rows(made)
    assert first[4:] == ["9, seed 0", "8", "7 (87.5 %)", "8 (100 %)", "0.004", "6 of 6", "verified"]
    assert second[-2:] == ["5 of 6", "**not verified**"]


def test_lines_join_runs_that_differ_in_one_field() -> None:
    runs = (
        ran(), ran(layers=5), ran(layers=3), ran(layers=3, tokens=9),
        ran(width=512, ff=1024, heads=8, kv_heads=2), ran(gpus=1, ray=True), ran(gpus=2, ray=True),
    )  # fmt: skip
    found = growth.series({"a": runs, "b": (ran(layers=7), ran(thorough=True))})
    assert {axis: [[getattr(r, axis) for r in of] for of in lines.values()] for axis, lines in found.items()} == {
        "layers": [[2, 3, 5]], "width": [[256, 512]], "tokens": [[8, 9]], "gpus": [[1, 2]],
    }  # fmt: skip
    assert list(found["layers"]) == ["a: Q4_0, width 256, 8 tokens, q8_1"]
    assert growth.series({"a": runs[:1]}) == {}
    twice = growth.series({"a": (*runs[:2], ran(predicted=9), ran(predicted=9, layers=5))})
    assert len(twice["layers"]) == 2


@pytest.mark.needs("matplotlib")
def test_the_plot(tmp_path: Path) -> None:
    path = tmp_path / "growth.svg"
    growth.plot({"a": (ran(),)}, path)
    assert not path.exists()  # there is no line
    growth.plot({"a": (ran(), ran(layers=5), ran(tokens=9))}, path)
    text = " ".join(ElementTree.parse(path).getroot().itertext())
    assert "by layers" in text
    assert "by tokens of the prompt" in text
    assert "by GPUs" not in text
    assert "GiB above the file's size" in text


def parsed(part: Any, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    part.add_arguments(parser)
    return parser.parse_args(words)


def test_results_of_another_machine_are_imported(tmp_path: Path) -> None:
    """Nothing is measured, and nothing but the results is written."""
    own, other, page = tmp_path / "own.json", tmp_path / "other.json", markdown.BENCHMARKS.read_bytes()
    for part, one, two in ((verify, ran(), ran(layers=3)), (planted, faults(), faults(seed=3))):
        records.save({"here": (one,)}, own)
        records.save({"there": (two,)}, other)
        assert part.run(parsed(part, "--results", str(own), "--from", str(other), "--no-page")) == 0
        assert records.load(type(one), own) == {"here": (one,), "there": (two,)}
        own.unlink()
    assert markdown.BENCHMARKS.read_bytes() == page
    with pytest.raises(UsageError, match="does not exist"):
        verify.run(parsed(verify, "--results", str(own), "--from", str(own), "--no-page"))
    assert not own.exists()


def test_a_page_needs_matplotlib_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault, match="--no-page draws none"):
        verify.run(parsed(verify))


def test_requested_shapes() -> None:
    args = parsed(verify, "--shape", "8B", "--layers", "1", "4", "--width", "256", "512", "--type", "Q4_0", "Q4_K_M")
    models = options.models_of(args)
    assert [(m.shape.layers, m.shape.width, m.kind) for m in models] == [
        (layers, width, kind) for width in (256, 512) for layers in (1, 4) for kind in ("Q4_0", "Q4_K_M")
    ]
    (explicit,) = options.shapes_of(parsed(verify, "--ff", "768", "--heads", "16", "--vocab", "400", "--kv-heads", "2"))
    assert (explicit.layers, explicit.ff, explicit.heads, explicit.kv_heads, explicit.vocab) == (22, 768, 16, 2, 400)
    with pytest.raises(UsageError, match="--tokens 4: a prompt has at least 5"):
        options.prompt_of(4)
    with pytest.raises(UsageError, match="--gpus needs --ray"):
        verify.run(parsed(verify, "--gpus", "1", "--no-page"))
