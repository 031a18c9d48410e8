"""Faults that a GPU shows by chance fail a verification on the CPU, with the line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.checks import CHECKED, LAUNCHES
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.rungs.schedules import inputs
from gguf_verify.semantics.definitions import ENCODINGS
from gguf_verify.support.paths import kernel_root
from gguf_verify.verification import verify
from tests.support.foreign_runs import Q4_0, verified
from tests.support.typed_models import model_of


def altered(folder: Path, file: str, old: str, new: str, last: bool = False) -> Path:
    """A copy of the kernels with `old` replaced by `new`, everywhere or in its last place."""
    root = folder / "kernels"
    shutil.copytree(kernel_root(), root)
    path = root / file
    text = path.read_text()
    assert old in text
    path.write_text(new.join(text.rsplit(old, 1)) if last else text.replace(old, new))
    return root


def failures(report: Report) -> list[str]:
    (rung,) = report.rungs
    assert report.exit_code == (1 if rung.failures else 0)
    return [failure.what for failure in rung.failures]


@pytest.mark.parametrize(("kernel", "file", "old", "last", "words"), [
    ("q8_1_tiled", "gemm/q8_1/02_tiled.cu", "        __syncthreads();\n", True, ["data race", "02_tiled.cu:45"]),
    ("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "            async_commit();\n", False,
     ["order in which threads run"]),
])  # fmt: skip
def test_a_missing_barrier_group_or_wait(
    tmp_path: Path, kernel: str, file: str, old: str, last: bool, words: list[str]
) -> None:
    root = altered(tmp_path, file, old, "\n" if last else ";\n", last)
    wrong = ShippedKernel(KERNELS[kernel], CpuHost(1), root)
    said = failures(verified(wrong, "layers", probes="full"))
    for word in words:
        assert any(word in line for line in said), said


def test_a_shipped_kernel_is_the_same_under_every_schedule() -> None:
    report = verified(ShippedKernel(KERNELS["q8_1_tiled"], CpuHost(1)), "layers", probes="full")
    assert failures(report) == []
    assert (report.rungs[0].checked[CHECKED], report.rungs[0].checked[LAUNCHES]) == (4, 12)


MISALIGNED = """// [gguf-verify]
// formats = ["Q8_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]
struct Q8_0 { unsigned short d; signed char qs[32]; };
struct Q8_1 { unsigned short d, s; signed char qs[32]; };
__device__ float from_half(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, magnitude = h & 0x7FFFu;
    if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    return __uint_as_float(sign | magnitude << 13) * 5192296858534827628530496329220096.0f;
}
extern "C" __global__ void gemm(const Q8_0* w, const Q8_1* x, float* y, long M, long N, long K) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    const long m = i / N, n = i % N, blocks = K / 32;
    float acc = 0.0f;
    for (long b = 0; b < blocks; ++b) {
        const Q8_0& wb = w[n * blocks + b];
        const Q8_1& xb = x[m * blocks + b];
        int sum = 0;
        for (int j = 0; j < 8; ++j) sum = __dp4a(*(const int*)(wb.qs + 4 * j), *(const int*)(xb.qs + 4 * j), sum);
        acc += from_half(wb.d) * from_half(xb.d) * sum;
    }
    y[i] = acc;
}
"""


def test_words_at_byte_2_of_blocks_of_34(tmp_path: Path) -> None:
    """A "misaligned address" on every GPU; the right twin reads bytes."""
    llama = Llama(60)
    try:
        model = model_of(FORMATS["Q8_0"], tmp_path, llama)
    finally:
        llama.close()
    options = Options(prompt="The", n_predict=1, tensor="blk.0.attn_q", progress=False)
    source = tmp_path / "words.cu"
    wrong = "sum = __dp4a(*(const int*)(wb.qs + 4 * j), *(const int*)(xb.qs + 4 * j), sum);"
    right = "for (int i = 4 * j; i < 4 * j + 4; ++i) sum += wb.qs[i] * xb.qs[i];"
    for text, words in ((MISALIGNED, "misaligned access at words.cu:24"), (MISALIGNED.replace(wrong, right), None)):
        source.write_text(text)
        said = failures(verify(model, f"{source}:gemm", CpuHost(1), ("layers",), options))
        assert (words is None) == (not said)
        assert words is None or any(words in line for line in said), said


HALVES = MISALIGNED.replace(
    "// parameters",
    """// output = "float16"
