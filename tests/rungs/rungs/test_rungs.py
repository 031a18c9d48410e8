"""The four rungs on real models: what is right passes, and the report says what was checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FILE_TYPES, FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.generated_inputs import any_blocks, every_size
from gguf_verify.rungs.tokens.grafts import rounding_noise
from gguf_verify.rungs.tokens.passes import Noise
from gguf_verify.rungs.tokens.rung import _Tokens
from gguf_verify.semantics.accumulation import SCORE_LIMIT
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.verification import verify
from tests.support.kernel_inputs import TILED
from tests.support.tools import FIXTURES, LEGACY, patched, split_model

PROMPT = "Once upon a time"
#: Fixtures and kernels of `make test`.
OFTEN = frozenset({
    ("tiny-Q4_0.gguf", "f32_naive"), ("tiny-Q5_1.gguf", "q8_1_dp4a"),
})  # fmt: skip


def run(path: Path, kernel: str = "q8_1_dp4a", n_predict: int = 6) -> Report:
    # any number of threads computes the same; one leaves the other core to other tests
    options = Options(probes="brief", prompt=PROMPT, n_predict=n_predict, threads=1, progress=False)
    return verify(path, kernel, CpuHost(1), options=options)


def assert_verified(report: Report, same_tokens: bool = True, halved: bool = False) -> None:
    """`halved`: weights are rounded to half, either of two neighbours where they are dequantized near the middle, which
    may take all that is allowed (`semantics.values`)."""
    most, score = (1.0, SCORE_LIMIT) if halved else (0.5, 10)
    assert [f.what for r in report.rungs for f in r.failures] == []
    assert [r.unverified for r in report.rungs] == [[], [], [], []]
    assert report.exit_code == 0
    for rung in report.rungs:
        for who, worst in rung.worst.items():
            assert worst.utilisation <= most, (rung.name, who, worst)
            assert rung.worst[who].score <= score, (rung.name, who)
    if same_tokens:
        assert not [note for note in report.rungs[3].notes if note.startswith("(a)")]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [(name, kernel) for name in ("tiny-Q4_0.gguf", "tiny-Q5_1.gguf") for kernel in KERNELS],
)
def test_fixture(name: str, kernel: str) -> None:
    report = run(FIXTURES / name, kernel)
    assert_verified(report, halved=kernel.startswith("f16"))
    by_name = {r.name: r for r in report.rungs}
    size = (FIXTURES / name).stat().st_size
    assert by_name["bytes"].checked == {"bytes": size, "tensors": 30, "blocks": 81920}
    assert by_name["blocks"].checked == {"tensors": 23, "blocks": 81920}
    assert by_name["layers"].checked["GEMMs"] == 22
    assert by_name["layers"].not_checked == {"vectors": 7, "tensors only looked up": 1}
    assert by_name["tokens"].checked == {"tokens": 6, "GEMMs grafted": 22}


@pytest.mark.parametrize(
    ("kernel", "tensors"),
    [
        *((k, ["blk.0.attn_q"]) for k in TILED),
        *((k, ["blk.0.attn_q", "blk.1.ffn_down"]) for k in TILED),
    ],
)
def test_tiles_in_the_graph(kernel: str, tensors: list[str]) -> None:
    """At every number of tokens that the layers rung runs: within a tile, a tile, two and more."""
    options = Options(probes="brief", prompt="Once upon a time", n_predict=1, tensor="|".join(tensors), progress=False)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", kernel, CpuHost(2), rungs=["blocks", "layers"], options=options)
    assert [r.verdict for r in report.rungs] == ["passed", "passed"]
    assert report.rungs[1].checked["GEMMs"] == len(tensors)


def test_a_type_that_the_kernel_does_not_cover() -> None:
    """Each rung names its tensors, and the run is no pass."""
    spec = replace(KERNELS["q8_1_mma"], formats=frozenset({"Q8_0"}))
    options = Options(probes="brief", prompt="Once upon a time", n_predict=1, tensor="blk.0.attn", progress=False)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", ShippedKernel(spec, CpuHost(1)), options=options)
    assert report.exit_code == 5
    assert report.environment.kernel.covers == ("Q8_0",)
    for rung in report.rungs[1:]:
        assert rung.verdict == "unverified"
        assert {left.name for left in rung.unverified} >= {f"blk.0.attn_{x}.weight" for x in ("q", "k", "v", "output")}
        assert {left.why for left in rung.unverified} == {"kernel q8_1_mma does not cover type Q4_0"}


@pytest.mark.parametrize("fmt", ["Q4_1", "Q5_0", "Q8_0"])
def test_fixture_in_other_formats(tmp_path: Path, llama: Llama, fmt: str) -> None:
    target = tmp_path / f"tiny-{fmt}.gguf"
    llama.quantize_file(FIXTURES / "tiny-F16.gguf", target, FILE_TYPES[fmt], pure=True)
    assert_verified(run(target))


def test_shared_q8_0_as_it_is(shared_models: Path) -> None:
    assert_verified(run(shared_models / "TinyStories-656K-Q8_0.gguf"))


@pytest.mark.parametrize(
    ("source", "fmt"),
    [(source, fmt) for source in ("TinyStories-656K-f16.gguf", "stories260K-ggml-org-f32.gguf") for fmt in LEGACY],
)
def test_shared_models_quantized(tmp_path: Path, shared_models: Path, llama: Llama, source: str, fmt: str) -> None:
    target = tmp_path / f"model-{fmt}.gguf"
    llama.quantize_file(shared_models / source, target, FILE_TYPES[fmt], pure=True)
    report = run(target)
    assert_verified(report)
    if source.startswith("stories260K"):
        # rows of 172 fit no block: llama.cpp leaves those matrices F16
        assert report.environment.file.tensor_types["F16"] == 5
        assert report.rungs[1].not_checked["vectors"] == report.environment.file.tensor_types["F32"]
        assert sum(d.type == "F16" for d in report.rungs[1].details) == 5


def test_the_gap_is_that_of_the_semantics() -> None:
    """q8_1 on Q4_0 differs from llama.cpp's CPU path by the definition, the kernel from its own oracle by nothing."""
    report = verify(
        FIXTURES / "tiny-Q4_0.gguf",
        host=CpuHost(1),
        rungs=["layers"],
        options=Options(probes="brief", prompt=PROMPT, progress=False),
    )
    layers = report.rungs[0]
    assert layers.figures["gap to llama.cpp, worst NMSE"] > 1e-5
    assert all(record.own < 0.2 and record.llama < 0.2 for record in layers.details)


