"""Records of measured verifications and planted faults: their file, the tables, and the plot."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gguf_verify.support.errors import EnvironmentFault, UsageError
from tools.measure import markdown
from tools.measure.bench import growth, options, planted, processes, records, verify
from tools.measure.bench.processes import Gpus, measured, visible_gpus
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


# ---- bench processes -------------------------------------------------------------------------------------------------
# What a command uses: memory, cores and GPUs, with its children.


#: Spends a fifth of a second of a core, takes 64 MiB, says so, and waits.
CHILD = """
import sys, time
held = bytearray(b"x") * (1 << 26)
while time.process_time() < 0.2: pass
print("ready", flush=True)
sys.stdin.read()
"""
#: As `CHILD`, in a child of its own.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.mark.parametrize("program", [CHILD, PARENT])
def test_resources_of_a_process_tree(program: str) -> None:
    seen = processes._Seen()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        seen.look(child.pid)
        child.stdin.close()
    assert seen.peaks[0] >= seen.peaks[1] >= 1 << 26
    assert sum(seen.processor.values()) >= 0.15
    assert len(seen.processor) == (2 if program is PARENT else 1)


def test_memory_without_a_proportional_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.setattr(Path, "read_text", lambda self: "900 70 30 1 0 50 0\n")
    assert processes.memory(1) == (70 * processes._PAGE, 40 * processes._PAGE)


def test_a_measured_command() -> None:
    done = measured(
        [sys.executable, "-c", "import os, sys; sys.exit(int(os.environ['CODE']))"], variables={"CODE": "7"}
    )
    assert done.code == 7
    assert done.seconds > 0
    assert done.gpu is None
    assert done.disk is None  # of no file
    unwatched = measured([sys.executable, "-c", ""], watched=False)
    assert (unwatched.peak, unwatched.processor) == (0, None)


def test_the_disk_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    assert processes.device_seconds(tmp_path) is None or processes.device_seconds(tmp_path) >= 0
    lines = "\n".join([
        " 7 0 loop0 1 0 0 0 0 0 0 0 111 0",
        f" {number >> 8 & 0xFFF} {number & 0xFF} sda 1 0 0 0 0 0 0 0 0 2500 0",
    ])  # fmt: skip
    monkeypatch.setattr(Path, "read_text", lambda self: lines)
    monkeypatch.setattr("os.major", lambda n: n >> 8 & 0xFFF)
    monkeypatch.setattr("os.minor", lambda n: n & 0xFF)
    assert processes.device_seconds(tmp_path) == 2.5


def program(folder: Path, text: str) -> None:
    """A `nvidia-smi` in a folder."""
    folder.joinpath("nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    folder.joinpath("nvidia-smi").chmod(0o755)


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Means over samples and GPUs; the largest memory of each; what is not known counts for nothing."""
    said = "GPU-a, 50, 100\\nGPU-b, 0, 10\\nGPU-a, [N/A], 7\\nGPU-a, 100, 300\\nGPU-b, 50, 5\\n"
    program(tmp_path, f'echo "$@" > {tmp_path}/arguments; printf "{said}"; exec sleep 600')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gpus = Gpus(["0", "GPU-b"])
    assert (gpus.busy, gpus.memory) == (None, None)
    with gpus.watched():
        while len(gpus._busy) < 4:
            time.sleep(0.01)
    assert gpus.busy == 0.5
    assert gpus.memory == 310 << 20
    assert "-i 0,GPU-b --query-gpu=" in (tmp_path / "arguments").read_text()


def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "printf '0\\n1\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-x")
    assert visible_gpus() == ["3", "GPU-x"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program(tmp_path, "exit 9")
    assert visible_gpus() == []
    (tmp_path / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    with Gpus(["0"]).watched():
        pass
