"""Tests of the tests: kernels with the faults that were made in earnest. Each must be found and placed."""

from __future__ import annotations

import dataclasses
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FILE_TYPES
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.results.failures import Failure
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from tests.support.kernel_inputs import PLAIN, TILED
from tests.support.tools import (
    FIXTURES,
    LEGACY,
    TamperedKernel,
    altered_kernel,
    block_bytes,
    patched,
    patched_block,
)

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
Q5_1 = FIXTURES / "tiny-Q5_1.gguf"
Q4_0_CUH = "formats/q4_0.cuh"
LOOP = "\n        for (int j = 0; j < 16; ++j)"
NAIVE = "gemm/q8_1/01_naive.cu"


def run(path: Path, kernel: ShippedKernel, *rungs: str, tensor: str = "blk.0.attn_q") -> Report:
    options = Options(probes="brief", prompt="The import statement", n_predict=4, tensor=tensor, progress=False)
    return verify(path, kernel, rungs=rungs or ("blocks", "layers"), options=options)


def failures(report: Report, rung: str) -> list[Failure]:
    return next(r for r in report.rungs if r.name == rung).failures


def assert_placed(report: Report) -> None:
    """Every rung failed, and each of its failures names tensor, row and block and shows the block."""
    assert report.exit_code == 1
    for rung in report.rungs:
        assert rung.verdict == "failed"
        assert rung.n_failures >= len(rung.failures) > 0
        shown = [f for f in rung.failures if not f.what.startswith("blk.")]  # not the direct comparison's line
        for f in shown:
            assert f.tensor == "blk.0.attn_q.weight"
            assert f.row is not None
            assert f.block is not None
            assert f.byte_offset is not None
            assert len(f.block_hex or "") >= 36


@pytest.mark.parametrize(
    ("kernel", "fmt"),
    [(k, fmt) for k in PLAIN for fmt in LEGACY if k not in TILED or fmt == "Q5_0"],
)
def test_one_code_off_by_one(tmp_path: Path, llama: Llama, fmt: str, kernel: str) -> None:
    """In one block of one row of the weights, given only to the kernel: row and block are named by both rungs."""
    model = tmp_path / f"model-{fmt}.gguf"
    llama.quantize_file(FIXTURES / "tiny-F16.gguf", model, FILE_TYPES[fmt], pure=True)
    original = block_bytes(model, "blk.0.attn_q.weight", 77, 5)
    codes_at = LEGACY[fmt].field_offset("qs")
    altered = bytearray(original)
    altered[codes_at + 3] ^= 1
    report = run(model, TamperedKernel(kernel, original, bytes(altered)))
    assert_placed(report)
    for rung in ("blocks", "layers"):
        assert {(f.row, f.block) for f in failures(report, rung) if f.block is not None} == {(77, 5)}
    assert failures(report, "blocks")[0].block_hex == original.hex()