def test_only_some_tensors() -> None:
    options = Options(probes="brief", prompt=PROMPT, tensor=r"blk\.1\.ffn", n_predict=4, progress=False)
    report = verify(FIXTURES / "tiny-Q4_0.gguf", host=CpuHost(1), options=options)
    assert report.exit_code == 0
    counts = [r.checked.get("tensors", r.checked.get("GEMMs", r.checked.get("GEMMs grafted"))) for r in report.rungs]
    assert counts == [4, 3, 3, 3]  # the first looks at the norm too


def test_split_model(tmp_path: Path) -> None:
    """All parts are one model; a failure says in which part its block lies."""
    parts = split_model(FIXTURES / "tiny-Q4_0.gguf", tmp_path, 17)
    assert len(parts) == 2
    report = run(parts[0])
    assert_verified(report)
    checked = {"bytes": sum(p.stat().st_size for p in parts), "tensors": 30, "blocks": 81920}
    assert report.rungs[0].checked == checked
    assert len(report.environment.file.sha256) == 2
    with open_model(parts[0]) as model:
        (last,) = {t.part for t in model.tensors.values()} - {0}
        name = next(t.name for t in model.tensors.values() if t.part == last and t.type.quantized)
        offset = model.tensors[name].block_offset(1, 2)
    patched(parts[1], parts[1], offset, b"\x00\x7e")
    options = Options(probes="brief", tensor=name, progress=False)
    (failure,) = verify(parts[0], host=CpuHost(1), rungs=["bytes"], options=options).rungs[0].failures
    assert (failure.part, failure.row, failure.block, failure.byte_offset) == (1, 1, 2, offset)


def test_many_bad_blocks_are_counted_not_listed(tmp_path: Path) -> None:
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as model:
        tensor = model.tensors["blk.0.attn_q.weight"]
        offset, nbytes = tensor.offset, tensor.nbytes
    path = patched(FIXTURES / "tiny-Q4_0.gguf", tmp_path / "nan.gguf", offset, b"\xff" * nbytes)
    report = verify(path, host=CpuHost(1), rungs=["bytes"], options=Options(probes="brief", progress=False))
    assert len(report.rungs[0].failures) == 20
    assert report.rungs[0].n_failures == nbytes // 18


