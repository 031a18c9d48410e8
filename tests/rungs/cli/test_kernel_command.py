"""`gguf-verify kernel`: a kernel on random data, without a model."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from gguf_verify import Drawn, Options, verify
from gguf_verify.certificates.make import certify
from gguf_verify.cli import main
from gguf_verify.identification import identify_model
from gguf_verify.kernels.foreign.cuda import CudaKernels
from gguf_verify.rungs import drawn as drawing
from gguf_verify.support.errors import EnvironmentFault, UsageError
from tests.support.shown import last_line
from tests.support.tools import FIXTURES, ROOT, flat

NUMPY = f"{ROOT / 'examples' / 'numpy_q4_0.py'}:gemm"
BRIEF = Options(probes="brief", progress=False)
SMALL = Drawn(("Q4_0",), (2,), (5,), (64,))


def wrong(folder: Path) -> str:
    """The example with one nibble's place changed."""
    text = (ROOT / "examples" / "numpy_q4_0.py").read_text()
    path = folder / "wrong.py"
    path.write_text(text.replace('w["qs"] >> 4', 'w["qs"] >> 5'))
    assert path.read_text() != text
    return f"{path}:gemm"


#: A kernel of Q4_1, whose minimum's term is divided as if several threads shared a block.
OF_Q4_1 = """
import numpy as np

from gguf_verify import kernel

Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])


@kernel(formats=["Q4_1"], semantics="q8_1")
def gemm(weights, activations, shape):
    w, x = weights.view(Q4_1), activations.view(Q8_1)
    codes = np.concatenate([w["qs"] & 15, w["qs"] >> 4], axis=-1)
    y = np.zeros((shape.m, shape.n), np.float32)
    for b in range(shape.k // 32):
        d, m, d_a, s = (v[:, b].astype(np.float32) for v in (w["d"], w["m"], x["d"], x["s"]))
        products = x["qs"][:, b].astype(np.float32) @ codes[:, b].astype(np.float32).T
        y += d_a[:, None] * d * products + s[:, None] * m / np.float32(THREADS)
    return y
"""


@pytest.mark.parametrize(("threads", "said"), [(1, []), (4, ["the minimum's term is a quarter of what it should be"])])
def test_a_share_of_the_minimum_taken_for_the_whole_is_named(tmp_path: Path, threads: int, said: list[str]) -> None:
    path = tmp_path / "minimum.py"
    path.write_text(OF_Q4_1.replace("THREADS", str(threads)))
    report = verify(Drawn(("Q4_1",), (4,), (40,), (256,)), f"{path}:gemm", rungs=["layers"], options=BRIEF)
    assert report.exit_code == (1 if said else 0)
    diagnosis = report.rungs[0].diagnosis
    assert [f.words for f in diagnosis.faults] == said if diagnosis else not said


def test_a_pass_is_of_drawn_data_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page, summary = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.md"
    asked = ["--type", "Q4_0", "-M", "2,9", "-N", "5", "-K", "64", "--effort", "quick"]
    files = ["-o", str(out), "-o", str(page), "-o", str(summary)]
    assert main(["kernel", NUMPY, *asked, *files]) == 0
    out_text = capsys.readouterr().out
    shown = flat(out_text)
    assert last_line(out_text).startswith("VERIFIED ON RANDOM DATA (NO MODEL) (quick) in")
    assert "on random data (no model): Q4_0: M×N×K = 2×5×64; Q4_0: M×N×K = 9×5×64" in shown
    assert "quantized by llama.cpp" in shown
    report = json.loads(out.read_text())
    assert (report["verdict"], report["exit_code"]) == ("verified on drawn data", 0)
    assert report["drawn"]["products"] == [{"type": "Q4_0", "m": m, "n": 5, "k": 64} for m in (2, 9)]
    assert report["drawn"]["compared"] is True
    assert [rung["name"] for rung in report["rungs"]] == ["blocks", "layers"]
    assert {"kernel", "llama.cpp"} <= report["rungs"][1]["worst"].keys(), "llama.cpp computed the same products"
    assert shlex.split(report["command"])[:3] == ["gguf-verify", "kernel", NUMPY]
    for written in (page, summary):
        assert "erified on random data (no model)" in unescape(written.read_text())


def test_a_wrong_kernel_is_found_and_its_call_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [wrong(tmp_path), "-N", "5", "-K", "64", "--effort", "quick"]
    assert main(["kernel", *asked]) == 1
    shown = capsys.readouterr().out
    assert "DIAGNOSIS" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("repeat with: gguf-verify kernel "))
    again = shlex.split(line.partition("gguf-verify ")[2])
    assert "--only-call" in again
    assert main(again) == 1
    assert "only one call was made" not in capsys.readouterr().err


