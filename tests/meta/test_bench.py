"""The benchmarks of verifications measure what they claim, on models small enough for a test."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.rungs import sampling
from gguf_verify.semantics.combinations import Combinations
from gguf_verify.support.errors import EnvironmentFault
from tools.measure.bench import planted, records, verify
from tools.measure.bench.models import RandomModel, Shape, model_file
from tools.measure.bench.options import prompt_of

TINY = ("--layers", "1", "--width", "256", "--ff", "512", "--heads", "4", "--kv-heads", "1", "--vocab", "300")
WRONG = """
import numpy as np
from gguf_verify import kernel

@kernel(["Q4_0"], semantics="q8_1")
def gemm(w, x, shape):
    return np.zeros((shape.m, shape.n), np.float32)
"""


def measured(part: Any, kind: type[records.R], file: Path, *words: str) -> tuple[int, records.R]:
    """Return the exit code and the single record of a measure."""
    parser = argparse.ArgumentParser()
    part.add_arguments(parser)
    code = part.run(parser.parse_args([*TINY, "--host", "cpu", "--no-page", "--results", str(file), *words]))
    (of_device,) = records.load(kind, file).values()
    (record,) = of_device
    return code, record


def test_a_verification_and_llama_cpp_are_timed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--tokens", "9", "-n", "1", "--options", "--rungs bytes,blocks --effort quick")
    code, run = measured(verify, records.Run, tmp_path / "results.json", *words)
    assert (code, run.verdict, run.host) == (0, "verified", "cpu")
    assert list(run.rungs) == ["bytes", "blocks"]
    assert run.seconds > sum(run.rungs.values()) > 0
    assert (run.layers, run.width, run.tokens, run.predicted) == (1, 256, 9, 1)  # llama.cpp counted the tokens
    assert run.file_bytes > RandomModel(Shape(1, 256, 512, 4, 1, 300), "Q4_0").data_bytes
    assert run.above > 1 << 24  # Python and NumPy alone
    assert run.processor > 0
    assert run.gpu is None or run.gpu <= 1
    assert 0 < run.llama.seconds < run.seconds
    assert run.llama.backend.startswith("llama.cpp's CPU backend, ")
    assert "verified in " in capfd.readouterr().out


def test_a_failed_verification_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    words = ("-n", "1", "--kernel", f"{file}:gemm", "--options", "--rungs blocks --tensor attn_k -x --sandbox none")
    code, run = measured(verify, records.Run, tmp_path / "results.json", *words)
    assert (code, run.verdict) == (1, "mismatch")
    with pytest.raises(EnvironmentFault, match="exit code 2 and no report"):
        measured(verify, records.Run, tmp_path / "results.json", "--kernel", "none-such")


def test_a_prompt_has_its_tokens(tmp_path: Path) -> None:
    with model_file(tmp_path, RandomModel(Shape(1, 256, 512, 4, 1, 300), "Q4_0")) as path:
        for tokens in (5, 8, 40):
            assert verify.evaluated(path, prompt_of(tokens), "cpu", 1)[0] == tokens


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the tiny model's matrices as large."""
    monkeypatch.setattr(sampling, "SMALL", 1 << 12)
    monkeypatch.setattr(sampling, "ROWS", 8)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(("kernel", "kind"), [("q8_1", "Q4_0"), ("q8_1_naive", "Q4_K_M")])
def test_planted_faults_are_found(kernel: str, kind: str, tmp_path: Path) -> None:
    words = ("--count", "2", "--kernel", kernel, "--type", kind)
    code, of = measured(planted, records.Planted, tmp_path / "results.json", *words)
    assert (code, of.right, of.planted, of.seen) == (0, True, 2, 2)
    assert of.promised == of.promised_found == of.found == of.thorough == 2
    assert 0 < of.smallest < 0.1


@pytest.mark.usefixtures("small_samples")
def test_a_broken_promise_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no combination is suspicious, only faults in sampled rows and in thorough runs are found."""
    monkeypatch.setattr(sampling, "ROWS", 1)
    monkeypatch.setattr(Combinations, "suspicious", lambda *_: False)
    code, of = measured(planted, records.Planted, tmp_path / "results.json", "--count", "2")
    assert code == 1
    assert of.found < of.thorough == of.promised == 2
    assert of.promised_found == of.found
