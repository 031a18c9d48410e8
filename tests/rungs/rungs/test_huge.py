"""Indices past 2^31 and limits of grids: one kernel, whose every mistake is chosen by an argument of its launch."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.gguf.model import Model
from gguf_verify.hosts.base import Written
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.process_host import ProcessHost
from gguf_verify.kernels.domain import EVERYTHING, Domain, Extent
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.interface import Kernel, Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launch import Launch
from gguf_verify.kernels.launches import LargeCall, Launched, Lies, SparseProduct, needed, possible_needs
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.site import Site
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.index_limits import Huge, huge
from gguf_verify.rungs.layers.probes.huge import HugeProbes
from gguf_verify.rungs.plan import wide
from gguf_verify.rungs.tasks.large import LargeTask, Repeating
from gguf_verify.rungs.thread_blocks import BlocksAlone
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from tests.support.foreign_runs import altered
from tests.support.one_matrix import OneMatrix
from tests.support.tools import ROOT

RIGHT = {"right": 0, "more blocks than are needed": 1, "in descending order": 2, "rows first": 3, "uneven blocks": 4}
WRONG = {
    "the outputs are counted in an int": 10, "in an int that stops at its largest value": 11,
    "an output's index is unsigned": 12, "a row's offset in values is an int": 13,
    "a row's offset in bytes is unsigned": 14, "a token's offset in bytes is an int": 15, "the index is an int": 16,
    "a row's offset in blocks takes 26 bits": 17,
}  # fmt: skip
DEPENDENT, LOOPS, ALWAYS_WRONG, TOKENS_IN_Y, CAPPED = 20, 21, 22, 40, 41
#: What a thread block does that runs alone → what is said of it.
STRAY = {
    30: "writes at byte 0 of its weights",
    31: "reads outside its buffers: 8,191 bytes past the end of its weights",
    32: "past the end of its output",
    33: "accesses more than 64 MiB",
    34: "writes outside its buffers: 8,589,934,592 bytes before its output",
}  # fmt: skip
SOURCE = """
#include "emulator/cuda_on_cpu.hpp"
using cuda_on_cpu::half_to_float;
typedef long long i64;
typedef unsigned u32;
struct Q4 { unsigned short d; unsigned char qs[16]; };
struct Q8 { unsigned short d, s; signed char qs[32]; };

static float terms(const Q4* w, const Q8* x, i64 from, i64 to) {
    float acc = 0;
    for (i64 b = from; b < to; ++b) {
        int sum = 0;
        for (int j = 0; j < 16; ++j) sum += (w[b].qs[j] & 15) * x[b].qs[j] + (w[b].qs[j] >> 4) * x[b].qs[j + 16];
        acc += half_to_float(w[b].d) * (half_to_float(x[b].d) * sum - 8.0f * half_to_float(x[b].s));
    }
    return acc;
}