@pytest.mark.parametrize(
    ("path", "file", "old", "new"),
    [
        pytest.param(Q4_0, Q4_0_CUH, "q[j] = qs[j] & 0x0F", "q[j] = (qs[j] & 0x0F) - 8",
                     id="8 subtracted twice"),
        pytest.param(Q4_0, Q4_0_CUH, "Minimum::OFFSET", "Minimum::NONE", id="s term dropped"),
        pytest.param(Q5_1, "formats/q5_1.cuh", "Minimum::MEETS_S", "Minimum::NONE", id="m term dropped"),
        pytest.param(Q4_0, NAIVE, "q[k] * xb->qs[k]", "q[k] * xb->qs[k / 2 + k % 2 * 16]",
                     id="Q8_1 interleaved"),
        pytest.param(Q5_1, "formats/q5_1.cuh", "(high >> j & 1)", "(high >> 2 * j & 1)",
                     id="Q5 high bits interleaved"),
        pytest.param(
            Q4_0, Q4_0_CUH, f"q[j] = qs[j] & 0x0F;{LOOP} q[j + 16] = qs[j] >> 4",
            f"q[j] = qs[j] >> 4;{LOOP} q[j + 16] = qs[j] & 0x0F", id="nibbles swapped",
        ),
        pytest.param(Q4_0, Q4_0_CUH, "ZERO = 8.0f", "ZERO = 7.0f", id="offset 7"),
        pytest.param(Q4_0, "common.cuh", "(d_a, products,", "(d_a, products * 1.01f,", id="1 % scale error"),
    ],
)  # fmt: skip
def test_faults_of_a_block(tmp_path: Path, path: Path, file: str, old: str, new: str) -> None:
    assert_placed(run(path, altered_kernel(tmp_path, "q8_1_naive", file, old, new)))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param(Q4_0_CUH, "Minimum::OFFSET", "Minimum::NONE", id="s term dropped"),
        pytest.param("common.cuh", "(d_a, products,", "(d_a, products * 1.01f,", id="1 % scale error"),
        pytest.param(NAIVE, "y[i] = acc", "y[i] = acc * (1.0f + 1e-4f)", id="0.01 % scale error"),
    ],
)
def test_faults_of_a_kernel_that_declares_no_order(tmp_path: Path, file: str, old: str, new: str) -> None:
    """No bits to compare with: the bound and the score must do, and they do."""
    kernel = altered_kernel(tmp_path, "q8_1_naive", file, old, new)
    kernel.spec = dataclasses.replace(kernel.spec, order=None)
    report = run(Q4_0, kernel)
    assert [r.verdict for r in report.rungs] == ["failed", "failed"]


def test_no_declared_order_is_no_fault(tmp_path: Path) -> None:
    backwards = "xb += (nb + 1) * SLICES; for (int64_t b = nb - 1; b >= 0; --b) { xb -= 2 * SLICES;"
    kernel = altered_kernel(tmp_path, "q8_1_naive", NAIVE, "for (int64_t b = 0; b < nb; ++b) {", backwards)
    kernel.spec = dataclasses.replace(kernel.spec, order=None)
    assert run(Q4_0, kernel).exit_code == 0


def test_llama_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's own products are judged too: a build that computes otherwise is no reference."""
    original = Llama.block_products
    monkeypatch.setattr(Llama, "block_products", lambda *a: original(*a) * np.float32(1.001))
    report = run(Q4_0, ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1)), "blocks")
    assert report.exit_code == 1
    assert all(f.what.startswith("llama.cpp: ") for f in failures(report, "blocks"))


def test_stale_last_tile(tmp_path: Path) -> None:
    """Right at K=32, so that the blocks rung cannot see it: the layers rung must, and must name the last block."""
    kernel = altered_kernel(
        tmp_path, "q8_1_naive", NAIVE, "wb[b].unpack(s, q)", "wb[b && b == nb - 1 ? b - 1 : b].unpack(s, q)"
    )
    report = run(Q4_0, kernel)
    blocks, layers = report.rungs
    assert blocks.verdict == "passed"
    assert report.exit_code == 1
    placed = [f.block for f in layers.failures if f.block is not None]
    assert placed
    assert set(placed) == {256 // 32 - 1}


@pytest.mark.parametrize(
    ("fault", "said"), [("y[i] = i == 130 ? NAN : acc", "is NaN"), ("if (i != 130) y[i] = acc", "was never written")]
)
def test_one_output(tmp_path: Path, fault: str, said: str) -> None:
    """NaN in one output, and one output left as it was: the place is named."""
    report = run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", fault))
    assert report.exit_code == 1
    for rung in ("blocks", "layers"):
        first = failures(report, rung)[0]
        assert said in first.what
        assert (first.tensor, first.row) == ("blk.0.attn_q.weight", 130)
    assert failures(report, "blocks")[0].block == 0


def test_writing_outside_the_output(tmp_path: Path) -> None:
    report = run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", "y[i] = acc; y[M * N] = acc"))
    assert report.exit_code == 1
    assert "outside its output" in failures(report, "layers")[0].what


def test_accumulation_over_k(tmp_path: Path) -> None:
    """Each block alone is right, their sum is not: no block is named, and that is said."""
    kernel = altered_kernel(
        tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", "y[i] = nb > 1 ? acc + copysignf(1e-3f * fabsf(acc), acc) : acc"
    )
    report = run(Q4_0, kernel)
    assert report.rungs[0].verdict == "passed"
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__fdiv_rn(amax, 127.0f)", "__fdiv_rn(amax, 128.0f)"),
        ("__fmul_rn(v[i], over_d)", "__fmul_rn(v[i], 0.99f * over_d)"),
        ("out.s = __fadd_rn(", "out.s = 1.001f * __fadd_rn("),
    ],
)
def test_quantizer(tmp_path: Path, old: str, new: str) -> None:
    report = run(Q4_0, altered_kernel(tmp_path, "q8_1_dp4a", "quantize/q8_1.cuh", old, new), "layers")
    assert report.exit_code == 1
    assert any("the kernel's quantizer" in f.what for f in failures(report, "layers"))


