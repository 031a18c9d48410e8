"""CUDA's types on the CPU host: their layouts, their names beside a program's own, halves in warps and in atomic
operations."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts.compiler import compiler
from gguf_verify.hosts.cpu_host import CheckedHost, CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.paths import kernel_root


def loaded(folder: Path, source: str, host: CpuHost, **defines: str) -> Any:
    shutil.copytree(kernel_root(), folder / "kernels")
    (folder / "kernels" / "k.cu").write_text(source)
    return host.load(folder / "kernels", "k.cu", "k", defines)


#: Sizes and alignments: CUDA C++ Programming Guide, "Built-in Vector Types".
LAYOUTS = {
    "char": (1, 1, 2, 1, 4), "short": (2, 2, 4, 2, 8), "int": (4, 4, 8, 4, 16), "long": (8, 8, 16, 8, 16),
    "longlong": (8, 8, 16, 8, 16), "float": (4, 4, 8, 4, 16), "double": (8, 8, 16, 8, 16),
}  # fmt: skip


def layouts() -> str:
    lines = ["#include <vector_types.h>", "#include <cuda_fp16.h>", "#include <cuda_bf16.h>", "#include <cuda_fp8.h>"]
    for name, (size, *aligned) in LAYOUTS.items():
        for prefix in ["", "u"] if name not in ("float", "double") else [""]:
            for n, alignment in enumerate(aligned, 1):
                type_ = f"{prefix}{name}{n}"
                lines.append(f"static_assert(sizeof({type_}) == {size * n} && alignof({type_}) == {alignment});")
                lines.append(f"static_assert(sizeof(make_{type_}({', '.join('1' * n)})) == {size * n});")
    for type_, size in {
        "__half": 2, "__half2": 4, "__nv_bfloat16": 2, "__nv_bfloat162": 4, "__half_raw": 2, "__half2_raw": 4,
        "half": 2, "half2": 4, "nv_bfloat16": 2, "nv_bfloat162": 4, "__nv_fp8_e4m3": 1, "__nv_fp8x2_e5m2": 2,
        "__nv_fp8x4_e4m3": 4,
    }.items():  # fmt: skip
        lines.append(f"static_assert(sizeof({type_}) == {size} && alignof({type_}) == {size});")
        lines.append(f"static_assert(std::is_trivially_default_constructible<{type_}>::value);")
    return "\n".join(lines)


NAMES = """
#define A 1
#define N 2
#define M 3
#define K 4
#define QK 5
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math_constants.h>
#include <math.h>
#include <stdint.h>
#include <cstdint>
#include <cassert>
#include <type_traits>
#define SIZE 6
#define Format 7
#define rn 8
static __device__ float half_to_float(half h) { return __half2float(h); }
static __device__ half float_to_half(float f) { return __float2half(f); }
template <class T> static __device__ T lesser(T a, T b) { return min(a, b); }
template <class T> static __device__ T whole(T a) { return a; }
struct block {
    union { half2 dm; struct { half d, m; } both; };
    uint8_t qs[4];
};
static_assert(sizeof(block) == 8);
enum Rounding { DOWN, UP, NEAREST };
static __device__ int lane_of(int lane) { return lane; }
__device__ half2 table[2];
extern "C" __global__ void k(float* y, const half* x) {
    __shared__ half tile[32];
    const int lane = lane_of(threadIdx.x);
    tile[lane] = x[lane];
    __syncthreads();
    half sum = tile[31 - lane];
    sum += half(1);
    sum = sum * __float2half(2.0f);
    const block b = {{half2(sum, __hneg(sum))}, {1, 2, 3, 4}};
    nv_bfloat16 of_sum(sum);
    of_sum = of_sum + nv_bfloat16(0.5f);
    const dim3 grid(2, 3);
    float total = half_to_float(float_to_half(sum)) + (float)of_sum + (float)b.both.m + lesser(3, 4) + whole(2u);
    total += max(grid.x, 3) + abs(-1.5f) + fmaxf(CUDART_PI_F, 4.0f) + A + N + M + K + QK + SIZE + Format + rn + UP;
    total += isnan(total) || isinf(total) ? 1000 : 0;
    assert(total == total);
    if (!__hisnan(sum) && sum != half(0) && sum > x[0] - x[0]) total += __ldg(&x[lane]) ? 0.25f : 0;
    y[lane] = total;
}
"""


def test_layouts_and_names(tmp_path: Path) -> None:
    """A program's own names and macros may be those that the headers use within, and stand before or after them."""
    host = CpuHost(1)
    kernel = loaded(tmp_path, layouts() + NAMES, host, S="9", P="10", F="11", TYPE="12")
    x = np.arange(1, 33, dtype=np.float16)
    y = host.output(4 * 32)
    host.launch(kernel, (1, 1, 1), (32, 1, 1), [y, host.upload(x)])
    sums = 2 * (x[::-1].astype(np.float64) + 1)
    of_sums = sums + 0.5  # 2 to 66 and a half: bfloat16 has 8 bits
    rounded = np.where(of_sums > 64, np.rint(of_sums * 2) / 2, of_sums)
    constants = 3 + 2 + 3 + 1.5 + 4 + (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) + 1
    np.testing.assert_array_equal(host.download(y).view(np.float32), sums + rounded - sums + constants + 0.25)