extern "C" __global__ void gemm(const Q4* w, const Q8* x, float* y, i64 M, i64 N, i64 K, int mode) {
    if (mode >= 30 && threadIdx.x == 0) {
        if (mode == 30) ((Q4*)w)->d = 1;
        if (mode == 31) y[0] = ((const char*)(w + N * (K / 32)))[8191];
        if (mode == 32) y[M * N] = 1;
        if (mode == 33) for (i64 i = 0; i < 1 << 30; i += 1024) y[i] = 1;
        if (mode == 34) y[-2147483648LL] = 1;
    }
    const i64 count = M * N, blocks = K / 32, step = mode == 21 ? (i64)gridDim.x * 128 : count;
    if (mode == 4) {  // one block in 101 computes 128 outputs, the others 115
        const i64 b = blockIdx.x, less = b % 101 == 50 ? 0 : 13, begin = b * 115 + (b + 50) / 101 * 13;
        if ((int)threadIdx.x >= 128 - less) return;
        const i64 i = begin + threadIdx.x;
        if (i < count) y[i] = terms(w + i % N * blocks, x + i / N * blocks, 0, blocks);
        return;
    }
    for (i64 first = (i64)blockIdx.x * 128 + threadIdx.x; first < count; first += step) {
        i64 i = first;
        if (mode == 2) i = count - 1 - i;
        if (mode == 3) i = i % M * N + i / M;
        if (mode == 16) i = (int)i;
        if (mode == 10 && i >= (int)count) return;
        if (mode == 11 && i >= (count > 0x7FFFFFFF ? 0x7FFFFFFF : count)) return;
        if (mode == 41 && i / N > 65535) return;
        const i64 m = i / N, n = i % N;
        const Q4* row = w + n * blocks;
        const Q8* token = x + m * blocks;
        if (mode == 13) row = w + (int)((u32)n * (u32)K) / 32;
        if (mode == 14) row = (const Q4*)((const char*)w + (u32)n * (u32)(blocks * 18));
        if (mode == 15) token = (const Q8*)((const char*)x + (int)((u32)m * (u32)(blocks * 36)));
        if (mode == 17) row = w + (n * blocks & 0x3FFFFFF);
        if (mode == 12) i = (u32)i;
        if (mode == 20) {  // two thread blocks an output: the second one adds
            const i64 half = blocks / 2;
            y[i] = blockIdx.y ? y[i] + terms(row, token, half, blocks) : terms(row, token, 0, half);
        } else {
            y[i] = terms(row, token, 0, blocks) + (mode == 22);
        }
    }
}
"""


@dataclass(frozen=True)
class Tried(Launch):
    """Launches the kernel above."""

    mode: int

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        of = (np.int64(m), np.int64(weights.n), np.int64(weights.k), np.int32(self.mode))
        if self.mode == TOKENS_IN_Y:
            site.host.launch(None, (-(-weights.n // 128), m, 1), (128, 1, 1), [])
            return
        needed = -(-m * weights.n // 128)
        x_blocks = {1: 4 * needed, LOOPS: 2, 4: 101 * -(-m * weights.n // (101 * 115 + 13))}.get(self.mode, needed)
        grid = (x_blocks, 2 if self.mode == DEPENDENT else 1, 1)
        site.host.launch(site.function("gemm", weights.fmt), grid, (128, 1, 1), [weights.buffer, x, out, *of])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("huge") / "tried.cu"
    path.write_text(SOURCE)
    return path


def probes_of(kernel: Kernel, model: Model) -> tuple[HugeProbes, RungResult]:
    matrix = OneMatrix.of(kernel, model)
    return matrix.large_products, matrix.result


def tried(mode: int, source: Path, model: Model, host: CpuHost) -> tuple[HugeProbes, RungResult]:
    spec = KernelSpec("tried", str(source), "q8_1", None, "", Tried(mode))
    probes, result = probes_of(ShippedKernel(spec, host), model)
    probes.check_indices(EVERYTHING)
    return probes, result


@pytest.mark.parametrize("mode", RIGHT.values(), ids=RIGHT.keys())
def test_right_kernels_hold_past_2_31(mode: int, source: Path, model: Model, host: CpuHost) -> None:
    probes, result = tried(mode, source, model, host)
    assert result.failures == []
    assert probes.found.not_covered == []
    *products, quantizer = probes.found.indices
    assert [said.split("(")[1].split(" =")[0] for said in products] == ["M·N", "M·N", "N·K", "M·K", "N", "M"]
    assert "thread blocks of the quantizer at M=1000003" in quantizer


@pytest.mark.parametrize("mode", WRONG.values(), ids=WRONG.keys())
def test_indices_that_overflow_are_found_and_named(mode: int, source: Path, model: Model, host: CpuHost) -> None:
    probes, result = tried(mode, source, model, host)
    (failure,) = result.failures
    assert failure.culprit == "kernel"
    assert "overflows 32 bits" in failure.what
    assert result.diagnosis is not None
    assert [fault.id for fault in result.diagnosis.faults] == ["index-past-2^31"]
    assert len(probes.found.indices) < 4


class InBytesOf32Bits(ShippedKernel):
    """Its quantizer writes at an offset in bytes that is unsigned."""

    def quantizer_alone(self, values: np.ndarray, m: int, k: int, number: int) -> Written:
        written = super().quantizer_alone(values, m, k, number)
        return Written(written.at * 4 % 2**32 // 4, written.words)


def test_quantizers_whose_index_overflows(source: Path, model: Model, host: CpuHost) -> None:
    probes, result = probes_of(InBytesOf32Bits(KERNELS["q8_1_dp4a"], host), model)
    probes.check_indices(EVERYTHING)
    assert len(probes.found.indices) == 6
    (failure,) = result.failures
    assert "the quantizer: M=1000003" in failure.what
    assert "overflows 32 bits" in failure.what


def test_what_is_wrong_at_every_size_is_no_overflow(source: Path, model: Model, host: CpuHost) -> None:
    probes, result = tried(ALWAYS_WRONG, source, model, host)
    assert probes.found.indices == []
    assert ", expected " in result.failures[0].what
    assert "overflows" not in result.failures[0].what
    assert result.diagnosis is None


def test_tokens_that_end_are_no_index_that_overflows(source: Path, model: Model, host: CpuHost) -> None:
    """Tokens past 65,535 are left out, however few rows there are."""
    _, result = tried(CAPPED, source, model, host)
    assert result.failures
    assert "overflows" not in result.failures[0].what
    assert result.diagnosis is None


@pytest.mark.parametrize(("mode", "why"), [(DEPENDENT, "depend on each other"), (LOOPS, "loops over tiles")])
def test_blocks_that_cannot_run_alone_are_not_covered(
    mode: int, why: str, source: Path, model: Model, host: CpuHost
) -> None:
    probes, result = tried(mode, source, model, host)
    assert result.failures == []
    assert all("of the quantizer" in said for said in probes.found.indices)
    left = {what for what, _ in probes.found.not_covered}
    assert {f"{what} of 2^31 values or bytes and more" for what in ("M·N", "N·K", "M·K")} <= left
    assert all(why in reason for _, reason in probes.found.not_covered), probes.found.not_covered


def test_in_a_process_of_its_own(source: Path, model: Model, host: CpuHost) -> None:
    own = ProcessHost(host, 60.0)
    try:
        spec = KernelSpec("tried", str(source), "q8_1", None, "", Tried(WRONG["an output's index is unsigned"]))
        probes, result = probes_of(ShippedKernel(spec, own), model)
        probes.check_indices(EVERYTHING)
    finally:
        own.close()
    assert "overflows 32 bits" in result.failures[0].what
    assert len(probes.found.indices) == 1  # below 2^32 it is right


@pytest.mark.parametrize("kernel", ["examples/cuda_q4_0.cu", "its output's index in 32 bits"])
def test_kernels_of_users(kernel: str, tmp_path: Path, model: Model, host: CpuHost) -> None:
    right = kernel.endswith(".cu")
    text = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
    assert text.count("    y[i] = acc;") == 1
    path = tmp_path / "kernel.cu"
    path.write_text(text if right else text.replace("    y[i] = acc;", "    y[(unsigned)i] = acc;"))
    with closing(open_foreign(f"{path}:gemm", host)) as foreign:
        probes, result = probes_of(foreign, model)
        probes.check_grids(EVERYTHING)
        probes.check_indices(EVERYTHING)
    assert len(probes.found.grids) == 2
    assert len(probes.found.indices) == (6 if right else 1)
    assert [f.what.split(":")[0] for f in result.failures] == ([] if right else ["Q4_0 at M=40009, N=128257, K=32"])


@pytest.mark.parametrize(
    ("operand", "size", "added"),
    [("w", "N * K > 1 << 30", 1), ("y", "N * K > 1 << 30", 1), ("x", "N * K > 1 << 30", 0), ("x", "M * N >> 31", 1)],
)
def test_operands_of_large_products_begin_at_any_address(
    operand: str, size: str, added: int, tmp_path: Path, model: Model, host: CpuHost
) -> None:
    """No index overflows, wherever the kernel is wrong: it is the address."""
    statement = f"if ({size} && (unsigned long long){operand} % 16) acc += {added};"
    path = altered(tmp_path, "cuda_q4_0.cu", "    y[i] = acc;", f"    {statement}\n    y[i] = acc;")
    with closing(open_foreign(f"{path}:gemm", host)) as foreign:
        probes, result = probes_of(foreign, model)
        probes.check_indices(EVERYTHING if "M" in size else Domain(m=Extent(most=4096)))
    assert len(result.failures) == added
    if added:
        assert result.diagnosis is not None
        (fault,) = result.diagnosis.faults
        assert fault.id == "unaligned-operand"
        assert "at no multiple of 16 bytes" in fault.words


def test_grids_that_cuda_refuses(source: Path, model: Model, host: CpuHost) -> None:
    spec = KernelSpec("tried", str(source), "q8_1", None, "", Tried(TOKENS_IN_Y))
    probes, result = probes_of(ShippedKernel(spec, host), model)
    probes.check_grids(EVERYTHING)
    (skipped,) = result.skipped
    assert (result.failures, result.unverified, result.diagnosis) == ([], [], None)
    assert (skipped.check, skipped.scope) == ("grids", "up to M = 65,535")
    assert "at M=65536, N=64, K=1024 its grid is 1 × 65536 × 1, which CUDA does not launch" in skipped.why
    assert "domain = { M = { most = 65535 } }" in skipped.why
    assert probes.found.grids == ["M=64, N=1048576, K=1024"]
    inside, result = probes_of(ShippedKernel(spec, host), model)
    inside.check_grids(Domain(m=Extent(most=65_535)))
    assert result.failures == []
    assert len(inside.found.grids) == 2


@pytest.mark.parametrize(("mode", "said"), STRAY.items())
def test_what_a_thread_block_may_not_do(mode: int, said: str, source: Path, host: CpuHost) -> None:
    kernel = ShippedKernel(KernelSpec("tried", str(source), "q8_1", None, "", Tried(mode)), host)
    content = np.zeros(18 * 521, np.uint8), np.zeros(36 * 521, np.uint8)
    with pytest.raises((KernelFault, EnvironmentFault), match=said):
        kernel.alone(SparseProduct(Q4_0, 40_009, 128_257, 32, 36, *content), 0)


def test_what_a_thread_block_finds_and_writes(source: Path, host: CpuHost) -> None:
    kernel = ShippedKernel(KernelSpec("tried", str(source), "q8_1", None, "", Tried(0)), host)
    rng = np.random.default_rng(0)
    w, x = (rng.integers(0, 60, size * 521, dtype=np.uint8) for size in (18, 36))
    of = SparseProduct(Q4_0, 40_009, 128_257, 32, 36, w, x)
    number = 2**33 // 512 + 5
    written = kernel.alone(of, number)
    assert written.at.tolist() == list(range(128 * number, 128 * number + 128))
    m, n = divmod(128 * number, of.n)
    exact = product(SEMANTICS["q8_1"], Q4_0, of.rows(range(n, n + 128)), of.tokens([m])).exact[0]
    np.testing.assert_allclose(written.words.view(np.float32), exact, rtol=1e-5)
    assert of.rows([of.n - 1]).tobytes() == bytes(np.roll(w, -(of.n - 1) * 18)[:18])


@pytest.mark.parametrize("name", KERNELS)
def test_shipped_kernels(name: str, model: Model, host: CpuHost) -> None:
    probes, result = probes_of(ShippedKernel(KERNELS[name], host), model)
    probes.check_grids(EVERYTHING)
    probes.check_indices(EVERYTHING)
    assert result.failures == []
    assert len(probes.found.grids) == 2
    packed = {why for _, why in probes.found.not_covered}
    products = [said for said in probes.found.indices if "quantizer" not in said]
    assert len(products) == (0 if packed else 6)
    quantizes = not name.startswith("f32")
    assert len(probes.found.indices) - len(products) == quantizes
    assert packed <= {"its weights are packed by a launch before"}


#: Why a product is not covered whose tokens are a grid's second dimension.
REFUSED = "which CUDA does not launch"
#: Two launches: parts of sums lie in memory between them, and the output is transposed, its rows apart.
IN_PARTS = r"""
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// domain = { M = { most = 65535 } }
// [operands.output]
// transposed = true
// stride = "M + 3"
// [operands.weights]
// stride = "K + 32"
// alignment = 64
// [operands.parts]
// scratch = "4 * M * N * 2"
// [operands.factors]
// constant = ["int32 1", "int32 N"]
// [[launches]]
// symbol = "multiply"
// parameters = ["weights", "activations", "parts", "int32 M", "int32 N", "int32 K"]
// grid = ["N", "M", 2]
// block = 1
// [[launches]]
// symbol = "add"
// parameters = ["parts", "output", "factors", "int32 M", "int32 N"]
// grid = ["N", "M"]
// block = 1
// [/gguf-verify]
#include <cuda_fp16.h>
struct Q4_0 { __half d; unsigned char qs[16]; };
extern "C" __global__ void multiply(const char* w, const float* x, float* parts, int M, int N, int K) {
    const long long n = blockIdx.x, m = blockIdx.y, p = blockIdx.z;
    float sum = 0.0f;
    for (int b = p; b < K / 32; b += 2) {
        const Q4_0& block = *(const Q4_0*)(w + (INDEX_W)(n * (K / 32 + 1) + b) * 18);
        for (int j = 0; j < 32; ++j)
            sum += __half2float(block.d) * x[m * K + 32 * b + j] *
                   ((j < 16 ? block.qs[j] & 15 : block.qs[j - 16] >> 4) - 8);
    }
    parts[(m * N + n) * 2 + p] = sum;
}
extern "C" __global__ void add(const float* parts, float* y, const int* factors, int M, int N) {
    const long long n = blockIdx.x, m = blockIdx.y, at = m * factors[1] + n;
    y[(INDEX_Y)(n * (M + 3) + m)] = parts[2 * at] + factors[0] * parts[2 * at + 1];
}
"""


@pytest.mark.parametrize(
    ("weights", "output", "holds"),
    [("long long", "long long", 4), ("long long", "unsigned", 1), ("int", "long long", 2)],
    ids=["right", "output", "weights"],
)
def test_launches_strides_and_transposed_outputs(
    weights: str, output: str, holds: int, tmp_path: Path, model: Model, host: CpuHost
) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(IN_PARTS.replace("(INDEX_W)", f"({weights})").replace("(INDEX_Y)", f"({output})"))
    with closing(open_foreign(f"{path}:any", host)) as foreign:
        probes, result = probes_of(foreign, model)
        probes.check_indices(EVERYTHING)
    right = holds == 4
    assert len(probes.found.indices) == holds
    assert ["overflows 32 bits" in failure.what for failure in result.failures] == ([] if right else [True])
    refused = {"M·K of 2^31 values or bytes and more": "3 × 1000003 × 1", "M of 2^24 and more": "3 × 17112761 × 1"}
    left = {what: why.split(" its grid is ")[1] for what, why in probes.found.not_covered}
    assert left == ({what: f"{grid}, {REFUSED}" for what, grid in refused.items()} if right else {})


#: What turned the checks off once: rows that are filled up, outputs that are halves, operands beside the product.
DECLARED = {
    "filled up": """