def test_without_llama_cpp_the_exact_product_judges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is said: in the verdict, in a note, in the JSON."""

    def refused(*_: object) -> None:
        raise AssertionError("llama.cpp was started")

    monkeypatch.setattr(drawing, "Llama", refused)
    monkeypatch.setattr("gguf_verify.rungs.run.Llama", refused)
    monkeypatch.setattr("gguf_verify.cli.kernel.why_missing", lambda: "llama.cpp is not installed")
    out = tmp_path / "r.json"
    asked = ["-N", "5", "-K", "64", "--effort", "quick", "-o", str(out)]
    assert main(["kernel", NUMPY, *asked]) == 0
    captured = capsys.readouterr()
    assert "llama.cpp is not installed, so the kernel is not compared with it" in captured.err
    assert last_line(captured.out).startswith(
        "VERIFIED ON RANDOM DATA (NO MODEL) (not compared with llama.cpp; quick) in"
    )
    report = json.loads(out.read_text())
    assert report["drawn"]["compared"] is False
    assert report["environment"]["versions"]["llama_cpp"] == "not asked"
    assert "random bits" in report["drawn"]["weights"]
    assert {gemm["llama"] for gemm in report["rungs"][1]["details"]} == {None}
    assert all(not name.startswith("llama.cpp") for rung in report["rungs"] for name in rung["worst"])
    assert main(["kernel", wrong(tmp_path), *asked[:-2]]) == 1
    assert main(["identify", NUMPY, "-N", "5", "-K", "64"]) == 0


def test_what_a_kernel_does_not_take_is_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", NUMPY, "--type", "Q4_1", "-N", "5", "-K", "64"]) == 5
    assert "does not cover type Q4_1" in flat(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--type", "Q4"], "no type of weights is called 'Q4'; did you mean"),
        (["-K", "40"], "-K 40 is no whole number of Q4_0 blocks of 32 values; -K 64 is"),
        (["-M", "0"], "-M must be at least 1"),
        (["-M", "many"], "'many' is neither a number nor a comma-separated list of numbers"),
        (["-N", "999999999", "-K", "320"], "N·K is 319,999,999,680 values; at most 67,108,864 are generated"),
        (["--rungs", "tokens"], "the tokens rung needs a model; on random data there are: blocks, layers"),
        (["--tensor", "attn"], "no tensor matches 'attn'"),
        (["--reference", "vulkan"], "--reference: no device is called vulkan: there is CPU"),
        (["--waivers", "w.toml"], "unknown option --waivers"),
    ],
)
def test_usage(asked: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", NUMPY, *asked]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out


def test_drawn_data_are_the_same_each_time_and_of_the_seed() -> None:
    one, again, other = (
        verify(SMALL, NUMPY, rungs=["blocks"], options=replace(BRIEF, seed=seed)).environment.file.sha256
        for seed in (0, 0, 1)
    )
    assert one == again != other


def test_no_certificate_and_no_case_is_made_of_drawn_data(tmp_path: Path) -> None:
    report = verify(SMALL, NUMPY, options=BRIEF)
    assert report
    assert report.verdict != "verified"
    with pytest.raises(EnvironmentFault, match="no certificate: the run used random data"):
        certify(report, None, None, ())
    with pytest.raises(UsageError, match="belong to a model, not to random data"):
        verify(SMALL, NUMPY, options=Options(save_case=str(tmp_path / "case"), progress=False))
    with pytest.raises(UsageError, match="gguf-verify kernel"):
        verify(FIXTURES / "tiny-Q4_0.gguf", NUMPY, options=Options(reference="none", progress=False))


def test_a_definition_is_identified_on_drawn_data() -> None:
    found = identify_model(SMALL, NUMPY)
    assert found.exit_code == 0
    assert {p.who for p in found.products} == {"numpy_q4_0.py:gemm", "llama.cpp"}
    assert found.command.startswith("gguf-verify identify ")


def test_only_the_types_that_are_needed_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten that are declared; and each is named as it is compiled."""
    text = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
    many = '["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]'
    path = tmp_path / "many.cu"
    path.write_text(text.replace('formats = ["Q4_0"]', f"formats = {many}"))
    built, said = [], []
    real = CudaKernels._of

    def recorded(self, fmt, schedule):
        built.append(fmt)
        return real(self, fmt, schedule)

    monkeypatch.setattr(CudaKernels, "_of", recorded)
    monkeypatch.setattr("gguf_verify.rungs.opening.Steps.__call__", lambda _, words: said.append(words))
    options = Options(probes="brief", progress=False, tensor="attn_k", prompt="a", n_predict=1)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", f"{path}:gemm", "cpu", ["blocks"], options)
    assert report
    assert set(built) == {"Q4_0"}
    assert "compiling Q4_0 for the CPU (1 of 1)" in said
    assert "llama.cpp loads the model" in said