def test_other_order_than_declared(tmp_path: Path) -> None:
    """Blocks in descending k are within every bound, but not what the kernel declares: the bits tell."""
    backwards = "xb += (nb + 1) * SLICES; for (int64_t b = nb - 1; b >= 0; --b) { xb -= 2 * SLICES;"
    kernel = altered_kernel(tmp_path, "q8_1_naive", NAIVE, "for (int64_t b = 0; b < nb; ++b) {", backwards)
    report = run(Q4_0, kernel, "layers")
    assert report.exit_code == 1
    assert all("bits of the declared order" in f.what for f in report.rungs[0].failures)


@pytest.mark.parametrize(
    "condition",
    [
        "M > 60",
        "M == 1 && nb > 1",
        "M >= 3 && M <= 8",
        "M % 64 == 0",
    ],
)
def test_wrong_at_another_number_of_tokens(tmp_path: Path, condition: str) -> None:
    """Right for the prompt's number of tokens: decoding and large batches are run too."""
    fault = f"y[i] = {condition} ? 1.02f * acc : acc"
    report = run(Q4_0, altered_kernel(tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", fault), "layers")
    assert report.exit_code == 1
    assert all(f.what.startswith("kernel at other M at M=") for f in report.rungs[0].failures)


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        ("f32_tiled", "gemm/f32/02_tiled.cu", "count = K - first <", "count = K + first <"),
        ("q8_1_naive", "quantize/q8_1.cuh", "0.5f - 0x1p-15f", "0.5f - 0.0f"),
        ("q8_1_naive", NAIVE, "y[i] = acc", "y[i] = N > 2000 && i / N > 60 ? 0.0f : acc"),
        ("q8_1_naive", NAIVE, "y[i] = acc", "y[i] = fabsf(half_to_float(wb[0].d)) > 1000.0f ? 0.0f : acc"),
        ("q8_1_naive", "quantize/q8_1.cu", "first + 8 <= n_blocks", "first + 7 <= n_blocks"),
        ("q8_1_naive", "quantize/q8_1.cuh", "d > 0.0f ? roundf", "d >= 0.0f ? roundf"),
        ("q8_1_split_k", "gemm/q8_1/09_split_k.cu", "(outputs + 3) / 4, stride", "(outputs + 2) / 4, stride"),
        ("q8_1_wgmma", "pack/activations.cu", "at.there ? b->s : 0", "at.there ? b->s : -1"),
        ("q8_1_tiled", "gemm/q8_1/02_tiled.cu", "n0 + row < N) y[", "n0 + row <= N) y["),
        ("q8_1_naive", "quantize/q8_1.cu", "first + 8 <= n_blocks", "first - 8 <= n_blocks"),
        ("q8_1_split_k", "gemm/q8_1/09_split_k.cu", "j < outputs", "j < outputs - 1"),
        ("q8_1_naive", "quantize/q8_1.cuh", "0xFFFFFFFF, sum, 2)", "0xFFFFFFFF, sum, 3)"),
        ("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "band * 8 + in_band", "band * 9 + in_band"),
        ("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "if (x_base == X_BLOCKS) x_base = 0;", ""),
        ("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "if (base >= nb) base", "if (base > nb) base"),
        ("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "if (at - warp * BLOCKS >= nb)", "if (at - warp * BLOCKS > nb)"),
        ("q8_1_gemv", "gemm/q8_1/activations.cuh", "request(i + APART)", "request(i + all)"),
        ("q8_1_split_k", "gemm/q8_1/09_split_k.cu", "sums[p * fours + i]", "sums[fours + i]"),
    ],
)  # fmt: skip
def test_wrong_past_the_round_shapes_of_models(tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    """Mutants that no product of a model's own shape shows."""
    kernel = altered_kernel(tmp_path, name, file, old, new)
    report = run(Q4_0, kernel, "layers", tensor="blk.0.attn_k")
    assert report.exit_code == 1
    assert all(re.search(r"N and K|quantizer|outside its (output|buffers)", f.what) for f in report.rungs[0].failures)


def test_forgotten_base_of_a_tile_of_tokens(tmp_path: Path) -> None:
    """Rows beyond the first tile read the first tile's activations: other rows must hold other values."""
    kernel = altered_kernel(tmp_path, "q8_1_naive", NAIVE, "x + i / N * nb", "x + i / N % 64 * nb")
    report = run(Q4_0, kernel, "layers")
    assert report.exit_code == 1
    kernel = altered_kernel(tmp_path / "one", "q8_1_naive", NAIVE, "x + i / N * nb", "x + (M > 2 ? 0 : i / N) * nb")
    options = Options(probes="brief", prompt="", n_predict=1, tensor="blk.0.attn_q", progress=False)
    assert verify(Q4_0, kernel, rungs=["layers"], options=options).exit_code == 1


def test_quantizer_wrong_for_one_token(tmp_path: Path) -> None:
    fault = "float_to_half(n_blocks > 2 && n_blocks <= 8 ? 0.0f : block.s)"
    kernel = altered_kernel(tmp_path, "q8_1_naive", "quantize/q8_1.cu", "float_to_half(block.s)", fault)
    report = run(Q4_0, kernel, "layers")
    assert report.exit_code == 1
    assert "quantizer at M=1:" in failures(report, "layers")[0].what


def test_integer_sum_that_is_too_narrow(tmp_path: Path) -> None:
    """Real activations never overflow 16 bits: the row of largest codes does."""
    report = run(
        Q4_0,
        altered_kernel(tmp_path, "q8_1_naive", "common.cuh", "sum[0] + sum[1];", "(int16_t)(sum[0] + sum[1]);"),
        "blocks",
    )
    assert report.exit_code == 1


def test_kernel_that_writes_its_input(tmp_path: Path) -> None:
    """It must not reach what it is judged by."""
    fault = "((float*)xb)[k] = half_to_float(float_to_half(xb[k])), acc = __fmaf_rn"
    kernel = altered_kernel(tmp_path, "f32_naive", "gemm/f32/01_naive.cu", "acc = __fmaf_rn", fault)
    report = run(Q4_0, kernel, "layers")
    assert report.exit_code == 1


class FirstPassOff(ShippedKernel):
    """Right but for the first pass of the tokens rung, which feeds llama.cpp's activations."""

    def __init__(self) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))
        self.calls = 0

    def gemm(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return super().gemm(weights, x) * np.float32(1.001 if self.calls <= 22 else 1)


def test_tokens_pass_a_is_judged_too() -> None:
    options = Options(probes="brief", prompt="The import statement", n_predict=4, progress=False)
    assert verify(Q4_0, FirstPassOff(), rungs=["tokens"], options=options).exit_code == 1


def test_small_scale_error_in_the_tokens_rung(tmp_path: Path) -> None:
    """5 % too much leaves most greedy tokens as they are: the rung judges the grafted outputs themselves."""
    kernel = altered_kernel(tmp_path, "q8_1_naive", NAIVE, "y[i] = acc", "y[i] = 1.05f * acc")
    options = Options(probes="brief", prompt="The import statement", n_predict=4, progress=False)
    report = verify(Q4_0, kernel, rungs=["tokens"], options=options)
    assert report.exit_code == 1


def test_zero_activations_hide_nothing(tmp_path: Path) -> None:
    """Norms of zero make all activations zero: drawn ones find the fault in the blocks rung; layers is no pass."""
    path = tmp_path / "zero.gguf"
    path.write_bytes(Q4_0.read_bytes())
    with open_model(Q4_0) as model:
        tensor = model.tensors["blk.0.attn_norm.weight"]
        offset, nbytes = tensor.offset, tensor.nbytes
    path = patched(Q4_0, path, offset, bytes(nbytes))
    wrong = altered_kernel(tmp_path, "q8_1_naive", NAIVE, "wb[b].unpack(s, q)", "wb[b].unpack(s, q); q[3] ^= 1")
    report = run(path, wrong, "blocks", "layers")
    assert report.rungs[0].verdict == "failed"
    right = ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1))
    report = run(path, right, "blocks", "layers")
    assert [r.verdict for r in report.rungs] == ["passed", "unverified"]
    assert "all zero" in report.rungs[1].unverified[0].why


def test_s_overflow_is_said(tmp_path: Path) -> None:
    """Activations whose sum no half can hold: the report says so, and does not just say NaN."""
    with open_model(Q4_0) as model:
        tensor = model.tensors["blk.0.attn_norm.weight"]
        offset = tensor.offset
    path = patched(Q4_0, tmp_path / "big.gguf", offset, np.full(256, 1e5, np.float32).tobytes())
    report = run(path, ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1)), "layers")
    assert report.exit_code == 1
    assert any("s of activation block 0 overflows here" in f.what for f in report.rungs[0].failures)