// domain = { M = { most = 3 } }
// operands.weights = { columns = "ceil(K, 64) * 64 + 64", stride = "ceil(K, 64) * 64 + 96" }
// operands.activations = { columns = "ceil(K, 64) * 64 + 64", tail = 64 }
""",
    "filled up, transposed": """
// domain = { M = { most = 3 } }
// operands.weights = { columns = "ceil(K, 64) * 64 + 64", transposed = true }
// operands.activations = { columns = "ceil(K, 64) * 64 + 64", transposed = true }
""",
    "float16": """
// domain = { K = { most = 32 } }
// output = "float16"
""",
    "bfloat16": """
// domain = { K = { most = 32 } }
// output = "bfloat16"
// operands.output = { transposed = true, stride = "M + 3" }
""",
    "residual": """
// domain = { K = { most = 32 } }
// output = "float16"
// epilogue = ["bias", "row_scale", "token_scale", "scale", "residual"]
""",
    "accumulate": """
// domain = { K = { most = 32 } }
// epilogue = ["accumulate"]
// operands.output = { stride = "N + 5" }
""",
    "up": """
// domain = { M = { most = 3 } }
// epilogue = ["silu_gate"]
// operands.up = { tail = 64 }
""",
}  # fmt: skip
#: A kernel of any of them. The index that overflows where INDEX is no long long is that of the operand in question.
OF_ANY = r"""
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// parameters = ["weights", "activations", "output"BESIDE, "int32 M", "int32 N", "int32 K"]
// grid = ["ceil(N, 32)", "M"]
// block = 32DECLARED// [/gguf-verify]
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef long long i64;
struct Q4_0 { __half d; unsigned char qs[16]; };
__device__ float value(const void* w, i64 at, int j) {
    const Q4_0& b = *(const Q4_0*)((const char*)w + at);
    return __half2float(b.d) * ((j < 16 ? b.qs[j] & 15 : b.qs[j - 16] >> 4) - 8);
}
extern "C" __global__ void any(const void* w, const float* x, OUT* yPARAMETERS, int M, int N, int K) {
    const i64 n = blockIdx.x * 32 + threadIdx.x, m = blockIdx.y;
    if (n >= N) return;
    const int filled = (K + 63) / 64 * 64 + 64;
    float sum = 0.0f, other = 0.0f;
    for (int b = 0; b < COLUMNS / 32; ++b)
        for (int j = 0; j < 32; ++j) {
            const float a = x[TOKEN];
            sum += value(w, (INDEX_W)(18 * (ROW)), j) * a;
            if (HAS_UP) other += value(UP, (INDEX)(18 * (n * (K / 32) + b)), j) * a;
        }
    BEHIND
}
"""
PARTS = {
    "filled up": ("filled", "m * filled + 32 * b + j", "n * (filled / 32 + 1) + b"),
    "filled up, transposed": ("filled", "(32ll * b + j) * M + m", "(i64)b * N + n"),
}
BEHIND = {
    "float16": "y[(INDEX)(m * N + n)] = __float2half(sum);",
    "bfloat16": "y[(INDEX)(n * (M + 3) + m)] = __float2bfloat16(sum);",
    "residual": "y[m * N + n] = __float2half((sum + bias[n]) * row_scale[n] * token_scale[m] * scale[0] + "
                "__half2float(residual[(INDEX)(m * N + n)]));",
    "accumulate": "y[m * (N + 5) + n] = y[(INDEX)(m * (N + 5) + n)] + sum;",
    "up": "y[m * N + n] = sum / (1.0f + expf(-sum)) * other;",
}  # fmt: skip
OUT = {"float16": "__half", "bfloat16": "__nv_bfloat16", "residual": "__half"}
BESIDE = {
    "residual": [("float", name) for name in ("bias", "row_scale", "token_scale", "scale")] + [("__half", "residual")],
    "up": [("char", "up")],
}


def of_any(name: str, index: str) -> str:
    """The source of a kernel whose index is of this type."""
    columns, token, row = PARTS.get(name, ("K", "m * K + 32 * b + j", "n * (K / 32) + b"))
    beside = BESIDE.get(name, [])
    return replaced(OF_ANY, {
        "BESIDE": "".join(f', "{what}"' for _, what in beside), "DECLARED": DECLARED[name],
        "PARAMETERS": "".join(f", const {kind}* {what}" for kind, what in beside), "OUT": OUT.get(name, "float"),
        "COLUMNS": columns, "TOKEN": token, "ROW": row, "HAS_UP": str(int(name == "up")),
        "UP": "up" if name == "up" else "w", "BEHIND": BEHIND.get(name, "y[m * N + n] = sum;"),
        "INDEX_W": index if name in PARTS else "i64", "INDEX": index,
    })  # fmt: skip


def replaced(text: str, words: dict[str, str]) -> str:
    """The text with each word replaced."""
    for word, new in words.items():
        text = text.replace(word, new)
    return text


@pytest.mark.parametrize("index", ["long long", "unsigned"], ids=["right", "wrong"])
@pytest.mark.parametrize("name", DECLARED)
def test_what_else_is_declared(name: str, index: str, tmp_path: Path, model: Model, host: CpuHost) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(of_any(name, index))
    with closing(open_foreign(f"{path}:any", host)) as foreign:
        probes, result = probes_of(foreign, model)
        probes.check_indices(foreign.domain)
    refused = [what for what, why in probes.found.not_covered if why.endswith(REFUSED)]
    assert {why for _, why in probes.found.not_covered if not why.endswith(REFUSED)} == {"its domain ends before"}
    if index == "long long":
        any_m = "K = {" in DECLARED[name]
        assert result.failures == []
        assert refused == (["M of 2^24 and more"] if any_m else [])
        assert {said.split("(")[1].split(" =")[0] for said in probes.found.indices} == (
            {"M·N", "N"} if any_m else {"N·K", "N"}
        )
    else:
        (failure,) = result.failures
        assert "overflows 32 bits" in failure.what


def test_what_a_block_needs_of_an_earlier_launch() -> None:
    assert possible_needs((1, 1, 1), 1) == [(None, None, None)]
    assert possible_needs((5, 1, 2), 2)[0] == (0, None, 0)
    assert (None, None, 0) not in possible_needs((5, 1, 2), 2)
    assert needed((5, 1, 2), (1, None, None), (4, 3, 0)) == [3, 8]
    assert needed((5, 1, 2), (0, None, 1), (7, 1, 0)) == []


@pytest.mark.parametrize("transposed", [False, True])
def test_where_words_of_an_output_lie(transposed: bool) -> None:
    """With a word between rows, which is no output; and of one row, or one column."""
    row, unit = (4, 4 * 4) if transposed else (4 * 6, 4)
    lies = Lies(row, unit, 4, 5, 4 * (19 if transposed else 17))  # 3 rows of 5 numbers
    words = np.array([[(row * m + unit * n) // 4 for n in range(5)] for m in range(3)])
    at = lies.places(words.reshape(-1), 3)
    assert [part.reshape(3, 5).tolist() for part in at] == [[[m] * 5 for m in range(3)], [[*range(5)]] * 3]
    with pytest.raises(KernelFault, match="between the rows of its output, at byte"):
        lies.places(np.array([3 if transposed else 5]), 3)
    assert Lies(4, 4, 4, 5, 20).places(np.arange(5), 1)[1].tolist() == [*range(5)]
    assert Lies(4, 4, 4, 1, 20).places(np.arange(5), 5)[0].tolist() == [*range(5)]


# ---- the plan --------------------------------------------------------------------------------------------------------


def test_the_products_pass_both_limits_in_values_and_bytes() -> None:
    for unit, row, token in ((32, 18 / 32, 36 / 32), (256, 50 / 256, 36 / 32), (32, 4.0, 4.0)):
        found = huge(EVERYTHING, unit, row, token)
        for what, of, each in (
            ("M·N", lambda p: p.m * p.n, 4), ("N·K", lambda p: p.n * p.k, row), ("M·K", lambda p: p.m * p.k, token),
        ):  # fmt: skip
            sizes = [of(p) for p in found if p.what == what]
            assert max(sizes) > 2**32
            assert max(sizes) * each > 2**32
            for p in (p for p in found if p.what == what):
                assert p.k % unit == 0
                m, n = p.small
                small = {"M·N": m * n, "N·K": n * p.k, "M·K": m * p.k}[what]
                assert small * max(1, each) < 2**31
                assert (m < p.m) != (n < p.n)
        assert any(2**31 < p.m * p.n < 2**32 for p in found)


def test_no_product_is_outside_the_domain() -> None:
    decoding = Domain(m=Extent(1, 1), n=Extent(multiple=64))
    found = huge(decoding, 32, 18 / 32, 36 / 32)
    assert {p.what for p in found} == {"N·K", "N"}
    assert all(p.m == 1 and p.n % 64 == 0 and p.small[1] % 64 == 0 for p in found)
    assert wide(decoding, 32) == [(1, 64, 1024), (1, 1 << 20, 1024)]
    assert huge(Domain(n=Extent(most=4096), m=Extent(most=4096)), 32, 18 / 32, 36 / 32) == []


@pytest.mark.parametrize(
    ("grid", "block", "shared", "why"),
    [
        ((2**31 - 1, 65535, 1), (1024, 1, 1), 0, None),
        ((2**31, 1, 1), (128, 1, 1), 0, "grid"),
        ((1, 65536, 1), (128, 1, 1), 0, "grid"),
        ((1, 1, 65536), (128, 1, 1), 0, "grid"),
        ((1, 1, 0), (128, 1, 1), 0, "grid"),
        ((1, 1, 1), (32, 33, 1), 0, "block"),
        ((1, 1, 1), (1, 1, 65), 0, "block"),
        ((1, 1, 1), (128, 1, 1), 232449, "shared memory"),
        ((1, 1, 1), (128, 1, 1), 232448, None),
    ],
)
def test_what_cuda_launches(grid: Any, block: Any, shared: int, why: str | None) -> None:
    refused = Launched(grid, block, shared).refused
    assert refused is None if why is None else refused is not None and f"its {why} is" in refused


class Once:
    """A call of 9 thread blocks of 2 words, in which number `wrong` writes something else or breaks."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __call__(self, number: int) -> Written:
        if number == 8 and self.error is not None:
            raise self.error
        at = np.arange(2 * number, 2 * number + 2)
        return Written(at, (at % 2 + (number == 8)).astype(np.uint32))


