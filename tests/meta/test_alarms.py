"""False alarms: none is raised, planted ones are counted, and the inputs are as intended."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.sums import Product
from gguf_verify.support.errors import UsageError
from tests.support.tools import FIXTURES
from tools.measure import alarms
from tools.measure.__main__ import build_parser, main
from tools.measure.alarms import jobs, worker
from tools.measure.alarms.worker import LISTED, Tally, Worker
from tools.measure.inputs import WEIGHTS, Matrix, captured, fits, text


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    alarms.add_arguments(parser)
    return parser.parse_args(arguments)


def test_real_activations() -> None:
    found = captured(FIXTURES / "tiny-Q5_1.gguf", [text(0, 12), text(1, 12)], 10)
    assert len({m.tensor for m in found}) == len(found) == 22
    assert all(m.fmt.name == "Q5_1" and m.x.shape == (20, m.k) and m.x.any() for m in found)
    assert text(0, 12) == text(0, 12) != text(1, 12)
    assert len(text(3, 40).split()) == 40


FEW = ("--small", "--types", "Q4_0", "Q6_K", "F16", "--seeds", "0", "-j", "1", "--outputs")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fixture's matrices, fewer tokens."""
    monkeypatch.setattr(alarms, "QUANTIZED", (FIXTURES / "tiny-Q4_0.gguf",))
    monkeypatch.setattr(alarms, "UNQUANTIZED", FIXTURES / "tiny-F16.gguf")
    monkeypatch.setattr(jobs, "TOKENS", 12)
    monkeypatch.setattr(jobs, "OTHER_M", (1, 9))
    monkeypatch.setattr(jobs, "OWN_ROWS", 24)
    monkeypatch.setattr(jobs, "TEXT_TOKENS", 16)
    original = captured
    monkeypatch.setattr(jobs, "captured", lambda *a: original(*a)[:2])


def test_the_number_of_outputs_is_an_option_of_the_command() -> None:
    assert build_parser().parse_args(["alarms", "--outputs", "8e5"]).at_least == 800_000


@pytest.mark.usefixtures("few")
def test_no_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    figures = alarms.measured(options(*FEW, "8e5"))
    assert figures["alarms"] == 0
    assert figures["outputs"] >= 800_000
    assert figures["outputs"] == sum(figures["by"]["kernel"].values()) == sum(figures["by"]["type"].values())
    assert set(figures["by"]["kernel"]) == {
        *KERNELS, *FAMILIES, "f16_elements", "llama.cpp",
    }  # fmt: skip
    assert set(figures["by"]["type"]) == {"Q4_0", "Q6_K", "F16"}
    assert figures["by"]["activations"]["real"] > 10_000
    assert set(figures["by"]["activations"]) == {"real", "random", "special", "codes of -128"}
    assert figures["by"]["weights"][jobs.ANY_BITS] > 1000
    assert figures["activations quantized"] > 10_000
    assert 0 < max(figures["utilisation"].values()) < 1
    assert "jobs" in capsys.readouterr().err
    assert alarms.rows(figures)[0][1] == f"0 of {figures['outputs']:,} correct outputs"


@pytest.mark.usefixtures("few")
def test_the_same_seed_judges_the_same() -> None:
    first, again = (alarms.measured(options(*FEW[:2], "F16", *FEW[5:], "1")) for _ in range(2))
    assert first["outputs"] > 1000
    for name in ("outputs", "utilisation", "score", "by"):
        assert first[name] == again[name]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param({"bound": 0.001}, id="bound"),
        pytest.param({"spread": 1e-4}, id="score"),
        pytest.param({"ordered": 1 + 2.0**-23}, id="bits"),
    ],
)
def test_planted_alarms(monkeypatch: pytest.MonkeyPatch, planted: dict[str, float]) -> None:
    """An oracle with too narrow a bound or spread, or other bits, rejects correct outputs: each is counted."""
    original = product

    def narrow(semantics: Semantics, *arguments: Any) -> Product:
        p = original(semantics, *arguments)
        changed = {
            name: getattr(p, name) * np.float32(by) for name, by in planted.items() if getattr(p, name) is not None
        }
        return dataclasses.replace(p, **changed)

    monkeypatch.setattr(worker, "product", narrow)
    figures = alarms.measured(options(*FEW[:3], *FEW[5:], "1"))
    assert figures["alarms"] > 1000
    assert len(figures["listed"]) == LISTED
    assert all(a["what"] == "output" and a["by"] and a["shape"] for a in figures["listed"])


def test_wrong_bytes_of_a_quantizer_are_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array(captured(FIXTURES / "tiny-Q4_0.gguf", ["a word"], 4)[0].rows[:8])
    matrix = Matrix("m", "t", FORMATS["Q4_0"], rows, np.ones((1, 256), np.float32))
    monkeypatch.setattr(jobs, "KERNELS", {"q8_1_naive": KERNELS["q8_1_naive"]})
    worker = Worker("cpu", [matrix])
    job = jobs.Job(0, "q8_1", 4, 0, "random", fill=True)
    assert worker.do(job).n_alarms == 0
    original = ShippedKernel.quantize

    def wrong(self: Any, x: Any) -> Any:
        y = original(self, x).copy()
        y[1, 7] ^= 1
        return y

    monkeypatch.setattr(ShippedKernel, "quantize", wrong)
    found = worker.do(job)
    assert found.n_alarms == 1
    assert (found.alarms[0]["what"], found.alarms[0]["token"]) == ("bytes of the quantizer", 1)


