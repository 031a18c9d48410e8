"""Where operands lie: a page that cannot be accessed is next to each, and where they begin differs from run to run, so
that a kernel which reads past one, or whose outputs depend on an address, is found; and every answer is judged."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest

from gguf_verify import kernel as declared
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign import products
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.operands import MemoryFile
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.kernels.foreign.products import Products
from gguf_verify.kernels.foreign.python_kernel import TaskRunner
from gguf_verify.kernels.foreign.tasks import ForeignRepacker, as_task
from gguf_verify.kernels.launches import SparseProduct
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import KernelFault, KernelFinding
from tests.support.foreign_runs import N, operands

OPERANDS = ("weights", "activations", "bias", "token_scale", "residual", "numbers", "work", "output")
DECLARATION = """
formats = ["Q4_0"]
semantics = "q8_1"
epilogue = ["bias", "token_scale", "residual"]
parameters = ["weights", "activations", "bias", "token_scale", "residual", "numbers", "work", "output",
              "int32 M", "int32 N", "int32 K", "int32 {which}", "int32 {what}"]
block = 32
grid = ["N", "M"]
operands.numbers.constant = ["int32 7", "int32 N"]
operands.work.scratch = "M * N * 4"
"""
SOURCE = r"""
#include <cuda_fp16.h>
#include <stdint.h>
struct Q4_0 { __half d; uint8_t qs[16]; };
struct Q8_1 { __half d, s; int8_t qs[32]; };
extern "C" __global__ void gemm(const Q4_0* w, const Q8_1* x, const float* bias, const float* scale,
                                const float* residual, const int* numbers, float* work, float* y,
                                int M, int N, int K, int which, int what) {
    const int blocks = K / 32, n = blockIdx.x, m = blockIdx.y;
    if (threadIdx.x) return;
    float sum = 0;
    for (int b = 0; b < blocks; ++b) {
        const Q4_0& a = w[n * blocks + b];
        const Q8_1& c = x[m * blocks + b];
        int dot = 0;
        for (int j = 0; j < 16; ++j) dot += (a.qs[j] & 15) * c.qs[j] + (a.qs[j] >> 4) * c.qs[j + 16];
        sum += __half2float(a.d) * (__half2float(c.d) * dot - 8.f * __half2float(c.s));
    }
    const void* at[] = {w, x, bias, scale, residual, numbers, work, y};
    const size_t sizes[] = {sizeof(Q4_0) * N * blocks, sizeof(Q8_1) * M * blocks, 4 * (size_t)N, 4 * (size_t)M,
                            4 * (size_t)M * N, 8, 4 * (size_t)M * N, 4 * (size_t)M * N};
    const char* of = (const char*)at[which];
    float more = 0;
    if (what == 1) more = (size_t)of & 4095;
    // a vector of 16 bytes that begins within the operand or at its end, and is not used
    if (what == 2) (void)((const volatile char*)of)[(sizes[which] + 15) / 16 * 16];
    if (what == 3) (void)((const volatile char*)of)[-1];
    work[m * N + n] = sum;
    y[m * N + n] = (work[m * N + n] + bias[n]) * scale[m] + residual[m * N + n] + more;
}
"""

#: Gives what its scratch holds.
COPIES = """
extern "C" __global__ void gemm(const void* w, const void* x, const float* sums, float* y, long long n) {
    const long long i = (long long)blockIdx.x * 128 + threadIdx.x;
    if (i < n) y[i] = sums[i];
}
"""
OF_COPIES = """
formats = ["Q4_0"]
semantics = "q8_1"
parameters = ["weights", "activations", "sums", "output", "int64 M * N"]
block = 128
grid = "ceil(M * N, 128)"
operands.sums = { scratch = "M * N * 4", zeroed = true }
"""


def q4_0_values(rows: np.ndarray) -> np.ndarray:
    return FORMATS["Q4_0"].decode(rows.reshape(len(rows), -1, 18)).reshape(len(rows), -1).astype(np.float64)


def opened(folder: Path, which: int, what: int) -> ForeignKernel:
    path = folder / "k.cu"
    path.write_text(SOURCE)
    path.with_suffix(".toml").write_text(DECLARATION.replace("{which}", str(which)).replace("{what}", str(what)))
    return open_foreign(f"{path}:gemm", CpuHost(1))


def made(kernel: ForeignKernel, schedule: Schedule | None = None) -> np.ndarray:
    rows, x = operands()
    under = kernel if schedule is None else kernel.under(schedule)
    try:
        return under.product(under.upload(FORMATS["Q4_0"], rows), x)
    finally:
        kernel.close()


def test_one_that_reads_no_more_than_it_has(tmp_path: Path) -> None:
    rows, x = operands()
    kernel = opened(tmp_path, 0, 0)
    expected = product(kernel.definition, FORMATS["Q4_0"], rows, kernel.quantize(x))
    y = made(kernel)
    assert judge(y, expected).passed
    for schedule in (Schedule("descending"), Schedule("seeded", 1)):
        assert np.array_equal(made(opened(tmp_path, 0, 0), schedule), y)


#: Operands by their numbers.
EACH = pytest.mark.parametrize("which", range(len(OPERANDS)), ids=OPERANDS)


@EACH
def test_outputs_that_depend_on_an_address(which: int, tmp_path: Path) -> None:
    with pytest.raises(KernelFault, match="outputs depend on the addresses of its operands"):
        made(opened(tmp_path, which, 1))


@EACH
def test_reading_past_the_end(which: int, tmp_path: Path) -> None:
    """In an ordinary call, and though what is read is not used."""
    with pytest.raises(KernelFault, match=f"past the end of its {OPERANDS[which]}"):
        made(opened(tmp_path, which, 2))


@EACH
def test_reading_before_the_beginning(which: int, tmp_path: Path) -> None:
    with pytest.raises(KernelFault, match=f"reads outside its buffers: 1 bytes before its {OPERANDS[which]} "):
        made(opened(tmp_path, which, 3), Schedule("seeded", 1))


def test_a_library_that_reads_past_the_end() -> None:
    """Python's kernels read memory by themselves: the end of their process is the only sign."""

    @declared(formats=["Q4_0"], semantics="f32")
    def reads(weights, activations, shape):
        behind = np.lib.stride_tricks.as_strided(activations.view(np.uint8), (activations.nbytes + 16,), (1,))
        behind[-1].copy()
        return np.zeros((shape.m, shape.n), np.float32)

    with pytest.raises(KernelFault, match=r"SIGSEGV.*past the end of it$"):
        made(open_foreign(reads, CpuHost(1)))


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("where", ["weights", "packed", "pack", "activations"])
def test_both_ends_of_every_operand(where: str, before: bool) -> None:
    """Whatever the operands hold, and however large they are: here weights of 4.5 MiB."""

    def peek(array):
        at = array.ctypes.data
        ctypes.string_at(at - 1 if before else at + -(-array.nbytes // 16) * 16, 1)

    def pack(rows, format):
        if where == "pack":
            peek(rows)
        return rows

    @declared(formats=["Q4_0"], semantics="f32", pack=pack if where.startswith("pack") else None)
    def gemm(weights, activations, shape):
        if where != "pack":
            peek(activations if where == "activations" else weights)
        return np.zeros((shape.m, shape.n), np.float32)

    kernel = open_foreign(gemm, CpuHost(1))
    for filled in range(3):
        rows, x = np.full((64, 18 * 4096), filled, np.uint8), np.full((1, 32 * 4096), filled + 1, np.float32)
        with pytest.raises(KernelFault, match="SIGSEGV"):
            kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


def test_where_the_weights_of_each_run_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call with a matrix has each place; what was packed is not packed again between its last two runs, nor
    later, and may be made in place."""
    packs = []

    def pack(rows, format):
        rows[0] ^= 1
        packs.append(rows)
        return rows

    @declared(formats=["Q4_0"], semantics="f32", deterministic=False, pack=pack)
    def gemm(weights, activations, shape):
        y = np.zeros((shape.m, shape.n), np.float32)
        y[0, :2] = len(packs), weights.ctypes.data % 4096
        return y

    told: list[list[list[int]]] = []

    def call(*asked):
        answers, said = Products.call(kernel.loaded, *asked)
        told.append([answer["output"][0, :2].astype(int).tolist() for answer in answers])
        return answers, said

    kernel = open_foreign(gemm, CpuHost(1))
    monkeypatch.setattr(kernel.loaded, "call", call)
    rows, x = operands()
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    for tokens in (x, x[:1]):
        kernel.product(weights, tokens)
    kernel.close()
    behind = [3, -rows.size // 16 * 16 % 4096]
    first, later = told
    assert [packed for packed, _ in first] == [1, 2, 3, 3]
    assert first[1:] == [[2, 0], behind, behind]
    assert first[0][1] % 32 != behind[1] % 32
    assert later == [behind]  # both runs have the same bits


@pytest.mark.parametrize("wrong", [0, 1, 2, 6])
def test_each_answer_of_a_kernel_with_any_bits_is_judged(wrong: int) -> None:
    """A state that one call leaves to the next may not hide which of its answers are wrong."""
    calls = iter(range(1 << 20))

    @declared(formats=["Q4_0"], semantics="f32", deterministic=False)
    def gemm(weights, activations, shape):
        terms = activations.astype(np.float64)[:, None] * q4_0_values(weights)
        y = np.array([[math.fsum(of_row) for of_row in of_token] for of_token in terms])  # the same at any address
        return np.full(y.shape, 12345.0, np.float32) if next(calls) == wrong else y.astype(np.float32)

    kernel = open_foreign(gemm, CpuHost(1))
    rows, x = operands()
    weights, expected = kernel.upload(FORMATS["Q4_0"], rows), product(kernel.definition, FORMATS["Q4_0"], rows,
                                                                     kernel.quantize(x))  # fmt: skip
    right = [judge(kernel.product(weights, x), expected).passed for _ in range(3)]
    kernel.close()
    assert right == [wrong not in runs for runs in ((0, 1, 2), (3, 4), (5, 6))]


def test_other_bits_within_the_bound_are_right() -> None:
    calls = iter(range(1 << 20))

    @declared(formats=["Q4_0"], semantics="f32", deterministic=False)
    def gemm(weights, activations, shape):
        y = activations.astype(np.float64) @ q4_0_values(weights).T
        return (y * (1 + next(calls) % 2 * 2.0**-24)).astype(np.float32)

    kernel = open_foreign(gemm, CpuHost(1))
    rows, x = operands()
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()
    assert judge(y, product(kernel.definition, FORMATS["Q4_0"], rows, kernel.quantize(x))).passed


@pytest.mark.parametrize("bad", [None, "token", "row"])
def test_outputs_that_fill_a_call_up_are_judged(bad: str | None) -> None:
    """A domain of whole tiles has calls with repeated tokens and rows, whose outputs are answers, too."""

    @declared(formats=["Q4_0"], semantics="f32", domain={"M": {"multiple": 8}, "N": {"multiple": 16}})
    def gemm(weights, activations, shape):
        y = (activations.astype(np.float64) @ q4_0_values(weights).T).astype(np.float32)
        if bad == "token":
            y[-1] = 0
        if bad == "row":
            y[:, N] = 0
        return y

    kernel = open_foreign(gemm, CpuHost(1))
    rows, x = operands()
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()
    expected = product(kernel.definition, FORMATS["Q4_0"], rows, kernel.quantize(x))
    assert judge(y, expected).passed == (bad is None)


@pytest.mark.parametrize("dtype", ["M8[ns/0]", "V4", "O", "float32,float32", 7, []])
def test_no_text_of_a_process_is_parsed_as_a_type(dtype: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy divides by zero where it parses the first, which would end the verifier."""

    @declared(computes="repack", formats=["Q4_0"])
    def pack(rows, format):
        return rows

    monkeypatch.setattr(TaskRunner, "_packed", lambda *_: {"dtype": dtype, "shape": [1]})
    task = as_task(open_foreign(pack, CpuHost(1)))
    assert isinstance(task, ForeignRepacker)
    with pytest.raises(KernelFault, match=r"which cannot be read$"):
        task.pack(FORMATS["Q4_0"], operands()[0])
    task.close()


def test_zeroed_scratch_of_a_large_product_takes_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 GiB that hold zeros; its last thread block finds them."""
    sizes: list[int] = []

    def memory(size: int) -> MemoryFile:
        sizes.append(size)
        return MemoryFile(size)

    monkeypatch.setattr(products, "MemoryFile", memory)
    path = tmp_path / "k.cu"
    path.write_text(COPIES)
    path.with_suffix(".toml").write_text(OF_COPIES)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1))
    rows, x = operands()
    of = SparseProduct(FORMATS["Q4_0"], 1 << 16, 1 << 16, 32, 36, rows[0], kernel.quantize(x)[0])
    written = kernel.alone(of, (1 << 32) // 128 - 1)
    kernel.close()
    assert written.at.tolist() == list(range((1 << 32) - 128, 1 << 32))
    assert not written.words.any()
    assert max(sizes) < 1 << 28


def test_the_line_that_reads_past_the_end(tmp_path: Path) -> None:
    """An ordinary call ends there; a checked build of the same call knows where."""
    if checks_fault() is None:
        with pytest.raises(KernelFault, match=r"k\.cu:\d+") as caught:
            made(opened(tmp_path, OPERANDS.index("bias"), 2))
        assert isinstance(caught.value, KernelFinding)
        assert caught.value.kind == "outside"
