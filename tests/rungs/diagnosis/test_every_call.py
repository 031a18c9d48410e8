"""Every failing call is diagnosed on its own shape, and what no kernel can compute is blamed on no kernel."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from gguf_verify.diagnosis.identify import known_inputs
from gguf_verify.diagnosis.observed import name_of
from gguf_verify.diagnosis.quantizer import diagnose_quantizer
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Candidate
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.report.writer import Kind
from gguf_verify.results.diagnoses import LocatedDiagnosis
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.overflow import LARGEST_HALF, largest_half, range_problem
from gguf_verify.support.errors import FindingKind, KernelFinding
from gguf_verify.verification import verify
from tests.support.shown import json_of, text_of
from tests.support.tools import FIXTURES, altered_kernel, patched, patched_block

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
NAIVE = "gemm/q8_1/01_naive.cu"
Q8_1 = SEMANTICS["q8_1"]


def run(path: Path, kernel: Candidate, *rungs: str) -> Report:
    options = Options(prompt="The import statement", tensor="blk.0.attn_k", n_predict=2, progress=False, probes="brief")
    return verify(path, kernel, rungs=rungs, options=options)


def right_kernel() -> ShippedKernel:
    return ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1))


def diagnosed(report: Report) -> LocatedDiagnosis:
    found = report.rungs[0].diagnosis
    assert found is not None
    return found


# -- calls of every rung -----------------------------------------------------------------------------------------------


def test_a_call_of_the_blocks_rung(tmp_path: Path) -> None:
    new = "q[k] * xb->qs[k / 2 + k % 2 * 16]"
    report = run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "q[k] * xb->qs[k]", new), "blocks")
    found = diagnosed(report)
    assert [f.id for f in found.faults] == ["activations-interleaved"]
    assert (found.who, found.block) == ("kernel on one block of K", 0)
    assert json_of(Kind.RUN, report)["rungs"][0]["diagnosis"]["lines"] == list(found.lines)


def test_a_call_at_another_shape(tmp_path: Path) -> None:
    """The graph's own calls are right; the fault is of rows of nine blocks alone."""
    new = "wb[nb == 9 && b == nb - 1 ? b - 1 : b].unpack(s, q)"
    found = diagnosed(run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "wb[b].unpack(s, q)", new), "layers"))
    assert [f.id for f in found.faults] == ["window-of-k"]
    assert "288 are wrong" in found.faults[0].words
    assert "in the wrong calls, the last tile of K holds the data of the one before it" in found.faults[0].words
    assert found.who.endswith("K=288")


def test_a_call_with_another_number_of_tokens(tmp_path: Path) -> None:
    new = "y[M == 5 ? i % N * M + i / N : i] = acc"
    found = diagnosed(run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", new), "layers"))
    # smaller calls are right, which transposed outputs would not be
    assert [f.id for f in found.faults] == ["window-of-m"]
    assert "in the wrong calls, the output is written transposed" in found.faults[0].words
    assert "M=5" in found.who


def test_a_call_of_the_tokens_rung(tmp_path: Path) -> None:
    new = "q[k] * xb->qs[k / 2 + k % 2 * 16]"
    report = run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "q[k] * xb->qs[k]", new), "tokens")
    found = diagnosed(report)
    assert [f.id for f in found.faults] == ["activations-interleaved"]
    assert (found.who, found.tensor) == ("kernel on llama.cpp's activations", "blk.0.attn_k.weight")


UNSTABLE = """
import numpy as np
from gguf_verify import kernel

calls = 0

@kernel(formats=["Q4_0"], semantics="f32", out=True)
def gemm(weights, activations, shape, out):
    global calls
    calls += 1
    {body}
"""


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("out[:] = calls", "call-count"),
        ("out[:] = calls == 3", "call-count"),  # the first call's third run, at other addresses
        ("out[:] = np.random.random()", "not-deterministic"),
        ("out[: shape.m if calls % 2 else 0] = 1", "unwritten"),
    ],
)
def test_a_call_without_outputs_to_judge(tmp_path: Path, body: str, fault: str) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(UNSTABLE.format(body=body))
    options = Options(prompt="The import", tensor="blk.0.attn_k", progress=False, probes="brief")
    found = diagnosed(verify(Q4_0, f"{path}:gemm", rungs=("layers",), options=options))
    assert ([f.id for f in found.faults], found.verdict, found.culprit) == ([fault], "known fault", "kernel")
    assert found.lines[0].endswith(found.faults[0].fix)


def test_every_kind_of_finding_is_a_name() -> None:
    kinds = get_args(FindingKind)
    names = {kind: name_of(KernelFinding(kind, "words")) for kind in kinds}
    assert all(names.values())
    assert len({name.id for name in names.values() if name is not None}) == len(kinds)
    assert name_of(KernelFinding("whatever a foreign process says", "words")) is None


# -- how near a run that passes comes to what a half holds -------------------------------------------------------------


