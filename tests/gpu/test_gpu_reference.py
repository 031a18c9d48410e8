"""llama.cpp's CUDA backend as the reference, on a GPU. Skipped by name where there is none for llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.cli import main
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS, WeightFormat
from gguf_verify.hosts.base import Host
from gguf_verify.hosts.choice import HOSTS, make_host
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.identification import identify_model
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.semantics import cuda
from gguf_verify.semantics.cuda import NoDefinition, llama_cuda_semantics
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.terms.codes import INTEGERS, SUMS
from gguf_verify.verification import verify
from tests.support import graphs
from tests.support.tools import FIXTURES, LEGACY, altered_kernel
from tests.support.typed_models import model_of

pytestmark = pytest.mark.needs("llama-gpu")

#: Both halves of a block's codes meet the first half of the activations.
WRONG = ("gemm/q8_1/04_dp4a.cu", "load_word_4(xb->qs, j + 4)", "load_word_4(xb->qs, j)")
RUNGS = ["blocks", "layers", "tokens"]
OPTIONS = Options(probes="brief", prompt="Once upon a time", n_predict=4, reference="gpu", progress=False, threads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu-reference")


@pytest.fixture(scope="module")
def host() -> Host:
    return CpuHost() if HOSTS["gpu"].fault() is not None else make_host("gpu")


def defined(fmt: BlockFormat) -> list[str]:
    names = []
    for tokens in (1, 9):
        try:
            names.append(llama_cuda_semantics(fmt, tokens).name)
        except NoDefinition:
            continue
    return names


OTHERS = [f for f in FORMATS.values() if f.name not in LEGACY and defined(f)]


def is_verified(report: Report, fmt: WeightFormat) -> None:
    """Every definition of the format, each within its bound; only formats without a definition are skipped."""
    assert isinstance(fmt, BlockFormat)
    names = defined(fmt)
    blocks, layers, tokens = report.rungs
    for rung in (blocks, layers):
        assert not rung.n_failures, rung.failures[0].what
        for name in names:
            assert 0 < rung.worst[f"llama.cpp as {name}"].utilisation < 0.5
            assert rung.worst[f"llama.cpp as {name}"].score < 10
    assert not tokens.n_failures, tokens.failures[0].what
    if len(names) == 2:
        assert report.verdict == "verified"
    else:
        assert report.exit_code == 5
        assert all(
            "unsupported with --reference gpu" in why or "was not judged" in why
            for why in [left.why for left in layers.unverified]
        )


@pytest.mark.parametrize("name", ["tiny-Q4_0", "tiny-Q5_1"])
def test_fixtures(host: Host, name: str) -> None:
    report = verify(FIXTURES / f"{name}.gguf", "q8_1_dp4a", host, ["bytes", *RUNGS], replace(OPTIONS, prompt="Once"))
    assert report.verdict == "verified"
    layers = report.rungs[2]
    many, few = (llama_cuda_semantics(FORMATS[name[5:]], tokens).name for tokens in (9, 1))
    assert layers.figures[f"llama.cpp's GEMMs by MMQ, {many}"] == 22
    assert layers.figures[f"llama.cpp's GEMMs by MMVQ, {few}"] in range(22, 8 * 22 + 1, 22)
    other = {"tiny-Q4_0": many, "tiny-Q5_1": few}[name]  # not the kernel's own definition
    assert layers.figures[f"gap to llama.cpp as {other}, worst NMSE"] > 1e-8
    assert layers.figures["MMVQ's Gaussian codes"] == 1 << 20
    for path in ("MMVQ", "MMQ"):
        assert layers.figures[f"{path}'s Gaussian codes off, per million"] < 100


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=LEGACY)
def test_legacy_formats(host: Host, folder: Path, llama: Llama, fmt: BlockFormat) -> None:
    is_verified(verify(model_of(fmt, folder, llama), "q8_1_dp4a", host, RUNGS, OPTIONS), fmt)


@pytest.mark.parametrize("fmt", [pytest.param(f, id=f.name) for f in OTHERS])
def test_other_formats(host: Host, folder: Path, llama: Llama, fmt: BlockFormat) -> None:
    options = replace(OPTIONS, tensor="blk.1.(ffn_down|attn_q)")
    is_verified(verify(model_of(fmt, folder, llama), "q8_1_dp4a", host, RUNGS, options), fmt)


def test_float32_kernel(host: Host) -> None:
    """A kernel that takes no codes is fed llama.cpp's, multiplied by their scales."""
    report = verify(FIXTURES / "tiny-Q4_0.gguf", "f32_naive", host, RUNGS, OPTIONS)
    assert report.verdict == "verified"