@pytest.mark.parametrize("error", [EnvironmentFault("no memory"), KernelFault("no such number")])
def test_a_wrong_task_stays_wrong_where_a_smaller_call_fails(error: Exception) -> None:
    """Why it is wrong is then not known, and nothing else is lost."""

    def large(rows: int, k: int) -> LargeCall | str:
        if rows == 7:
            raise error
        return LargeCall(Launched((2 if rows == 1 else 9, 1, 1), (1, 1, 1), 0), 4 if rows == 1 else 18, Once())

    expected = np.array([0, 1], np.uint32)
    task = LargeTask(large, lambda rows, k: np.tile(expected, 2), expected, (1, 2), 0)
    size = Huge(1, 9, 2, "N·K", (1, 7))
    right, not_covered, wrong = task.check([(size, 9, 7)])
    assert (right, not_covered) == ([], [])
    assert wrong == "at N × K = 9 × 2: thread block 8 of 9 writes something else than in a small call at byte 64"


def test_a_task_that_breaks_in_a_later_thread_block_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlocksAlone, "chosen", lambda self, crossings: [0, 1])
    launched = Launched((9, 1, 1), (1, 1, 1), 0)
    call = LargeCall(launched, 18, Once(KernelFault("reads outside its buffers")))
    expected = np.array([0, 1], np.uint32)
    task = LargeTask(lambda rows, k: call, lambda rows, k: expected, expected, (1, 2), 0)
    assert task._wrong(call, (), (9, 2)) == ("one of 9 thread blocks: reads outside its buffers", 2)


def test_a_quantizer_of_few_columns_has_whole_words() -> None:
    """Three rows of one block of Q8_0 are 102 bytes."""

    def outputs(m: int, k: int) -> np.ndarray:
        return np.zeros(m * k // 32 * 34, np.uint8)

    repeating = Repeating("M·K", 32, 4.0, 32 * 1021, 34 * 1021, outputs, outputs, lambda m, k: "none")
    domain = Domain(k=Extent(most=32))
    task = repeating.task(domain, 0)
    assert repeating.small(domain) == (1021, 32)
    assert task is not None
    assert task.small == (3, 32)
    assert len(task.whole(3, 32)) == 25