def test_the_largest_half_is_found() -> None:
    x = np.full((3, 128), 0.5, np.float32)
    x[1, 64:96] = 1500.0
    x[2, 3] = -60000.0
    assert largest_half(Q8_1, Q8_1.bytes_of(x)) == ("s", 2, 0, -60000.0)
    assert largest_half(Q8_1, Q8_1.bytes_of(x[:2])) == ("s", 1, 2, 48000.0)
    assert largest_half(SEMANTICS["f32"], x.view(np.uint8)) is None
    assert largest_half(SEMANTICS["q8_0_cpu"], SEMANTICS["q8_0_cpu"].bytes_of(x[1:2])) == ("d", 0, 2, 11.8125)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("d > 0.0f ? roundf", "d >= 0.0f ? roundf", "zero-block"),
        ("0.5f - 0x1p-15f", "0.5f - 0.0f", "quantizer-reciprocal"),
        ("out.s = __fadd_rn(", "out.s = 1.001f * __fadd_rn(", ""),
    ],
)
def test_a_call_of_the_quantizer(tmp_path: Path, old: str, new: str, fault: str) -> None:
    """Its bytes are diagnosed, whether or not an output shows them."""
    found = diagnosed(run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", "quantize/q8_1.cuh", old, new), "layers"))
    assert found.who.startswith("the kernel's quantizer")
    assert found.verdict == ("known fault" if fault else "unknown")
    assert fault in {f.id for f in found.faults} | {""}


# -- the bytes of a quantizer ------------------------------------------------------------------------------------------


def values(seed: int = 0, m: int = 6, k: int = 256) -> np.ndarray:
    """Activations with zeros, ties, and blocks whose scale is a subnormal half."""
    rng = np.random.default_rng(seed)
    x = known_inputs(m, k, seed)
    blocks = x.reshape(-1, 32)
    blocks[::5] *= np.float32(1e-4)
    blocks[1::5] = (rng.integers(-126, 126, blocks[1::5].shape) + 0.5) / 64
    blocks[1::5, 0] = 127 / 64
    blocks[2::11] = 0
    return x


def encoded(x: np.ndarray, fault: str) -> np.ndarray:
    """Blocks of Q8_1 from a quantizer with a fault, written here without the catalogue."""
    fmt = FORMATS["Q4_0"]  # any: only the activations are encoded
    assert fmt.block_size == 32
    out = Q8_1.bytes_of(x).copy().reshape(-1, 36)
    blocks, codes = x.reshape(-1, 32), out[:, 4:].view(np.int8)
    halves = out[:, :4].view(np.float16)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        d = amax / np.float32(127)
        if fault == "ties":
            codes[:] = np.nan_to_num(np.rint(blocks / d))
        elif fault == "reciprocal":
            wide = (blocks * (np.float32(127) / amax)).astype(np.float64)
            codes[:] = np.nan_to_num(np.trunc(wide + np.copysign(0.5, wide)))
        elif fault == "truncated":
            codes[:] = np.nan_to_num(np.trunc(blocks / d))
        elif fault == "by 128":
            halves[:, 0] = (amax / np.float32(128))[:, 0]
        elif fault == "flushed":
            halves[:, 0] = np.where(d < 2.0**-14, 0, d)[:, 0]
        elif fault == "codes in s":
            halves[:, 1] = halves[:, 0].astype(np.float32) * codes.sum(axis=1, dtype=np.int32)
        elif fault == "no s":
            halves[:, 1] = 0
        elif fault == "0/0":
            codes[amax[:, 0] == 0] = -128
            halves[amax[:, 0] == 0, 0] = np.nan
        elif fault == "126":
            halves[:, 0] = (amax / np.float32(126))[:, 0]
        elif fault == "noise":
            codes[:] += (np.arange(codes.size).reshape(codes.shape) % 7 == 0).astype(np.int8)
    return out.reshape(len(x), -1)


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("ties", {"quantizer-ties"}),
        ("reciprocal", {"quantizer-reciprocal"}),
        ("truncated", {"quantizer-truncates"}),
        ("by 128", {"scale-by-128"}),
        ("flushed", {"subnormals-flushed"}),
        ("codes in s", {"sum-of-codes"}),
        ("no s", {"sum-missing"}),
        ("0/0", {"zero-block"}),
        ("126", set()),
        ("noise", set()),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_bytes_of_a_quantizer(fault: str, names: set[str], seed: int) -> None:
    x = values(seed)
    found = diagnose_quantizer(Q8_1, x, encoded(x, fault), Q8_1.bytes_of(x))
    assert found.wrong
    assert {f.id for f in found.faults} == names
    assert found.verdict == ("known fault" if names else "unknown")
    assert any("unknown" in line for line in found.lines) == (not names)


def test_right_bytes_are_right() -> None:
    x = values()
    found = diagnose_quantizer(Q8_1, x, Q8_1.bytes_of(x), Q8_1.bytes_of(x))
    assert (found.verdict, found.lines, found.faults) == ("right", (), ())


# -- what has no finite value ------------------------------------------------------------------------------------------

BLAMES_THE_KERNEL = ("declare no order", "another order", "added in", "fault of the catalogue")


def overflowing(tmp_path: Path) -> Path:
    with open_model(Q4_0) as model:
        offset = model.tensors["blk.0.attn_norm.weight"].offset
    return patched(Q4_0, tmp_path / "big.gguf", offset, np.full(256, 1e5, np.float32).tobytes())


@pytest.mark.parametrize("rung", ["blocks", "layers"])
def test_s_out_of_range_is_no_fault_of_the_kernel(tmp_path: Path, rung: str) -> None:
    report = run(overflowing(tmp_path), right_kernel(), rung)
    found = diagnosed(report)
    assert (found.verdict, found.culprit, found.faults) == ("out of range", "definition", ())
    out = found.out_of_range
    assert out is not None
    assert (out.what, out.limit) == ("s", LARGEST_HALF)
    assert out.ratio == abs(out.value) / LARGEST_HALF > 1
    shown = text_of(Kind.RUN, report)
    assert f"would be {out.value:.6g}" in shown
    assert "llama.cpp's CUDA backend keeps s" in shown
    assert not any(words in shown for words in BLAMES_THE_KERNEL)


def test_a_scale_that_is_no_number_is_the_files_fault(tmp_path: Path) -> None:
    nan = np.float16(np.nan).tobytes()
    path = patched_block(Q4_0, tmp_path / "nan.gguf", "blk.0.attn_k.weight", 9, 3, 0, nan)
    report = run(path, right_kernel(), "layers")
    found = diagnosed(report)
    assert (found.verdict, found.culprit) == ("out of range", "file")
    assert found.out_of_range is not None
    assert (found.out_of_range.what, found.out_of_range.row, found.out_of_range.block) == ("weight scale", 9, 3)
    assert not any(words in text_of(Kind.RUN, report) for words in BLAMES_THE_KERNEL)


def test_a_fault_beside_what_is_out_of_range_is_named(tmp_path: Path) -> None:
    nan = np.float16(np.nan).tobytes()
    path = patched_block(Q4_0, tmp_path / "nan.gguf", "blk.0.attn_k.weight", 9, 3, 0, nan)
    kernel = altered_kernel(tmp_path, "q8_1_naive", "formats/q4_0.cuh", "Minimum::OFFSET", "Minimum::NONE")
    found = diagnosed(run(path, kernel, "layers"))
    assert [f.id for f in found.faults] == ["offset-missing"]
    assert found.culprit == "kernel"
    assert found.out_of_range is not None
    assert any("no kernel can give one" in line for line in found.lines)


def test_the_score_is_not_worded_as_an_order(tmp_path: Path) -> None:
    """A kernel that declares none: within the bound of any order, and further off than rounding explains. That
    single values are added explains it over long rows alone."""
    kernel = altered_kernel(
        tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", "y[i] = acc * (i % 2 ? 1.0f + 3e-6f : 1.0f - 3e-6f)"
    )
    kernel.spec = dataclasses.replace(kernel.spec, order=None)
    report = run(Q4_0, kernel, "layers")
    assert report.rungs[0].worst["kernel"].utilisation < 1
    assert "times the standard deviation of rounding errors" in report.rungs[0].failures[0].what
    found = diagnosed(report)
    assert found.verdict == "unknown"
    assert any("more than the 8 that rounding can explain" in line for line in found.lines)
    assert not any(words in text_of(Kind.RUN, report) for words in BLAMES_THE_KERNEL[:3])


@pytest.mark.parametrize(
    ("definition", "type_", "what", "blame"),
    [("q8_1", "Q4_0", "s", "definition"), ("q8_1_half", "Q4_1", "product", "definition")],
)
def test_range_problems(definition: str, type_: str, what: str, blame: str) -> None:
    """The number, the limit, and how far beyond it; nothing where all is in range."""
    semantics, fmt = SEMANTICS[definition], FORMATS[type_]
    x = np.full((1, 64), 1.0, np.float32)
    row = np.zeros(2 * fmt.block_bytes, np.uint8)
    row.reshape(2, -1)[:, :2] = np.array([1000.0], np.float16).view(np.uint8)
    if fmt.has_min:
        row.reshape(2, -1)[:, 2:4] = np.array([1000.0], np.float16).view(np.uint8)
    assert range_problem(semantics, fmt, row, semantics.bytes_of(x)[0], x[0]) is None
    x[0, 32:] = 3000.0 if what == "s" else 100.0
    found = range_problem(semantics, fmt, row, semantics.bytes_of(x)[0], x[0])
    assert found is not None
    assert (found.what, found.block, found.to_blame) == (what, 1, blame)
    assert found.value == pytest.approx(96000.0 if what == "s" else 3200 * 1000.0)
    assert found.ratio == found.value / LARGEST_HALF
    unknown = range_problem(semantics, fmt, row, semantics.bytes_of(x)[0])
    assert unknown is not None
    assert unknown.value == pytest.approx(found.value, rel=0.01)