@pytest.mark.parametrize("kind", ["special", "codes of -128"])
def test_values_of_the_probe_plan(kind: jobs.Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is only wrong for these values raises alarms; a correct one raises none."""
    monkeypatch.setattr(jobs, "KERNELS", {"q8_1_naive": KERNELS["q8_1_naive"]})
    rows = any_blocks(FORMATS["Q4_0"], 7 * 3, 1).reshape(7, -1)
    worker = Worker("cpu", [Matrix(jobs.ANY_BITS, "", FORMATS["Q4_0"], rows, np.zeros((1, 96), np.float32))])
    job = jobs.Job(0, "q8_1", 9, 0, kind)
    right = worker.do(job)
    assert (right.n_alarms, right.outputs) == (0, 9 * 7)
    product_of, gemm_of = ShippedKernel.product, ShippedKernel.gemm

    def product(self: Any, weights: Any, x: Any) -> Any:  # zeros are not
        return np.where(x.any(axis=1, keepdims=True), product_of(self, weights, x), np.float32(1e-3))

    def gemm(self: Any, weights: Any, x: Any) -> Any:  # -128 is taken for -127
        return gemm_of(self, weights, np.where(x == 0x80, np.uint8(0x81), x))

    monkeypatch.setattr(ShippedKernel, "product", product)
    monkeypatch.setattr(ShippedKernel, "gemm", gemm)
    assert worker.do(job).n_alarms >= 7


def test_a_product_that_overflows_everywhere_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KERNELS", {"f16_naive": KERNELS["f16_naive"]})
    rows = np.full((3, 64), 6e4, np.float16).view(np.uint8)
    worker = Worker("cpu", [Matrix("m", "", WEIGHTS["F16"], rows, np.full((2, 64), 1e6, np.float32))])
    assert worker.do(jobs.Job(0, "f16", 2, 0, "real")).outputs == 0
    small = dataclasses.replace(worker.matrices[0], x=np.ones((2, 64), np.float32))
    worker = Worker("cpu", [small])
    assert worker.do(jobs.Job(0, "f16", 2, 0, "real")).outputs > 0


def test_a_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    path, tally = tmp_path / "kept.json", Tally(outputs=5, utilisation={"k": 0.5})
    tally.by["kernel"]["k"] = 5
    assert alarms.kept(path, "run") == (0, Tally())
    alarms.keep(path, "run", 3, tally)
    done, found = alarms.kept(path, "run")
    assert (done, found) == (3, tally)
    found.add(tally)
    assert (found.outputs, found.by["kernel"]["k"]) == (10, 10)
    with pytest.raises(UsageError, match="of another run"):
        alarms.kept(path, "other seeds")
    path.write_text("{")
    with pytest.raises(UsageError, match="holds no checkpoint"):
        alarms.kept(path, "run")


def test_matrices_are_passed_to_other_processes(tmp_path: Path) -> None:
    x = np.arange(512, dtype=np.float32).reshape(2, 256)
    made = [Matrix("m", n, FORMATS["Q4_0"], np.full((3, 144), i, np.uint8), x, i == 1) for i, n in enumerate("ab")]
    made.append(dataclasses.replace(made[0], fmt=WEIGHTS["F16"], x=x + 1))
    alarms.save(made, tmp_path)
    assert len(list(tmp_path.glob("x*.npy"))) == 2
    for a, b in zip(made, alarms.load(tmp_path), strict=True):
        assert (a.source, a.tensor, a.fmt, a.own) == (b.source, b.tensor, b.fmt, b.own)
        assert np.array_equal(a.rows, b.rows)
        assert np.array_equal(a.x, b.x)


def test_random_inputs() -> None:
    rng = np.random.default_rng(0)
    for name in ("Q4_0", "IQ1_M", "MXFP4", "NVFP4"):
        blocks = jobs.random_bytes(FORMATS[name], 4, 256, rng).reshape(-1, FORMATS[name].block_bytes)
        assert np.isfinite(FORMATS[name].decode(blocks)).all()
    x = jobs.random_activations(400, 64, 1)
    assert (x == 0).any()
    assert 100 < np.abs(x).max() <= 1500
    assert np.abs(x).max(axis=1).min() < 1e-2
    real = jobs.real_activations(x[:3], 9, 0)
    assert {row.tobytes() for row in real[:3]} == {row.tobytes() for row in x[:3]}
    assert len({row.tobytes() for row in real}) == 9
    assert [name for name in WEIGHTS if not fits(WEIGHTS[name], 96)] == [
        name for name in FORMATS if 96 % FORMATS[name].block_size
    ]


def test_an_alarm_is_saved_printed_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "r.json"
    found: dict[str, Any] = {
        "host": "cpu", "outputs": 10, "alarms": 0, "listed": [], "by": {"kernel": {}}, "utilisation": {}, "score": {},
    }  # fmt: skip
    monkeypatch.setattr(alarms, "measured", lambda _: found)
    assert main(["alarms", "--results", str(results)]) == 0
    found = {**found, "alarms": 1, "listed": [{"kernel": "q8_1_mma"}]}
    assert main(["alarms", "--results", str(results)]) == 1
    assert "ALARM {" in capsys.readouterr().out
    assert json.loads(results.read_text())["alarms"]["cpu"] == json.loads(json.dumps(found))