def test_what_programs_may_be_without(tmp_path: Path) -> None:
    """PyTorch compiles its extensions so."""
    used = {
        "__CUDA_NO_HALF_OPERATORS__": "a + a", "__CUDA_NO_HALF_CONVERSIONS__": "half(1.0f)",
        "__CUDA_NO_HALF2_OPERATORS__": "__low2half(half2(a, a) + half2(a, a))",
    }  # fmt: skip
    lines = ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", 'extern "C" __global__ void k(half* y) {']
    lines += ["const half a = __hadd(y[0], y[0]);", *(f"y[1] = {text};" for text in used.values()), "}"]
    loaded(tmp_path, "\n".join(lines), CpuHost(1))
    for macro, text in used.items():
        command = [compiler(), "-std=c++17", "-fsyntax-only", f"-D{macro}", "-x", "c++", "-"]
        command += [f"-I{kernel_root() / 'emulator' / 'include'}"]
        done = subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False)
        wrong = re.findall(r"^(\S+?):(\d+):.* error: ", done.stderr, re.MULTILINE)
        assert {line for _, line in wrong} == {str(1 + lines.index(f"y[1] = {text};"))}, (macro, done.stderr)
        assert {file for file, _ in wrong} == {"<stdin>"}


SUMS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(half* y, const half* x) {
    half2 sums = __half2half2(x[threadIdx.x]);
    for (int lanes = 16; lanes > 0; lanes /= 2) sums = __hadd2(sums, __shfl_xor_sync(0xFFFFFFFF, sums, lanes));
    const nv_bfloat16 first = __shfl_sync(0xFFFFFFFF, __float2bfloat16(__half2float(x[threadIdx.x])), 3);
    if (threadIdx.x == 0) {
        y[0] = y[2] = y[3] = y[4] = half(0);
        y[1] = sums.y;
        y[5] = half(__bfloat162float(first));
    }
    __syncthreads();
    atomicAdd(y, x[threadIdx.x]);
    atomicAdd((half2*)(y + 2), make_half2(x[threadIdx.x], half(1)));
    atomicAdd((nv_bfloat16*)(y + 4), __float2bfloat16(1.0f));
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_halves_in_warps_and_in_atomic_operations(tmp_path: Path, checked: bool) -> None:
    host = CheckedHost(Schedule()) if checked else CpuHost(1)
    kernel = loaded(tmp_path, SUMS, host)
    x = np.arange(32, dtype=np.float16)
    y = host.output(12)
    host.launch(kernel, (1, 1, 1), (32, 1, 1), [y, host.upload(x)])
    got = np.asarray(host.download(y)).view(np.float16)
    assert got[[0, 1, 2, 3, 5]].tolist() == [496, 496, 496, 32, 3]
    assert int(got.view(np.uint16)[4]) == 0x4200  # 32 in bfloat16