def test_repacked_weights() -> None:
    """llama.cpp's default: its weights cannot be read back, its outputs are judged all the same. It may crash (AMX)."""
    options = Options(probes="brief", prompt=PROMPT, n_predict=4, progress=False, repack=True)
    report: Report | None = None
    try:
        report = verify(FIXTURES / "tiny-Q4_0.gguf", host=CpuHost(1), options=options)
        crashes = [r.fault for r in report.rungs if r.fault]
    except EnvironmentFault as error:
        crashes = [str(error)]
    assert all(crash.startswith("llama.cpp died in ") for crash in crashes)
    if report is not None and crashes:  # within a rung: what the others found is not lost
        assert report.exit_code == 3
        assert not any(r.failures for r in report.rungs)
    elif report is not None:
        assert_verified(report, same_tokens=False)


@pytest.mark.parametrize(
    ("margin", "at_once", "drawn", "begun"),
    [(1e-7, 1, 2, 2), (1e-7, 5, 2, 2), (0.08, 1, 10, 10), (0.08, 5, 10, 12), (0.2, 1, 16, 16), (0.2, 5, 16, 16)],
)
def test_noise_is_drawn_until_a_code_moves(
    monkeypatch: pytest.MonkeyPatch, margin: float, at_once: int, drawn: int, begun: int
) -> None:
    """Whether a last bit moves a code is chance: here it does in the tenth draw, by 0.05. After two draws, as many are
    begun as can be computed at the same time."""
    draws: list[int] = []

    def moved(_self: _Tokens, _shared: bool, _exact: object, draw: int) -> float:
        draws.append(draw)
        return 0.05 if draw == 9 else 1e-6

    class Passes:
        def __init__(self, at_once: int) -> None:
            self.at_once, self.begun = at_once, list[int]()

        def begin(self, shared: bool, noise: Noise) -> None:
            assert not shared
            assert noise.size is rounding_noise
            self.begun.append(noise.draw)

    monkeypatch.setattr(_Tokens, "_moved", moved)
    exact = np.zeros((3, 4), np.float32)
    rung: Any = object.__new__(_Tokens)
    rung.grafts = SimpleNamespace(passes=Passes(at_once))
    allowed = rung._allowed(False, exact, exact, np.array([1]), np.array([margin], np.float32))
    assert draws == list(range(drawn))
    assert rung.grafts.passes.begun == list(range(begun))
    assert (margin <= 2 * allowed[1]) == (margin < 0.1)


# -- drawn weights and activations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_of_any_bits_are_finite(name: str) -> None:
    fmt = FORMATS[name]
    blocks = any_blocks(fmt, 1680 * 32 // fmt.block_size, 0)
    with np.errstate(over="raise", invalid="raise"):
        values = fmt.decode(blocks)
    assert np.isfinite(values).all()
    size = np.log2(np.abs(values).reshape(len(blocks), -1).max(axis=1).astype(np.float64) + 2.0**-140)
    assert np.ptp(size) > (8 if name == "NVFP4" else 20)
    assert len(np.unique(blocks[:, fmt.block_bytes // 2])) > 100


@pytest.mark.parametrize("k", [32, 96, 256, 4096])
def test_activations_of_every_size(k: int) -> None:
    x = every_size(k)
    assert x.shape[1] == k
    assert np.isfinite(x).all()
    assert (np.abs(x) < 2.0**124).all()
    blocks = x.reshape(-1, 32).astype(np.float64)
    exponents = np.unique(np.frexp(np.abs(blocks).max(axis=1))[1])
    assert len(exponents) > 250
    some = max(4, 24 * 32 // k)
    cancelling = x[-2 * some : -some].reshape(-1, 32)
    wide = cancelling.astype(np.float64)
    assert (np.abs(wide.sum(axis=1)) <= 1e-6 * np.abs(wide).sum(axis=1)).all()
    encoded = Q8_1.view(encode_q8_1(x[-2 * some : -some]).reshape(-1, Q8_1.block_bytes))["s"]
    assert (one_after_the_other(cancelling) != encoded).mean() > 0.7
    d = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float32)
    codes = np.divide(blocks, d, where=d > 0, out=np.zeros(blocks.shape))
    assert codes.max() > 128
    assert codes.min() < -128


def one_after_the_other(blocks: np.ndarray) -> np.ndarray:
    """s of float32[n, 32], added in another order than the definition's."""
    total = np.zeros(len(blocks), np.float32)
    for values in blocks.T:
        total += values
    return total.astype(np.float16)
