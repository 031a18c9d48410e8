"""What kernels of real engines use of CUDA C++, each as a tiny kernel and the outputs that NumPy computes for it.

A kernel is one thread block of 64 threads: t is the thread's number, x its 64 input words, y its 64 output words.
`before` stands before the kernel. Results are the card's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

THREADS = 64
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Feature:
    """A kernel's body, what stands before it, its outputs by its inputs, and its name among the entries if that is not
    the usual one."""

    body: str
    expected: Callable[[Words], npt.NDArray[np.generic]]
    before: str = ""
    entry: str = ""
    shared: int = 0
    on_cpu: bool = True


HEAD = """#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdint>
#include <cassert>
#include <cstdio>
#include <type_traits>
namespace cg = cooperative_groups;
#define FULL 0xffffffff
"""
T = np.arange(THREADS, dtype=np.uint32)
LANE, WARP = T % 32, T // 32


def inputs() -> Words:
    """Random words."""
    return np.random.default_rng(7).integers(0, 2**32, THREADS, np.uint64).astype(np.uint32)


def _signed(x: Words) -> npt.NDArray[np.int32]:
    return x.view(np.int32)


def _bytes(x: Words) -> npt.NDArray[np.int64]:
    return x.view(np.int8).reshape(-1, 4).astype(np.int64)


def _small(x: Words) -> npt.NDArray[np.float32]:
    """x & 1023 as floats: small integers."""
    return (x & 1023).astype(np.float32)


def _of_warp(x: npt.NDArray[Any], of: Callable[[npt.NDArray[Any]], object]) -> Words:
    """One value for each warp, in all of its lanes."""
    return np.repeat([of(x[:32]), of(x[32:])], 32).astype(np.uint64).astype(np.uint32)


def _halves(x: Words) -> npt.NDArray[np.float16]:
    return ((x & 63).astype(np.float16) / np.float16(8)).astype(np.float16)


def _popcount(x: Words) -> npt.NDArray[np.int64]:
    return np.array([int(v).bit_count() for v in x])


def _matched(x: Words) -> Words:
    return np.array([sum(1 << j for j in range(32) if (x[32 * w + j] & 3) == (x[32 * w + i] & 3))
                     for w in range(2) for i in range(32)], np.uint32)  # fmt: skip


def _sums_to(x: Words) -> Words:
    return np.concatenate([np.cumsum(part, dtype=np.uint32) for part in (x[:32], x[32:])])


def _lop3(a: Words, b: Words, c: Words, table: int) -> Words:
    out = np.zeros_like(a)
    for i in range(8):
        if table >> i & 1:
            out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def _matrix(x: Words, dtype: type, m: int, k: int) -> npt.NDArray[np.float64]:
    """int8 words of a matrix [m, k], row after row, as the mma tests fill them."""
    return np.resize(x.view(np.int8), m * k).reshape(m, k).astype(np.float64)


def _mma_s8(x: Words) -> npt.NDArray[np.int32]:
    """The first lane sums of a[16, 32]·b[32, 8] for a lane's a = x[t], x[t]+1, ~x[t], x[t]^7 and b = x[t]*3, x[t]+5."""
    words = x[:32].astype(np.uint32)
    a, b = np.zeros((16, 32), np.int8), np.zeros((8, 32), np.int8)
    of_a = [words, words + np.uint32(1), ~words, words ^ np.uint32(7)]
    of_b = [words * np.uint32(3), words + np.uint32(5)]
    for lane in range(32):
        at = lane % 4 * 4
        for i, w in enumerate(of_a):
            a[lane // 4 + i % 2 * 8, at + i // 2 * 16 : at + i // 2 * 16 + 4] = w[lane : lane + 1].view(np.int8)
        for i, w in enumerate(of_b):
            b[lane // 4, at + i * 16 : at + i * 16 + 4] = w[lane : lane + 1].view(np.int8)
    d = a.astype(np.int32) @ b.T.astype(np.int32)
    sums = [d[lane // 4, lane % 4 * 2] + 2 * d[lane // 4, lane % 4 * 2 + 1] + 3 * d[lane // 4 + 8, lane % 4 * 2]
            for lane in range(32)]  # fmt: skip
    return np.concatenate([sums, np.zeros(32)]).astype(np.int64).astype(np.int32)


def _mma_half(x: Words) -> npt.NDArray[np.float32]:
    """a and b hold small integers as halves: the sums are exact."""
    small = (x[:32] & 7).astype(np.int64)
    a, b = np.zeros((16, 16)), np.zeros((8, 16))
    for lane in range(32):
        v = small[lane]
        for i in range(4):
            row, at = lane // 4 + i % 2 * 8, lane % 4 * 2 + i // 2 * 8
            a[row, at : at + 2] = v + i, v - i
        for i in range(2):
            at = lane % 4 * 2 + i * 8
            b[lane // 4, at : at + 2] = v - 3 * i, v + 1
    d = a @ b.T
    out = [d[lane // 4, lane % 4 * 2] + d[lane // 4 + 8, lane % 4 * 2 + 1] for lane in range(32)]
    return np.concatenate([out, np.zeros(32)]).astype(np.float32)


def _bits(values: npt.NDArray[np.generic]) -> Words:
    return np.ascontiguousarray(values).view(np.uint32)


_STRUCT = "struct Block { unsigned short d; signed char qs[6]; };\n"
_DEV = "__device__ __forceinline__"

FEATURES: dict[str, Feature] = {
    # ---- warps
    "shfl_sync_width": Feature("y[t] = __shfl_sync(FULL, x[t], t + 3, 8);", lambda x: x[T // 8 * 8 + (T + 3) % 8]),
    "shfl_xor_sync_width": Feature("y[t] = __shfl_xor_sync(FULL, x[t], 5, 16);", lambda x: x[T ^ 5]),
    "shfl_xor_across_width": Feature(
        "y[t] = __shfl_xor_sync(FULL, x[t], 16, 16);", lambda x: np.where(LANE >= 16, x[T ^ 16], x)
    ),
    "shfl_up_sync": Feature("y[t] = __shfl_up_sync(FULL, x[t], 3);", lambda x: np.where(LANE >= 3, np.roll(x, 3), x)),
    "shfl_down_sync_width": Feature(
        "y[t] = __shfl_down_sync(FULL, x[t], 2, 4);", lambda x: np.where(T % 4 < 2, x[(T + 2) % 64], x)
    ),
    "shfl_without_sync": Feature(
        "#if __CUDA_ARCH__ >= 700 || defined(__CUDACC_RTC__)\n    y[t] = __shfl_sync(FULL, x[t], 7);\n#else\n"
        "    y[t] = __shfl(x[t], 7);\n#endif",
        lambda x: x[WARP * 32 + 7],
    ),
    "shfl_of_floats_and_doubles": Feature(
        "float f = x[t] & 255; double d = f * 2; f = __shfl_xor_sync(FULL, f, 1); d = __shfl_xor_sync(FULL, d, 2);\n"
        "    y[t] = (unsigned)(f + d);",
        lambda x: (x[T ^ 1] & 255) + 2 * (x[T ^ 2] & 255),
    ),
    "shfl_of_half2": Feature(
        "half2 h = __halves2half2(__ushort2half_rn(x[t] & 255), __ushort2half_rn(t));\n"
        "    h = __shfl_xor_sync(FULL, h, 8); y[t] = (unsigned)(__low2float(h) + 1000 * __high2float(h));",
        lambda x: (x[T ^ 8] & 255) + 1000 * (T ^ 8),
    ),
    "shuffle_among_half_a_warp": Feature(
        "y[t] = 1; if (t % 32 < 16) y[t] = __shfl_xor_sync(0xffff, x[t], 3); else y[t] = __shfl_sync(0xffff0000, "
        "x[t], 17);",
        lambda x: np.where(LANE < 16, x[T ^ 3], x[WARP * 32 + 17]),
    ),
    "ballot_sync": Feature(
        "y[t] = __ballot_sync(FULL, x[t] & 1);",
        lambda x: _of_warp(x, lambda w: sum(int(v & 1) << i for i, v in enumerate(w))),
    ),
    "any_and_all_sync": Feature(
        "y[t] = __any_sync(FULL, x[t] == x[5]) * 2 + __all_sync(FULL, x[t] >= 0u);",
        lambda x: np.repeat([3, 1], 32) if x[5] not in x[32:] else np.repeat([3, 3], 32),
    ),
    "activemask": Feature("y[t] = __activemask();", lambda x: np.full(64, 2**32 - 1)),
    "activemask_in_a_branch": Feature(
        "y[t] = 0; if (x[t] & 1) { const unsigned m = __activemask(); y[t] = m + __shfl_sync(m, t, __ffs(m) - 1); }",
        lambda x: np.where(
            x & 1,
            _of_warp(x, lambda w: sum(int(v & 1) << i for i, v in enumerate(w)))
            + np.repeat([int(np.flatnonzero(w & 1)[0]) for w in (x[:32], x[32:])], 32).astype(np.uint32)
            + WARP * 32,
            0,
        ),
    ),
    "match_any_sync": Feature("y[t] = __match_any_sync(FULL, x[t] & 3);", _matched),
    "reduce_add_sync": Feature(
        "y[t] = __reduce_add_sync(FULL, x[t]);", lambda x: _of_warp(x, lambda w: int(w.sum(dtype=np.uint64)) % 2**32)
    ),
    "reduce_max_sync": Feature(
        "y[t] = __reduce_max_sync(FULL, (int)x[t]);", lambda x: _of_warp(x, lambda w: int(_signed(w).max()) % 2**32)
    ),
    "warp_scan": Feature(
        "unsigned v = x[t];\n#pragma unroll\n    for (int d = 1; d < warpSize; d *= 2) {\n"
        "        const unsigned w = __shfl_up_sync(FULL, v, d); if (t % 32 >= d) v += w;\n    }\n    y[t] = v;",
        _sums_to,
    ),
    # ---- blocks
    "syncthreads_count": Feature(
        "y[t] = __syncthreads_count(x[t] & 1) * 4 + __syncthreads_or(t == 63) * 2 + __syncthreads_and(t < 63);",
        lambda x: np.full(64, int((x & 1).sum()) * 4 + 2),
    ),
    "shared_array_of_structs": Feature(
        "__shared__ Block s[64]; s[t].d = x[t]; s[t].qs[3] = x[t] >> 16; __syncthreads();\n"
        "    y[t] = s[63 - t].d + 65536u * (unsigned char)s[63 - t].qs[3];",
        lambda x: (x & 0xFFFFFF)[::-1],
        before=_STRUCT,
    ),
    "extern_shared": Feature(
        "extern __shared__ unsigned room[]; room[t] = x[t]; __syncthreads(); y[t] = room[t ^ 1];",
        lambda x: x[T ^ 1],
        shared=256,
    ),
    "extern_shared_in_extern_c": Feature(
        "y[t] = exchanged(x[t]);",
        lambda x: x[T ^ 1],
        before='extern "C" __device__ unsigned exchanged(unsigned v) {\n    extern __shared__ unsigned room[];\n'
        "    room[threadIdx.x] = v; __syncthreads(); return room[threadIdx.x ^ 1];\n}\n",
        shared=256,
    ),
    "extern_shared_aliases": Feature(
        "extern __shared__ __align__(16) float as_floats[]; extern __shared__ int as_ints[];\n"
        "    as_floats[t] = t; __syncthreads(); y[t] = as_ints[63 - t];",
        lambda x: _bits(T[::-1].astype(np.float32)),
        shared=256,
    ),
    "extern_shared_outside_of_functions": Feature(
        "outside[t] = x[t]; __syncthreads(); unsigned* p = outside + 1; y[t] = p[(t + 62) % 63];",
        lambda x: x[(T + 62) % 63 + 1],
        before="extern __shared__ unsigned outside[];\n",
        shared=256,
    ),
    "extern_shared_in_a_template": Feature(
        "y[t] = through_shared<unsigned char>(x[t]);",
        lambda x: x[T ^ 2] & 255,
        before=f"template <typename T> {_DEV} T through_shared(T v) {{\n    extern __shared__ __align__(sizeof(T)) "
        f"unsigned char raw[];\n"
        "    T* p = reinterpret_cast<T*>(raw); p[threadIdx.x] = v; __syncthreads(); return p[threadIdx.x ^ 2];\n}\n",
        shared=256,
    ),
    "launch_bounds": Feature(
        "y[t] = blockDim.x + gridDim.y;",
        lambda x: np.full(64, 65),
        entry="feature_launch_bounds",
        before="",
    ),
    "dim3_and_vectors": Feature(
        "const dim3 d(2, 3); const int2 a = make_int2(t, 4); const uint4 b = {1, 2, 3, x[t]}; const float4 c = "
        "make_float4(1, 2, 3, 4);\n"
        "    y[t] = d.x + d.y * d.z + a.x + a.y + b.w + (unsigned)c.z;",
        lambda x: 5 + T + 4 + x + 3,
    ),
    "vector_loads": Feature(
        "const uint4 v = reinterpret_cast<const uint4*>(x)[t / 4]; const uint2 w = *(const uint2*)(x + t / 2 * 2);\n"
        "    y[t] = v.x ^ v.y ^ v.z ^ v.w ^ w.y;",
        lambda x: np.bitwise_xor.reduce(x.reshape(16, 4), axis=1)[T // 4] ^ x[T // 2 * 2 + 1],
    ),
    # ---- atomics and memory
    "atomic_add_float": Feature(
        "__shared__ float sum; if (!t) sum = 0; __syncthreads(); atomicAdd(&sum, (float)(x[t] & 15)); "
        "__syncthreads(); y[t] = (unsigned)sum;",
        lambda x: np.full(64, int((x & 15).sum())),
    ),
    "atomic_min_max": Feature(
        "__shared__ int a[2]; if (!t) a[0] = 2147483647, a[1] = -2147483647 - 1; __syncthreads();\n"
        "    atomicMin(a, (int)x[t]); atomicMax(a + 1, (int)x[t]); __syncthreads(); y[t] = a[t % 2];",
        lambda x: np.where(T % 2, _signed(x).max(), _signed(x).min()),
    ),
    "atomic_cas_loop": Feature(
        "__shared__ unsigned s; if (!t) s = 0; __syncthreads(); unsigned old = 0, seen;\n"
        "    do { seen = old; old = atomicCAS(&s, seen, seen + x[t]); } while (old != seen);\n    __syncthreads(); "
        "y[t] = s;",
        lambda x: np.full(64, x.sum(dtype=np.uint32)),
    ),
    "atomic_bits": Feature(
        "__shared__ unsigned s[3]; if (t < 3) s[t] = t ? 0 : FULL; __syncthreads();\n"
        "    atomicAnd(s, x[t] | 255); atomicOr(s + 1, x[t] & 0xF0); atomicXor(s + 2, x[t]); __syncthreads(); y[t] "
        "= s[t % 3];",
        lambda x: np.array([np.bitwise_and.reduce(x | 255), np.bitwise_or.reduce(x & 0xF0), np.bitwise_xor.reduce(x)])[
            T % 3
        ],
    ),
    "atomic_add_half2": Feature(
        "__shared__ half2 s; if (!t) s = __float2half2_rn(0.0f); __syncthreads();\n"
        "    atomicAdd(&s, __floats2half2_rn(x[t] & 3, 1)); __syncthreads(); y[t] = (unsigned)(__low2float(s) * 100 "
        "+ __high2float(s));",
        lambda x: np.full(64, int((x & 3).sum()) * 100 + 64),
    ),
    "atomic_inc_exch": Feature(
        "__shared__ unsigned s; if (!t) s = 0; __syncthreads(); atomicInc(&s, 39); __syncthreads(); y[t] = s;",
        lambda x: np.full(64, 24),
    ),
    "threadfence": Feature("y[t] = x[t]; __threadfence(); __threadfence_block(); __threadfence_system();", lambda x: x),
    "ldg_and_cache_hints": Feature(
        "__stcs(y + t, __ldg(x + t) + __ldcg(x + (t ^ 1)) + __ldcs(x + (t ^ 2)));", lambda x: x + x[T ^ 1] + x[T ^ 2]
    ),
    "constant_memory": Feature(
        "y[t] = table[x[t] & 7] + one;",
        lambda x: np.array([2, 3, 5, 7, 11, 13, 17, 19])[x & 7] + 1,
        before="__constant__ int table[8] = {2, 3, 5, 7, 11, 13, 17, 19};\nstatic __constant__ __align__(16) "
        "unsigned char one = 1;\n",
    ),
    "device_globals": Feature(
        "counter[t] = x[t] + 1; y[t] = counter[t] * scale;",
        lambda x: (x + 1) * np.uint32(3),
        before="__device__ unsigned counter[64];\n__device__ const unsigned scale = 3;\n",
    ),
    # ---- the language
    "template_in_a_namespace": Feature(
        "",
        lambda x: x * np.uint32(4),
        entry="deep::inside::scaled<4, unsigned>",
        before="namespace deep { namespace inside {\ntemplate <int W, typename T> __global__ void scaled(const T* "
        "x, T* y) { y[threadIdx.x] = x[threadIdx.x] * W; }\n} }\n",
    ),
    "static_kernel_that_is_mangled": Feature(
        "",
        lambda x: ~x,
        entry="inverted",
        before="static __global__ void __launch_bounds__(64, 1) inverted(const unsigned* __restrict__ x, unsigned* "
        "__restrict__ y) { y[threadIdx.x] = ~x[threadIdx.x]; }\n",
    ),
    "noinline_and_align": Feature(
        "Wide w; w.v[2] = x[t]; y[t] = apart(w) + alignof(Wide);",
        lambda x: x + 16,
        before="struct __align__(16) Wide { unsigned v[4]; };\n__device__ __noinline__ unsigned apart(const Wide& "
        "w) { return w.v[2]; }\n",
    ),
    "grid_constant": Feature(
        "y[t] = x[t];",
        lambda x: x,
    ),
    "lambda_and_if_constexpr": Feature(
        "auto f = [=](unsigned v) { return v * 2; };\n    if constexpr (sizeof(half) == 2) y[t] = f(x[t]); else "
        "y[t] = 0;",
        lambda x: x * np.uint32(2),
    ),
    "type_traits": Feature("y[t] = std::is_same<std::remove_cv_t<const half>, half>::value ? x[t] : 0;", lambda x: x),
    "assert_and_printf": Feature(
        'assert(blockDim.x == 64); if (t == 99) printf("%d\\n", t); y[t] = x[t];', lambda x: x
    ),
    "assume_and_unroll": Feature(
        "__builtin_assume(t < 64); unsigned s = 0;\n#pragma unroll 4\n    for (int i = 0; i < 8; ++i) s += x[(t + "
        "i) % 64];\n    y[t] = s;",
        lambda x: np.add.reduce([x[(T + i) % 64] for i in range(8)]),
    ),
    "user_macros": Feature(
        "const int Range = A + B; y[t] = Range + half_to_float_(x[t]);",
        lambda x: 7 + (x & 1),
        before="#define A 3\n#define B 4\n#define grid 5\n#define shared 6\nstruct Finding { int Order; };\n"
        f"{_DEV} unsigned half_to_float_(unsigned v) {{ return v & 1; }}\n{_DEV} float half_to_float(unsigned short "
        f"v) {{ return v; }}\n"
        f"{_DEV} int launch(int v) {{ return v; }}\n#undef grid\n#undef shared\n",
    ),
    "launcher_in_the_same_file": Feature(
        "y[t] = x[t] + 2;",
        lambda x: x + 2,
        before="template <int N> __global__ void other(int* p) { p[threadIdx.x] = N; }\n"
        "#define CUDA_CHECK(e) do { cudaError_t err = (e); if (err != cudaSuccess) return; } while (0)\n"
        "static void run(int* p, cudaStream_t stream) {\n    const dim3 grid(1, 2), block(64);\n"
        "    other<4><<<grid, block, 0, stream>>>(p);\n    CUDA_CHECK(cudaGetLastError());\n}\n",
    ),
    "clock_and_nanosleep": Feature(
        "const long long from = clock64(); __nanosleep(20); y[t] = clock64() - from >= 0 ? x[t] : 0;", lambda x: x
    ),
    "architecture_branches": Feature(
        "#if __CUDA_ARCH__ >= 610\n    y[t] = __dp4a((int)x[t], (int)x[t ^ 1], 5);\n#else\n    y[t] = 0;\n#endif",
        lambda x: (_bytes(x) * _bytes(x[T ^ 1])).sum(axis=1) + 5,
    ),
    # ---- numbers
    "min_max": Feature(
        "y[t] = min((int)x[t], 5) + max(x[t], 7u) + (unsigned)fminf(x[t] & 7, 3.0f);",
        lambda x: np.minimum(_signed(x), 5).astype(np.int64) + np.maximum(x, 7) + np.minimum(x & 7, 3),
    ),
    "simd_bytes": Feature(
        "y[t] = __vsubss4(x[t], x[t ^ 1]) ^ __vcmpeq4(x[t], x[t ^ 1]);",
        lambda x: (
            np.clip(_bytes(x) - _bytes(x[T ^ 1]), -128, 127).astype(np.int8).view(np.uint32).ravel()
            ^ np.where(_bytes(x) == _bytes(x[T ^ 1]), -1, 0).astype(np.int8).view(np.uint32).ravel()
        ),
    ),
    "popc_clz_brev": Feature(
        "y[t] = __popc(x[t]) + 100 * __clz(x[t]) + (__brev(x[t]) & 1) * 10000;",
        lambda x: (
            _popcount(x) + 100 * np.array([32 - int(v).bit_length() for v in x]) + (x >> 31).astype(np.int64) * 10000
        ),
    ),
    "byte_perm_and_funnel": Feature(
        "y[t] = __byte_perm(x[t], x[t ^ 1], 0x5140) ^ __funnelshift_l(x[t], x[t ^ 1], 8);",
        lambda x: (
            (x & 255 | (x[T ^ 1] & 255) << 8 | (x >> 8 & 255) << 16 | (x[T ^ 1] >> 8 & 255) << 24)
            ^ (x[T ^ 1] << 8 | x >> 24)
        ),
    ),
    "mulhi": Feature(
        "y[t] = __umulhi(x[t], x[t ^ 1]);", lambda x: x.astype(np.uint64) * x[T ^ 1].astype(np.uint64) >> np.uint64(32)
    ),
    "half_arithmetic": Feature(
        "const half a = __ushort2half_rn(x[t] & 63) / __float2half(8.0f); y[t] = __half_as_ushort(__hfma(a, a, a));",
        lambda x: (_halves(x).astype(np.float64) ** 2 + _halves(x)).astype(np.float16).view(np.uint16),
    ),
    "half2_arithmetic": Feature(
        "half2 a = __floats2half2_rn(x[t] & 63, t); a = __hmul2(a, __float2half2_rn(0.5f)); y[t] = *(unsigned*)&a;",
        lambda x: np.stack([(x & 63) / 2, T / 2], axis=1).astype(np.float16).view(np.uint32).ravel(),
    ),
    "bfloat16": Feature(
        "const __nv_bfloat16 b = __float2bfloat16(__uint_as_float(0x3f800000 | (x[t] & 0x7fffff))); y[t] = "
        "__bfloat16_as_ushort(b);",
        lambda x: ((0x3F800000 | x & 0x7FFFFF) + 0x7FFF + ((x >> 16) & 1)) >> 16,
    ),
    "float_intrinsics": Feature(
        "y[t] = __float_as_uint(__fmaf_rn(__fdividef(8.0f, 2.0f), (float)(x[t] & 255), rsqrtf(4.0f) * __expf(0.0f)));",
        lambda x: _bits(4 * (x & 255).astype(np.float32) + np.float32(0.5)),
    ),
    # ---- asynchronous copies, groups
    "pipeline_copies": Feature(
        "__shared__ unsigned s[64]; __pipeline_memcpy_async(s + t, x + t, 4); __pipeline_commit(); "
        "__pipeline_wait_prior(0);\n"
        "    __syncthreads(); y[t] = s[63 - t];",
        lambda x: x[::-1],
    ),
    "cooperative_tiles": Feature(
        "auto tile = cg::tiled_partition<8>(cg::this_thread_block()); unsigned v = x[t] & 255;\n"
        "    for (int i = tile.size() / 2; i > 0; i /= 2) v += tile.shfl_down(v, i);\n    v = tile.shfl(v, 0); "
        "tile.sync();\n"
        "    y[t] = v + tile.thread_rank();",
        lambda x: np.repeat((x & 255).reshape(8, 8).sum(axis=1), 8) + T % 8,
    ),
    "cooperative_reduce": Feature(
        "auto warp = cg::tiled_partition<32>(cg::this_thread_block());\n"
        "    y[t] = cg::reduce(warp, (int)(x[t] & 255), cg::plus<int>()) + warp.ballot(t % 32 == 0) + "
        "cg::this_thread_block().thread_rank();",
        lambda x: _of_warp(x & 255, lambda w: int(w.sum())) + 1 + T,
    ),
    # ---- inline PTX
    "ptx_lop3_prmt": Feature(
        'unsigned a, b; asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(a) : "r"(x[t]), "r"(x[t ^ 1]), "r"(x[t ^ 2]));\n'
        '    asm volatile("prmt.b32 %0, %1, %2, 0x3210;\\n" : "=r"(b) : "r"(x[t]), "r"(t)); y[t] = a ^ b;',
        lambda x: _lop3(x, x[T ^ 1], x[T ^ 2], 0xEA) ^ x,
    ),
    "ptx_bfe_bfi": Feature(
        'unsigned a, b; asm("bfe.u32 %0, %1, 4, 9;" : "=r"(a) : "r"(x[t])); asm("bfi.b32 %0, %1, %2, 3, 5;" : '
        '"=r"(b) : "r"(t), "r"(x[t]));\n'
        "    y[t] = a * 7 + b;",
        lambda x: (x >> 4 & 511) * np.uint32(7) + (x & ~np.uint32(0xF8) | (T & 31) << 3),
    ),
    "ptx_half2": Feature(
        'unsigned a = 0x3c003c00u + (x[t] & 0x00ff00ff), d; asm volatile("{fma.rn.f16x2 %0, %1, %2, %3;\\n}" : '
        '"=r"(d) : "r"(a), "r"(a), "r"(a)); y[t] = d;',
        lambda x: (lambda a: (a * a + a).astype(np.float16))(
            (0x3C003C00 + (x & 0x00FF00FF)).astype(np.uint32).view(np.float16).astype(np.float64)
        ).view(np.uint32),
    ),
    "ptx_mov_vectors_cvt": Feature(
        'unsigned short lo, hi; float f; asm("{ .reg .b16 a; mov.b32 {%0, %1}, %2; }" : "=h"(lo), "=h"(hi) : '
        '"r"(x[t]));\n'
        '    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)(lo & 0x3bff))); y[t] = hi + '
        "__float_as_uint(f);",
        lambda x: (x >> 16) + _bits((x & 0x3BFF).astype(np.uint16).view(np.float16).astype(np.float32)),
    ),
    "ptx_laneid_and_predicates": Feature(
        'unsigned lane, v = 9; asm("mov.u32 %0, %%laneid;" : "=r"(lane));\n'
        '    asm volatile("{\\n .reg .pred p;\\n setp.lt.u32 p, %1, 7;\\n @p mov.u32 %0, %2;\\n}\\n" : "+r"(v) : '
        '"r"(lane), "r"(x[t])); y[t] = v;',
        lambda x: np.where(LANE < 7, x, 9),
    ),
    "ptx_loads_and_stores": Feature(
        'unsigned a, b, c, d; asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), '
        '"=r"(b), "=r"(c), "=r"(d) : "l"(x + t / 4 * 4));\n'
        '    asm volatile("st.global.cs.u32 [%0], %1;" :: "l"(y + t), "r"(a + 2 * b + 3 * c + 4 * d) : "memory");',
        lambda x: (x.reshape(16, 4) * np.array([1, 2, 3, 4], np.uint32)).sum(axis=1, dtype=np.uint32)[T // 4],
    ),
    "ptx_cp_async": Feature(
        "__shared__ __align__(16) unsigned s[64]; const unsigned at = (unsigned)__cvta_generic_to_shared(s + t / 4 "
        "* 4);\n"
        '    if (t % 4 == 0) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2;" :: "r"(at), "l"(x + '
        't), "n"(16));\n'
        '    asm volatile("cp.async.commit_group;\\n" ::); asm volatile("cp.async.wait_group %0;\\n" :: "n"(0)); '
        "__syncthreads(); y[t] = s[t ^ 5];",
        lambda x: x[T ^ 5],
    ),
    "ptx_ldmatrix": Feature(
        "extern __shared__ __align__(16) unsigned char tile[]; ((unsigned*)tile)[t] = x[t]; __syncthreads(); "
        "unsigned a, b;\n"
        "    const unsigned at = (unsigned)__cvta_generic_to_shared(tile + (t & 15) * 16);\n"
        '    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at)); '
        "y[t] = a + 3 * b;",
        lambda x: np.tile(x[:32] + 3 * x[32:], 2),
        shared=256,
    ),
    "ptx_ldmatrix_trans": Feature(
        "__shared__ __align__(16) unsigned tile[32]; if (t < 32) tile[t] = x[t]; __syncthreads(); unsigned a;\n"
        "    const unsigned at = (unsigned)__cvta_generic_to_shared(tile + (t & 7) * 4);\n"
        '    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at)); y[t] = a;',
        lambda x: np.tile(np.ascontiguousarray(x[:32].view(np.uint16).reshape(8, 8).T).view(np.uint32).ravel(), 2),
    ),
    "ptx_mma_s8": Feature(
        "y[t] = 0; if (t >= 32) return; int d0 = 0, d1 = 0, d2 = 0, d3 = 0; const unsigned v = x[t];\n"
        '    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, '
        '{%0,%1,%2,%3};\\n"\n'
        '        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(v), "r"(v + 1), "r"(~v), "r"(v ^ 7), "r"(v * 3), '
        '"r"(v + 5));\n'
        "    y[t] = d0 + 2 * d1 + 3 * d2;",
        _mma_s8,
    ),
    "ptx_mma_f16": Feature(
        "y[t] = 0; if (t >= 32) return; float d[4] = {}; const float v = x[t] & 7; unsigned a[4], b[2];\n"
        "    for (int i = 0; i < 4; ++i) { const half2 h = __floats2half2_rn(v + i, v - i); a[i] = *(const "
        "unsigned*)&h; }\n"
        "    for (int i = 0; i < 2; ++i) { const half2 h = __floats2half2_rn(v - 3 * i, v + 1); b[i] = *(const "
        "unsigned*)&h; }\n"
        '    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, '
        '{%10,%11,%12,%13};"\n'
        '        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), '
        '"r"(b[0]), "r"(b[1]),\n'
        '          "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));\n    y[t] = __float_as_uint(d[0] + d[3]);',
        lambda x: _bits(_mma_half(x)),
    ),
    "ptx_barriers": Feature(
        '__shared__ unsigned s[64]; s[t] = x[t]; asm volatile("bar.sync 0;" ::: "memory"); asm '
        'volatile("membar.gl;" ::: "memory");\n'
        '    asm volatile("bar.sync %0, %1;" :: "r"(1), "r"(64) : "memory"); y[t] = s[t ^ 32];',
        lambda x: x[T ^ 32],
    ),
    "ptx_release_and_acquire": Feature(
        "__shared__ unsigned s[64], flag; if (!t) flag = 0; __syncthreads(); unsigned f = 0;\n"
        "    const unsigned at = (unsigned)__cvta_generic_to_shared(&flag);\n"
        "    if (t < 32) s[t] = x[t];\n"
        '    if (t < 32) asm volatile("red.release.gpu.shared.add.u32 [%0], %1;" :: "r"(at), "r"(1) : "memory");\n'
        '    while (f != 32) asm volatile("ld.acquire.gpu.shared.b32 %0, [%1];" : "=r"(f) : "r"(at) : "memory");\n'
        "    if (t >= 32) y[t] = s[t - 32];\n"
        "    __syncthreads();\n"
        '    if (t == 0) asm volatile("st.release.gpu.shared.u32 [%0], %1;" :: "r"(at), "r"(7) : "memory");\n'
        '    while (f != 7) asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(f) : "r"(at) : "memory");\n'
        "    if (t < 32) y[t] = f;",
        lambda x: np.where(T < 32, 7, x[(T + 32) % 64]),
    ),
    "ptx_mad_shf_red": Feature(
        'unsigned a, b; __shared__ unsigned s; if (!t) s = 0; __syncthreads(); asm("mad.lo.u32 %0, %1, 3, %2;" : '
        '"=r"(a) : "r"(x[t]), "r"(t));\n'
        '    asm("shf.l.wrap.b32 %0, %1, %2, 4;" : "=r"(b) : "r"(x[t]), "r"(x[t ^ 1]));\n'
        '    asm volatile("red.shared.add.u32 [%0], %1;" :: "r"((unsigned)__cvta_generic_to_shared(&s)), "r"(t) : '
        '"memory"); __syncthreads(); y[t] = a ^ b ^ s;',
        lambda x: (x * np.uint32(3) + T) ^ (x[T ^ 1] << 4 | x >> 28) ^ 2016,
    ),
    "ptx_in_a_macro": Feature(
        "unsigned v; ADD_PTX(v, x[t], t); y[t] = v;",
        lambda x: x + T,
        before='#define ADD_PTX(d, a, b) \\\n    asm volatile("add.u32 %0, %1, %2;\\n" \\\n        : "=r"(d) : '
        '"r"(a), "r"(b))\n',
    ),
}


def entry(name: str) -> str:
    """The kernel of a feature."""
    return FEATURES[name].entry or f"feature_{name}"


def kernel(name: str) -> str:
    """A feature as CUDA C++."""
    feature = FEATURES[name]
    bounds = "__launch_bounds__(64) " if name == "launch_bounds" else ""
    made = (
        f'extern "C" __global__ void {bounds}feature_{name}(const unsigned* __restrict__ x, unsigned* '
        f"__restrict__ y) {{\n"
        f"    const unsigned t = threadIdx.x;\n    {feature.body}\n}}\n"
    )
    return feature.before + (made if feature.body else "")


def source(names: list[str]) -> str:
    """One file of some features."""
    return HEAD + "\n".join(kernel(name) for name in names)


def expected(name: str, x: Words) -> Words:
    """Its outputs as words."""
    with np.errstate(over="ignore"):
        y = np.asarray(FEATURES[name].expected(x))
    return (
        y
        if y.dtype == np.uint32
        else y.view(np.uint32)
        if y.dtype == np.int32
        else y.astype(np.int64).astype(np.uint32)
    )