@pytest.mark.parametrize("model", ["moe", "deepseek"])
def test_experts(host: Host, folder: Path, llama: Llama, model: str) -> None:
    """Everything quantized is correct; the router of tokens is F32, and named."""
    path = graphs.MODELS[model](llama, folder / f"{model}.gguf")
    report = verify(path, "q8_1_dp4a", host, RUNGS, OPTIONS)
    assert [r.n_failures for r in report.rungs] == [0, 0, 0]
    assert {name.split(".")[-2] for r in report.rungs for name in [left.name for left in r.unverified]} == {
        "ffn_gate_inp"
    }


def test_a_wrong_kernel_fails(folder: Path) -> None:
    kernel = altered_kernel(folder / "wrong", "q8_1_dp4a", *WRONG)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", kernel, "cpu", ["layers"], OPTIONS)
    assert report.exit_code == 1
    assert report.rungs[0].worst["kernel"].utilisation > 1
    assert report.rungs[0].worst["llama.cpp as mmq"].utilisation < 0.5


@pytest.mark.parametrize("name", ["q8_1", "mmq"])
def test_a_wrong_definition_fails(host: Host, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where the offset of Q4_0 meets the other kind of sum, llama.cpp's outputs no longer fit."""

    def wrong(fmt: WeightFormat, *what: Any) -> Semantics:
        right = llama_cuda_semantics(fmt, *what)
        other = replace(right, term=SUMS if right.term.offset(FORMATS["Q4_0"]) else INTEGERS)
        return other if right.name == name else right

    monkeypatch.setattr(cuda, "llama_cuda_semantics", wrong)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", "q8_1_dp4a", host, ["blocks", "layers"], OPTIONS)
    other = {"q8_1": "mmq", "mmq": "q8_1"}[name]
    for rung in report.rungs:
        assert rung.verdict == "failed"
        assert rung.worst[f"llama.cpp as {name}"].utilisation > 1
        assert rung.worst[f"llama.cpp as {other}"].utilisation < 0.5


def test_a_short_prompt_is_repeated_for_mmq(host: Host) -> None:
    report = verify(FIXTURES / "tiny-Q5_1.gguf", "q8_1_dp4a", host, ["layers"], replace(OPTIONS, prompt="a"))
    assert report.verdict == "verified"
    assert report.rungs[0].figures["llama.cpp's GEMMs by MMQ, mmq"] == 22


@pytest.mark.parametrize("fmt", [*LEGACY.values(), *OTHERS], ids=lambda f: f.name)
def test_identify(host: Host, folder: Path, llama: Llama, fmt: BlockFormat) -> None:
    """MMVQ and MMQ are distinguished by their outputs, on the activations that they reveal."""
    report = identify_model(model_of(fmt, folder, llama), "q8_1_dp4a", host, OPTIONS)
    theirs = {p.m: p for p in report.products if p.who == "llama.cpp on the GPU" and p.type == fmt.name}
    for m in (1, 8, 9, 64):
        try:
            expected = llama_cuda_semantics(fmt, m).name
        except NoDefinition:
            assert m not in theirs
            assert f"{fmt.name}, M={m}" in [kind for kind, _ in report.unable]
            continue
        assert theirs[m].declared == expected
        found = theirs[m].found
        assert found is not None
        assert expected in found.names, found
        assert "q8_0_cpu" not in found.names
    assert report.exit_code in (0, 5)


def test_identify_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "q8_1", str(FIXTURES / "tiny-Q4_0.gguf"), "--reference", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert "reference   llama.cpp on CUDA on " in shown
    computes = [line.split()[6] for line in shown.splitlines() if "llama.cpp on the GPU" in line]
    assert computes == ["q8_1", "q8_1", "mmq", "mmq"]