def test_tokens_of_a_wrong_kernel(tmp_path: Path) -> None:
    """Dropping s ruins the model: the tokens rung alone must see it, and no tie may excuse it."""
    kernel = altered_kernel(tmp_path, "q8_1_naive", "formats/q4_0.cuh", "Minimum::OFFSET", "Minimum::NONE")
    options = Options(probes="brief", prompt="The import statement", n_predict=16, progress=False)
    report = verify(Q4_0, kernel, rungs=["tokens"], options=options)
    assert report.exit_code == 1


def test_not_finite_scale_in_the_file(tmp_path: Path) -> None:
    nan = np.float16(np.nan).tobytes()
    path = patched_block(Q4_0, tmp_path / "nan.gguf", "blk.0.attn_q.weight", 9, 3, 0, nan)
    report = verify(path, host=CpuHost(1), rungs=["bytes"], options=Options(probes="brief", progress=False))
    assert report.exit_code == 1
    (failure,) = report.rungs[0].failures
    assert (failure.tensor, failure.row, failure.block) == ("blk.0.attn_q.weight", 9, 3)
    assert "not finite" in failure.what


def test_other_weights_in_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """If llama.cpp held other bytes than the file's, its output would prove nothing about the file."""
    original = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda data: original(data) ^ 1)
    report = run(Q4_0, ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1)), "layers")
    assert report.exit_code == 1
    assert "llama.cpp holds other bytes than the file" in failures(report, "layers")[0].what


def test_decode_that_disagrees_with_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """If our decode were wrong in one value, the bytes rung would name the block."""
    from gguf_verify.formats.block import BlockFormat

    original = BlockFormat.decode

    def wrong(self: BlockFormat, blocks: np.ndarray) -> np.ndarray:
        out = original(self, blocks)
        out[-1, 3] += np.float32(1e-6)
        return out

    monkeypatch.setattr(BlockFormat, "decode", wrong)
    options = Options(probes="brief", tensor="blk.0.attn_q", progress=False)
    report = verify(Q4_0, host=CpuHost(1), rungs=["bytes"], options=options)
    assert report.exit_code == 1
    assert (report.rungs[0].failures[0].row, report.rungs[0].failures[0].block) == (255, 7)
