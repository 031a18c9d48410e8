"""Nights of real cells."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gguf_verify_nightly.history import History
from gguf_verify_nightly.records import Cell, Night
from tests.support.project_copy import ProjectCopy
from tests.support.stub_nights import killed_and_resumed, plain, write_config
from tests.support.tools import ROOT


def nightly(root: Path, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "nightly.py"), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(root / "harness")}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, check=False)


def test_a_planted_regression_is_reported_exactly_and_alone(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, "kernels = ['q8_1', 'f32']\nn_predict = 2\nthreads = 1\njobs = 2",
        story="Once upon a time", fox="The quick brown fox",
    )  # fmt: skip
    first = nightly(ROOT, "run", path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "4 cells, 4 verified" in first.stdout
    assert all(line.startswith("gguf-verify: ") for line in first.stderr.splitlines())
    copy = ProjectCopy(tmp_path / "copy")
    copy.also("pyproject.toml")
    source = copy.root / "kernels/gemm/f32/01_naive.cu"
    source.write_text(source.read_text().replace("float acc = 0.0f;", "float acc = i == 77 ? 0.5f : 0.0f;"))
    second = nightly(copy.root, "run", path)
    assert second.returncode == 1, second.stdout + second.stderr
    compared = nightly(ROOT, "compare", path)
    assert compared.returncode == 1
    told = [line for line in compared.stdout.splitlines()[:-1] if line.split()[0].isupper() and "CHANGED" not in line]
    wrong = "NEW FAILURE tiny.gguf · f32 · cpu · {} · installed: verified → mismatch: "
    assert len(told) == 2, compared.stdout
    for line, prompt in zip(told, ("story", "fox"), strict=True):
        assert line.startswith(wrong.format(prompt))
    assert (
        "2 new failures, 0 fail in another way, 0 vanished, 0 fixed, 0 waived, 0 still failing, 0 appeared"
        in compared.stdout
    )
    with History(tmp_path / "nightly.sqlite") as history:
        night = history.night(1)
        assert history.night(2).cells[night.planned[0]].measures == night.cells[night.planned[0]].measures
    cell = night.cells[night.planned[0]]
    assert len(cell.gemms) == 22
    assert {m.rung for m in cell.measures} == {"blocks", "layers", "tokens"}
    assert "layers: gap to llama.cpp, worst NMSE" in cell.figures


def without_times(night: Night) -> list[Cell]:
    cells: list[Any] = plain(night)
    return [dataclasses.replace(cell, rung_seconds={}) for _, cell in cells]


def test_real_cells_killed_and_resumed(tmp_path: Path) -> None:
    prompts = {"a": "Once upon a time", "b": "The quick brown fox", "c": "One day"}
    text = "n_predict = 2\nthreads = 1\nkernels = ['q8_1', 'f32']"
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, text, **prompts)

    def start(name: str) -> int:
        command = [sys.executable, str(ROOT / "scripts" / "nightly.py"), "run", str(tmp_path / name / "night.toml")]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
        return os.posix_spawn(sys.executable, command, env)

    begun = time.monotonic()
    assert os.waitpid(start("whole"), 0)[1] == 0
    longest = time.monotonic() - begun
    with History(tmp_path / "whole" / "nightly.sqlite") as history:
        expected = history.night(1)
    night, met = killed_and_resumed(
        tmp_path, tmp_path / "killed" / "night.toml", lambda: start("killed"), 5, 11, longest / 4
    )
    assert without_times(night) == without_times(expected)
    assert met >= 2


def test_a_night_of_a_device(tmp_path: Path) -> None:
    """llama.cpp's own graph, twice: nothing drifts, since each operation gives the same bits."""
    path = write_config(
        tmp_path, "kernels = []\ndevices = ['CPU', 'Nowhere0']\nn_predict = 1\nthreads = 1", p="The import"
    )
    for number in (1, 2):
        done = nightly(ROOT, "run", path, "--new")
        assert done.returncode == 3, done.stdout + done.stderr
        assert f"night {number} of night" in done.stdout
        assert "2 cells, 1 verified, 1 broken off" in done.stdout
        assert "backend · Nowhere0 · p · installed: exit code 2: no device is called Nowhere0" in done.stdout
    with History(tmp_path / "nightly.sqlite") as history:
        first, second = (history.night(number) for number in (1, 2))
    right, key = first.cells[first.planned[0]], first.planned[0]
    assert (key.kernel, key.host) == ("backend", "CPU")
    assert right.verified
    assert right.measures == second.cells[key].measures
    assert {m.who for m in right.measures} >= {"MUL_MAT Q4_0", "ROPE", "RMS_NORM", "GLU SWIGLU"}
    assert right.versions["definition of ROPE on CPU"] == "f32"
    assert "llama-cpp-python" in right.versions
    assert right.host.endswith("GiB)")
    compared = nightly(ROOT, "compare", path, "--strict")
    assert compared.returncode == 3, compared.stdout  # that of the new night: a cell that still fails is no pass
    assert "1 still failing, 0 appeared, 0 utilisations drifted" in compared.stdout