// deterministic = false
// [[launches]]
// symbol = "clear"
// parameters = ["output", "int64 M * N"]
// block = 128
// grid = "ceil(M * N, 128)"
// [[launches]]
// symbol = "gemm"
// parameters""",
).replace('grid = "ceil(M * N, 128)"\n// [/', 'grid = ["ceil(M * N, 128)", 8]\n// [/')
HALVES = HALVES.replace("for (long b = 0; b < blocks; ++b)", "for (long b = blockIdx.y; b < blocks; b += 8)")
HALVES = HALVES.replace(
    "for (int j = 0; j < 8; ++j) sum = __dp4a(*(const int*)(wb.qs + 4 * j), *(const int*)(xb.qs + 4 * j), sum);",
    "for (int i = 0; i < 32; ++i) sum += wb.qs[i] * xb.qs[i];",
)
HALVES = HALVES.replace("float* y", "__half* y").replace("y[i] = acc;", "atomicAdd(y + i, __float2half(acc));")
HALVES = (
    "#include <cuda_fp16.h>\n"
    + HALVES
    + """
extern "C" __global__ void clear(__half* y, long n) {
    const long i = (long)blockIdx.x * 128 + threadIdx.x;
    if (i < n) y[i] = __float2half(0.0f);
}
"""
)


def test_sums_in_halves_are_not_blamed_on_the_order(tmp_path: Path) -> None:
    """Their bits depend on the order, and they are outside the bound in any."""
    llama = Llama(60)
    try:
        model = model_of(FORMATS["Q8_0"], tmp_path, llama)
    finally:
        llama.close()
    options = Options(prompt="The", n_predict=1, tensor="blk.0.attn_q", progress=False)
    source = tmp_path / "halves.cu"
    source.write_text(HALVES)
    report = verify(model, f"{source}:gemm", CpuHost(1), ("layers",), options)
    said = failures(report)
    assert said
    assert not any("schedule" in line for line in said), said
    diagnosis = report.rungs[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.lines[0].startswith("it adds sums in float16, not in float32 as declared")


def test_reads_past_the_inputs_of_a_foreign_kernel(tmp_path: Path) -> None:
    """The example, which also reads the block behind the last one."""
    text = (Path(__file__).parents[3] / "examples" / "cuda_q4_0.cu").read_text()
    assert "b < blocks; ++b" in text
    source = tmp_path / "past.cu"
    source.write_text(text.replace("y[i] = acc;", "y[i] = w[n * blocks + blocks].d == 1 ? 0.0f : acc;"))
    options = Options(prompt="The", n_predict=1, tensor="blk.0.attn_q", progress=False)
    said = failures(verify(Q4_0, f"{source}:gemm", CpuHost(1), ("layers",), options))
    assert any("past.cu:" in line and "past the end of its weights" in line for line in said), said


def test_an_index_by_codes_takes_every_value() -> None:
    """The codes of the last token, of each product that a checked build makes."""
    units = any_blocks(FORMATS["Q4_0"], 64, 1).reshape(4, -1)
    made = list(inputs(FORMATS["Q4_0"], units, np.ones((4, 64), np.float32), 1))
    assert made
    for _, x in made:
        codes = ENCODINGS["q8_1"].encode(x[-1:]).reshape(-1, 36)[:, 4:]
        assert 0 in codes
        assert {*(codes & 15).reshape(-1)} == {*range(16)}
