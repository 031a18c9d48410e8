"""A checked build names what is wrong with a kernel and where; it finds nothing in the kernel's right twin."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest

from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import KernelFinding
from tests.support.short_kernels import Build

pytestmark = pytest.mark.skipif(checks_fault() is not None, reason="the compiler cannot check")

# RIGHT and WRONG hold what the twins differ by. Each source begins on line 4 of its file.
CASES = {
    "race of a block": ("race", "k.cu:6", """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        s[threadIdx.x] = x[threadIdx.x];
        RIGHT(__syncthreads();)
        y[threadIdx.x] = s[63 - threadIdx.x];
    }"""),
    "race of a warp": ("race", "k.cu:8", """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        s[threadIdx.x] = x[threadIdx.x];
        RIGHT(__syncwarp();)
        y[threadIdx.x] = s[threadIdx.x ^ 5];
    }"""),
    "a warp's barrier is not the block's": ("race", "k.cu:10", """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        s[threadIdx.x] = x[threadIdx.x];
        RIGHT(__syncthreads();)
        WRONG(__syncwarp();)
        if (n < 0) return;
        y[threadIdx.x] = s[threadIdx.x ^ 32];
    }"""),
    "a shuffle orders nothing": ("race", "k.cu:8", """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        s[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 3); RIGHT(__syncwarp();)
        const int other = __shfl_xor_sync(~0u, n, 1);
        y[threadIdx.x] = s[threadIdx.x ^ 5] + other;
    }"""),
    "a race of thread blocks": ("race", "k.cu:5", """void k(int* y, const int* x, int n) {
        RIGHT(if (blockIdx.x == 0)) y[threadIdx.x] = x[threadIdx.x] + blockIdx.x;
    }"""),
    "a named barrier of too few": ("race", "k.cu:8", """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        s[threadIdx.x] = x[threadIdx.x];
        if (threadIdx.x < 32) { RIGHT(barrier_sync(1, 64);) WRONG(barrier_arrive(1, 64);) } else barrier_arrive(1, 64);
        if (threadIdx.x < 32) y[threadIdx.x] = s[threadIdx.x + 32];
    }"""),
    "a copy without a wait": ("race", "k.cu:10", """void k(int* y, const int* x, int n) {
        __shared__ __attribute__((aligned(16))) int s[64];
        s[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            async_copy16(s, x), async_commit();
            RIGHT(async_wait<0>();) y[0] = s[0] + s[1];
            async_wait<0>();
        }
    }"""),
    "a copy over what others read": ("race", "k.cu:8", """void k(int* y, const int* x, int n) {
        __shared__ __attribute__((aligned(16))) int s[64];
        s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = s[63 - threadIdx.x];
        RIGHT(__syncthreads();)
        if (threadIdx.x % 4 == 0) async_copy16(s + threadIdx.x, x), async_commit(), async_wait<0>();
    }"""),
    "one past the end": ("outside", "4 bytes outside its buffers at k.cu:5: 0 bytes past the end of its weights", """\
void k(int* y, const int* x, int n) {
        y[threadIdx.x] = x[threadIdx.x RIGHT(% 64) WRONG(+ 2)];
    }"""),
    "a virtual function": ("outside", "4 bytes outside its buffers at k.cu:8: 0 bytes past the end of its weights", """\
void k(int* y, const int* x, int n) {
        struct Same { virtual int of(int i) const { return i; } } same;
        struct Next : Same { int of(int i) const override { return i RIGHT(% 64) WRONG(+ 1); } } next;
        const Same& chosen = n < 0 ? same : next;
        y[threadIdx.x] = x[chosen.of(threadIdx.x)];
    }"""),
    "a write before the output": ("outside", "writes 4 bytes outside its buffers at k.cu:5: 4 bytes before", """\
void k(int* y, const int* x, int n) {
        y[(int)threadIdx.x WRONG(- 1)] = 7;
    }"""),
    "past dynamic shared memory": ("outside", "k.cu:6", """void k(int* y, const int* x, int n) {
        DYNAMIC_SHARED(room);
        room[threadIdx.x * 4 WRONG(+ 5)] = 1;
    }"""),
    "unset shared memory": ("unset", "k.cu:8", """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        if (threadIdx.x < 60 RIGHT(+ 4)) s[threadIdx.x] = 0;
        __syncthreads();
        y[threadIdx.x] = s[63 - threadIdx.x];
    }"""),
    "a misaligned word": ("misaligned", "k.cu:5", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = *(const int*)((const char*)x + 4 * (threadIdx.x % 32) WRONG(+ 2));
    }"""),
    "a misaligned vector": ("misaligned", "k.cu:5", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = ((const uint4*)(x RIGHT(+ 4) WRONG(+ 1)))->z;
    }"""),
    "a misaligned asynchronous copy": ("misaligned", "k.cu:6: an asynchronous copy of 8 bytes at an address", """\
void k(int* y, const int* x, int n) {
        __shared__ __align__(16) int s[64];
        if (threadIdx.x < 8) __pipeline_memcpy_async(s + 4 * threadIdx.x, x + 4 * threadIdx.x WRONG(+ 1), 8);
        __pipeline_commit(), __pipeline_wait_prior(0);
        if (threadIdx.x == 0) y[threadIdx.x] = s[0] + s[1];
    }"""),
    "an asynchronous copy to a misaligned address": ("misaligned", "no multiple of 16", """\
void k(int* y, const int* x, int n) {
        __shared__ __align__(16) int s[64];
        if (threadIdx.x == 0) async_copy16(s RIGHT(+ 4) WRONG(+ 2), x), async_commit(), async_wait<0>(), y[0] = s[4];
    }"""),
    "an asynchronous copy of 12 bytes": ("operand", "k.cu:6 copies 12 bytes, and CUDA copies 4, 8 or 16", """\
void k(int* y, const int* x, int n) {
        __shared__ __align__(16) int s[64];
        if (threadIdx.x == 0) __pipeline_memcpy_async(s, x, RIGHT(16) WRONG(12), 4);
        __pipeline_commit(), __pipeline_wait_prior(0);
        if (threadIdx.x == 0) y[threadIdx.x] = s[0] + s[2];
    }"""),
    "more zeros than bytes": ("operand", "k.cu:6 sets more than its 8 bytes to zero", """\
void k(int* y, const int* x, int n) {
        __shared__ __align__(16) int s[64];
        if (threadIdx.x == 0) __pipeline_memcpy_async(s, x, 8, RIGHT(8) WRONG(16));
        __pipeline_commit(), __pipeline_wait_prior(0);
        if (threadIdx.x == 0) y[threadIdx.x] = s[0] + s[1];
    }"""),
    "a bulk copy of 40 bytes": ("operand", "copies 40 bytes, which is no multiple of 16", """\
void k(int* y, const int* x, int n) {
        __shared__ __align__(16) int s[16];
        __shared__ MBarrier full;
        if (threadIdx.x == 0) mbarrier_init(&full, 1), before_bulk_copies();
        if (threadIdx.x == 0) mbarrier_expect(&full, RIGHT(48) WRONG(40)), bulk_copy(s, x, RIGHT(48) WRONG(40), &full);
        __syncthreads();
        mbarrier_wait(&full, 0);
        y[threadIdx.x] = s[threadIdx.x % 10];
    }"""),
    "a misaligned bulk copy": ("misaligned", "a bulk copy of 32 bytes at an address that is no multiple of 16", """\
void k(int* y, const int* x, int n) {
        __shared__ __align__(16) int s[16];
        __shared__ MBarrier full;
        if (threadIdx.x == 0) mbarrier_init(&full, 1), before_bulk_copies();
        if (threadIdx.x == 0) mbarrier_expect(&full, 32), bulk_copy(s, x RIGHT(+ 4) WRONG(+ 2), 32, &full);
        __syncthreads();
        mbarrier_wait(&full, 0);
        y[threadIdx.x] = s[threadIdx.x % 8];
    }"""),
    "a false assumption": ("assumption", "at k.cu:5 what is not so: the condition of", """\
void k(int* y, const int* x, int n) {
        __builtin_assume(n % 2 == RIGHT(1) WRONG(0));
        y[threadIdx.x] = n;
    }"""),
    "an assumption of an address": ("assumption", "at k.cu:5 what is not so: an address is no multiple of 16", """\
void k(int* y, const int* x, int n) {
        const int* four = (const int*)__builtin_assume_aligned(x RIGHT(+ 4) WRONG(+ 2), 16);
        y[threadIdx.x] = four[n];
    }"""),
    "what is unreachable": ("assumption", "at k.cu:7 what is not so: __builtin_unreachable", """\
void k(int* y, const int* x, int n) {
        switch (n) {
            case RIGHT(1) WRONG(2): y[threadIdx.x] = n; break;
            default: __builtin_unreachable();
        }
    }"""),
    "a function without its value": ("assumption", "a function ends without its value", """\
void helper();
__device__ __attribute__((noinline)) int chosen(int v) { if (v < RIGHT(64) WRONG(60)) return v + 1; }
__global__ void k(int* y, const int* x, int n) {
        y[threadIdx.x] = chosen(x[threadIdx.x]);
    }"""),
    "a named barrier of 48 threads": ("operand", "at k.cu:6 is of 48 threads", """void k(int* y, const int* x, int n) {
        if (threadIdx.x < RIGHT(32) WRONG(48))
            barrier_sync(1, RIGHT(32) WRONG(48));
        y[threadIdx.x] = n;
    }"""),
    "a named barrier that is not there": ("operand", "at k.cu:5 names barrier 16", """\
void k(int* y, const int* x, int n) {
        barrier_sync(RIGHT(15) WRONG(16), 64);
        y[threadIdx.x] = n;
    }"""),
    "a constant that the launch writes": ("race", "at k.cu:7, but ld.global.nc (__ldg) is for what", """\
void k(int* y, const int* x, int n) {
        y[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        const int v = RIGHT(__ldcg)WRONG(__ldg)(y + (63 - threadIdx.x)) + __ldg(x + threadIdx.x);
        __syncthreads();
        y[threadIdx.x] = v;
    }"""),
    "a constant that is in shared memory": ("operand", "(.global), and gets one in shared memory", """\
void k(int* y, const int* x, int n) {
        __shared__ int table[64];
        table[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        y[threadIdx.x] = RIGHT(table[threadIdx.x ^ 1])WRONG(__ldg(table + (threadIdx.x ^ 1)));
    }"""),
    "past a local array": ("outside", "outside of a variable at k.cu:7, as ", """\
void k(int* y, const int* x, int n) {
        int sums[4] = {};
        for (int i = 0; i < 8; ++i) sums[i & 3] += x[i];
        sums[RIGHT(2) WRONG(3) + (n & 1)] += n;
        y[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
    }"""),
    "past a table": ("outside", "reads memory outside of a variable at k.cu:6, as ", """\
void k(int* y, const int* x, int n) {
        static const int table[4] = {1, 2, 3, 4}, behind[4] = {5, 6, 7, 8};
        const auto of = [](const int* values, int i) { return values[i]; };
        y[threadIdx.x] = of(table, threadIdx.x % 4 WRONG(+ n)) + of(behind, threadIdx.x % 4);
    }"""),
    "past an array in shared memory": ("outside", "reads memory outside of a variable at k.cu:8, as ", """\
void k(int* y, const int* x, int n) {
        __shared__ int s[64], behind[64];
        s[threadIdx.x] = behind[threadIdx.x] = 1;
        __syncthreads();
        y[threadIdx.x] = s[threadIdx.x WRONG(+ n)] + behind[threadIdx.x];
    }"""),
    "past a table, in a function": ("outside", "reads memory outside of a variable at k.cu:6, as 4 bytes", """\
void helper();
__device__ int behind[1] = {15}; __constant__ int table[15] = {0, 1, 2}; __device__ int last[1] = {15};
__device__ __attribute__((noinline)) int of(const int* values, int i) { return values[i]; }
__global__ void k(int* y, const int* x, int n) {
        y[threadIdx.x] = of(table, threadIdx.x % 15 WRONG(+ n)) + of(behind, 0) + of(last, 0);
    }"""),
    "before a table": ("outside", "reads memory outside of a variable at k.cu:6, as 2 bytes", """\
void helper();
__constant__ short before[16] = {1, 2}; __constant__ short table[15] = {0, 1, 2}; __constant__ short behind[16] = {3};
__device__ __attribute__((noinline)) int of(const short* values, int i) { return values[i]; }
__global__ void k(int* y, const int* x, int n) {
        y[threadIdx.x] = of(table, threadIdx.x % 15 WRONG(- n)) + of(before, 15) + of(behind, 15);
    }"""),
    "past one of several tables": ("outside", "reads memory outside of a variable at k.cu:", """\
void k(int* y, const int* x, int n) {
        static const int even[15] = {1, 2, 3}, odd[15] = {4, 5, 6};
        const int* tables[2] = {even, odd};
        const int* table = tables[x[threadIdx.x] & 1];
        y[threadIdx.x] = table[threadIdx.x % 15 WRONG(+ n)] + table[x[3]];
    }"""),
    "a word that a table ends in": ("outside", "reads memory outside of a variable at k.cu:6, as 4 bytes", """\
void helper();
__constant__ unsigned char table[RIGHT(16)WRONG(15)] = {1, 2}, behind[16] = {3, 4};
__device__ __attribute__((noinline)) int of(const unsigned char* values, int i) { return ((const int*)values)[i]; }
__global__ void k(int* y, const int* x, int n) {
        y[threadIdx.x] = of(table, threadIdx.x % 4) + of(behind, threadIdx.x % 4);
    }"""),
    "past a variable that is written": ("outside", "writes memory outside of a variable at k.cu:6, as 4 bytes", """\
void helper();
__device__ int sums[4], others[4];
__device__ __attribute__((noinline)) void set(int* values, int i) { values[i] = i; }
__global__ void k(int* y, const int* x, int n) {
        if (threadIdx.x == 0) set(sums, 3 WRONG(+ n)), set(others, 3), y[threadIdx.x] = sums[3] + others[3];
    }"""),
    "past an array in shared memory, in a function": ("outside", "outside of a variable at k.cu:5, as 4 bytes", """\
void helper();
__device__ __attribute__((noinline)) int of(const int* values, int i) { return values[i]; }
__global__ void k(int* y, const int* x, int n) {
        __shared__ int s[63], behind[64];
        s[threadIdx.x % 63] = 1, behind[threadIdx.x] = 1;
        __syncthreads();
        y[threadIdx.x] = of(s, threadIdx.x RIGHT(% 63)) + of(behind, threadIdx.x);
    }"""),
    "signed overflow": ("overflow", "k.cu:5", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = (int)((RIGHT(unsigned) WRONG(int))x[threadIdx.x] + 0x7FFFFFF0 * n);
    }"""),
    "a shift by all bits": ("shift", "a 32-bit value is shifted by 32 bits", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = x[threadIdx.x] >> (31 * n WRONG(+ threadIdx.x % 2));
    }"""),
    "a shift of 64 bits": ("shift", "k.cu:5: a 64-bit value is shifted by 70", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = (int)((unsigned long long)x[threadIdx.x] << (RIGHT(6) WRONG(70) * n));
    }"""),
    "a shift by a negative number": ("shift", "shifted by -1 bits", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = 1 << (n WRONG(- 2));
    }"""),
    "a division by zero": ("division", "k.cu:5", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = x[threadIdx.x] % (n WRONG(- 1));
    }"""),
    "a shuffle that half of the lanes skip": ("mask", "at k.cu:6, whose mask names it: it goes on to k.cu:7", """\
void k(int* y, const int* x, int n) {
        int v = x[threadIdx.x];
        for (int o = 16; o; o /= 2) WRONG(if (threadIdx.x % 32 < 2 * o)) v += __shfl_down_sync(~0u, v, o);
        if (threadIdx.x % 32 == 0) y[threadIdx.x] = v;
    }"""),
    "a barrier that some lanes skip": ("mask", "k.cu:6", """void k(int* y, const int* x, int n) {
        int v = x[threadIdx.x];
        WRONG(if (threadIdx.x % 2)) __syncwarp();
        y[threadIdx.x] = v;
    }"""),
    "a vote that the last lanes skip, in a function": ("mask", "at k.cu:5, whose mask names it", """\
void helper();
__device__ __attribute__((noinline)) int vote(int v, bool asked) { if (asked) v = __any_sync(~0u, v); return v; }
__global__ void k(int* y, const int* x, int n) {
        const int v = vote(x[threadIdx.x], true WRONG(&& threadIdx.x % 32 < 20));
        if (v != n + 5) y[threadIdx.x] = v;
    }"""),
    "a mask without its own lane": ("mask", "k.cu:5 names other lanes", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = __ballot_sync(RIGHT(~0u) WRONG(0xFFFF), x[threadIdx.x] > n);
    }"""),
    "a lane outside the mask": ("mask", "reads lane 20 at k.cu:6", """void k(int* y, const int* x, int n) {
        const unsigned mask = threadIdx.x % 32 < 16 ? 0xFFFF : 0xFFFF0000;
        y[threadIdx.x] = __shfl_sync(mask, x[threadIdx.x], (threadIdx.x % 32 & 16) RIGHT(+ 4) WRONG(^ 20));
    }"""),
    "different instructions of one mask": ("mask", "k.cu:6", """void k(int* y, const int* x, int n) {
        int v = x[threadIdx.x];
        if (threadIdx.x % 2) v = __shfl_down_sync(~0u, v, 2);
        else v = RIGHT(__shfl_down_sync) WRONG(__shfl_up_sync)(~0u, v, 2);
        y[threadIdx.x] = v;
    }"""),
    "a width that is no power of two": ("mask", "a width of 12", """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = __shfl_sync(~0u, x[threadIdx.x], 3, RIGHT(8) WRONG(12));
    }"""),
    "barriers of two branches": ("divergent", "k.cu:5", """void k(int* y, const int* x, int n) {
        RIGHT(__syncthreads();) WRONG(if (threadIdx.x % 2) __syncthreads();)
        WRONG(else) __syncthreads();
        y[threadIdx.x] = 1;
    }"""),
    "barriers of two warps": ("divergent", "k.cu:6", """void k(int* y, const int* x, int n) {
        WRONG(if (threadIdx.x < 32))
        __syncthreads();
        WRONG(else __syncthreads();)
        y[threadIdx.x] = 1;
    }"""),
    "a write into an input": ("input", "k.cu:5: at byte 8 of its weights", """void k(int* y, int* x, int n) {
        RIGHT(y)WRONG(x)[2] = 1;
    }"""),
}  # fmt: skip


RIGHT = {
    "all threads write the same": """void k(int* y, const int* x, int n) {
        __shared__ int flag;
        flag = n;
        __syncthreads();
        y[threadIdx.x + 0] = flag;
    }""",
    "bytes beside each other": """void k(int* y, const int* x, int n) {
        ((char*)y)[threadIdx.x] = (char)x[threadIdx.x];
    }""",
    "unset memory that reaches no output": """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        if (threadIdx.x < 5) s[threadIdx.x] = 1;
        __syncthreads();
        const int v = __shfl_sync(~0u, s[threadIdx.x], 0);
        y[threadIdx.x] = threadIdx.x < 32 ? v : n;
    }""",
    "some threads have left": """void k(int* y, const int* x, int n) {
        __shared__ int s[64];
        if (threadIdx.x >= 40) return;
        s[threadIdx.x] = n;
        __syncthreads();
        y[threadIdx.x] = s[39 - threadIdx.x];
    }""",
    "lanes that have returned": """void k(int* y, const int* x, int n) {
        if (threadIdx.x % 32 >= 20) return;
        for (int i = 0; i < 3; ++i) {
            if (x[threadIdx.x] < 0 || threadIdx.x % 32 > 17 - i) return;
            y[threadIdx.x] = __any_sync(~0u, x[threadIdx.x]);
            if (threadIdx.x % 32 > 15 - i) return;
            y[threadIdx.x] = __shfl_sync(~0u, n, 0);
        }
        __syncwarp();
        y[threadIdx.x] = n;
    }""",
    "shuffles within active lanes": """void k(int* y, const int* x, int n) {
        if (threadIdx.x % 3) y[threadIdx.x] = __shfl_sync(__activemask(), n, threadIdx.x % 32);
        const unsigned odd = __ballot_sync(~0u, threadIdx.x % 2);
        if (threadIdx.x % 2) y[threadIdx.x] = __shfl_sync(odd, n, 1);
    }""",
    "bits that a shift drops": """void k(int* y, const int* x, int n) {
        const unsigned char c = (unsigned char)(0xFF * n);
        y[threadIdx.x] = (int)__funnelshift_l(c, c, 40) + (c << 20) + (-1 << n) + ((1 << 31) >> 31);
    }""",
    "ends of arrays, and one of no size": """void k(int* y, const int* x, int n) {
        struct Rest { int first, rest[1]; };
        __shared__ int s[64];
        int sums[4] = {n, n, n, n}, sum = 0;
        for (const int* p = sums; p != &sums[4]; ++p) sum += *p;
        for (int *p = s + threadIdx.x; p < &s[64]; p += 64) *p = sum;
        y[threadIdx.x] = s[threadIdx.x] + ((const Rest*)x)->rest[threadIdx.x % 32];
    }""",
    "variables to their last element": """void helper();
struct Shape { virtual int of(int i) const { return i; } int size = 3; };
struct Other : Shape { int of(int i) const override { return 2 * i; } };
template <int N> __device__ const int* table() { static const int all[N] = {1, 2, 3}; return all; }
inline constexpr int inlined[5] = {1, 2, 3, 4, 5};
__device__ int counts[3]; __constant__ double tiny[1] = {0.5}; __constant__ char letters[] = "abc";
__constant__ const char* const names[2] = {"one", "two"};
__device__ __attribute__((noinline)) int of(const int* values, int i) { return values[i]; }
__device__ __attribute__((noinline)) int character(const char* text, int i) { return text[i]; }
__device__ __attribute__((noinline)) int virtually(const Shape& shape, int i) { return shape.of(i); }
__global__ void k(int* y, const int* x, int n) {
        __shared__ int s[7], behind[3];
        DYNAMIC_SHARED(room);
        int* const rest = (int*)room;
        if (blockIdx.x) return;
        const int aggregate[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        static const struct { char c; int i; } pairs[2] = {{1, 2}, {3, 4}};
        const Shape shape; const Other other;
        if (threadIdx.x < 7) s[threadIdx.x] = n;
        if (threadIdx.x < 3) behind[threadIdx.x] = n, counts[threadIdx.x] = n;
        rest[threadIdx.x] = n;
        __syncthreads();
        int sum = of(s, 6) + of(behind, 2) + of(counts, 2) + of(rest, 63) + of(table<3>(), 2) + of(table<4>(), 3);
        sum += of(inlined, 4) + of(aggregate, threadIdx.x % 9) + of(&pairs[1].i, 0) + (int)tiny[threadIdx.x / 64];
        sum += character(letters, 3) + character(names[n], 3) + character("literal", threadIdx.x % 8);
        switch (threadIdx.x % 8) {
            case 0: sum += 3; break; case 1: sum *= 3; break; case 2: sum ^= 3; break; case 4: sum -= 9; break;
            case 5: sum /= 3; break; case 6: sum %= 7; break; default: sum = -sum;
        }
        y[threadIdx.x] = sum + virtually(threadIdx.x % 2 ? shape : other, n);
    }""",
    "an array of arrays as one": """void k(int* y, const int* x, int n) {
        __shared__ int s[4][16];
        int sums[2][4] = {};
        for (int i = 0; i < 16; ++i) sums[0][i % 8] += x[i];
        s[0][threadIdx.x] = sums[0][threadIdx.x % 8];
        y[threadIdx.x] = s[0][threadIdx.x];
    }""",
    "a float that an integer's lower bits hold": """void k(int* y, const int* x, int n) {
        y[threadIdx.x] = (unsigned char)(300.5f * (float)n) + (int)(-1e30f * (float)n);
    }""",
    "a ring of bulk copies": """void k(int* y, const int* x, int n) {
        __shared__ __attribute__((aligned(16))) int s[2][16];
        __shared__ MBarrier full[2], empty[2];
        const int t = threadIdx.x;
        if (t == 0) for (int i = 0; i < 2; ++i) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], 32);
        mbarrier_init_done();
        if (t >= 32) {
            if (t == 32)
                for (int r = 0; r < 4; ++r) {
                    mbarrier_wait(&empty[r % 2], r / 2 % 2 ^ 1);
                    mbarrier_expect(&full[r % 2], 64), bulk_copy(s[r % 2], x + 16 * r, 64, &full[r % 2]);
                }
            return;
        }
        int sum = 0;
        for (int r = 0; r < 4; ++r) {
            mbarrier_wait(&full[r % 2], r / 2 % 2);
            sum += s[r % 2][t % 16];
            mbarrier_arrive(&empty[r % 2]);
        }
        y[t] = sum;
    }""",
}

#: A warp refills what its lanes read; {before} comes before its barrier, {after} behind it.
REFILLED = """void k(int* y, const int* x, int n) {{
        __shared__ __attribute__((aligned(16))) int s[16];
        __shared__ MBarrier full;
        const int t = threadIdx.x;
        if (t == 0) mbarrier_init(&full, 1), before_bulk_copies(), mbarrier_expect(&full, 64);
        if (t == 0) bulk_copy(s, x, 64, &full);
        __syncthreads();
        if (t >= 32) return;
        mbarrier_wait(&full, 0);
        int sum = s[t % 16];
        {before}
        __syncwarp();
        {after}
        if (t == 0) mbarrier_expect(&full, 64), bulk_copy(s, x + 16, 64, &full);
        mbarrier_wait(&full, 1);
        y[t] = sum + s[t % 16];
    }}"""
READS, GIVES = "sum += s[r % 2][t % 16];", "mbarrier_arrive(&empty[r % 2]);"
FENCE = "before_bulk_copies();"
#: Of these, the first of two thread blocks does all.
ONE_BLOCK = RIGHT | {
    "a refill, a fence and a barrier": REFILLED.format(before=FENCE, after=""),
    "a refill, a barrier and a fence": REFILLED.format(before="", after=f"if (t == 0) {FENCE}"),
    "a refill without a fence": REFILLED.format(before="", after=""),
    "a ring whose slots are not waited for": RIGHT["a ring of bulk copies"]
    .replace(GIVES, "")
    .replace(READS, GIVES + READS),
}
#: Kernels whose findings depend on where a lane goes on after the end of the function.
ALONE = ("a shuffle that half of the lanes skip", "lanes that have returned")
HEADERS = 'void u() {}\n#include "async.cuh"\n#include <cuda_pipeline.h>\n'


def sources() -> dict[tuple[str, bool], str]:
    """Name, and whether it is the right twin → a source whose kernel is `k`."""
    leaves = "        if (blockIdx.x) return;\n"
    found = {(name, True): source.replace("{\n", "{\n" + leaves, 1) for name, source in ONE_BLOCK.items()}
    for name, (_, _, source) in CASES.items():
        if "y[threadIdx.x" in source and name != "a race of thread blocks":
            # of two thread blocks that write the same, only one writes
            source = source.replace("{\n", "{\n#line 4\n" + leaves, 1)
        found |= {(name, True): source, (name, False): source}
    return found


SOURCES = sources()
NUMBERS = {key: number for number, key in enumerate(key for key in SOURCES if key[0] not in ALONE)}


def twin(key: tuple[str, bool], of_kernel: str) -> str:
    """The source of a twin, whose kernel begins with these words."""
    keep, drop = ("RIGHT", "WRONG") if key[1] else ("WRONG", "RIGHT")
    source = SOURCES[key].replace("void helper();", "").replace("__global__ void k(", "void k(")
    return (
        f"#define {keep}(...) __VA_ARGS__\n#define {drop}(...)\n#line 4\n"
        + source.replace("void k(", f"{of_kernel} void k(", 1)
        + "\n#undef RIGHT\n#undef WRONG\n"
    )


DEVICE = "__device__ __attribute__((noinline))"


def together(sources: Iterable[str], of_output: str = "int") -> str:
    """One source of all of these, so that the compiler starts once. Its kernel gets the number of the one to run."""
    functions, cases = "", ""
    for number, source in enumerate(sources):
        functions += f"namespace source_{number} {{\n{source}}}\n"
        cases += f"case {number}: return source_{number}::k(y, x, n);\n"
    kernel = f'extern "C" __global__ void k({of_output}* y, int* x, int n, int number)'
    return f"{functions}{kernel} {{ switch (number) {{\n{cases}}} }}\n"


def launched(build: Build, name: str, right: bool = True) -> CpuHost:
    host = CpuHost(1).under(Schedule(checked=True))
    assert isinstance(host, CpuHost)
    key = name, right
    alone = name in ALONE
    text = twin(key, 'extern "C" __global__') if alone else together(twin(each, DEVICE) for each in NUMBERS)
    kernel = build(HEADERS + text, host)
    number = [] if alone else [np.int32(NUMBERS[key])]
    x = host.upload(np.arange(64, dtype=np.int32), "weights")
    host.launch(kernel, (2, 1, 1), (64, 1, 1), [host.output(256), x, np.int32(1), *number], shared=256)
    return host


@pytest.mark.parametrize("name", CASES)
def test_finding_and_its_right_twin(build: Build, name: str) -> None:
    kind, words, _ = CASES[name]
    with pytest.raises(KernelFinding) as found:
        launched(build, name, right=False)
    assert found.value.kind == kind
    assert words in str(found.value)
    assert "\n" not in str(found.value)
    assert launched(build, name).unset == ()


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_no_finding(build: Build, name: str) -> None:
    host = launched(build, name)
    assert host.unset == (("shared memory at k.cu:9",) if name.startswith("unset") else ())


@pytest.mark.parametrize("name", ["a refill, a fence and a barrier", "a refill, a barrier and a fence"])
def test_a_refill_after_a_fence(build: Build, name: str) -> None:
    launched(build, name)


def test_a_refill_without_a_fence(build: Build) -> None:
    """As in the step 08 of the ladder until it was seen to be wrong on a card: a barrier orders loads before loads and
    stores, not before a bulk copy."""
    with pytest.raises(KernelFinding, match=r"k\.cu:14 what a bulk copy that begins at k\.cu:18 overwrites") as found:
        launched(build, "a refill without a fence")
    assert found.value.kind == "race"


def test_a_ring_whose_slots_are_not_waited_for(build: Build) -> None:
    """Consumers give a slot back before they read it."""
    with pytest.raises(KernelFinding, match="race"):
        launched(build, "a ring whose slots are not waited for")


# -- atomic operations and fences --------------------------------------------------------------------------------------

#: The last thread block adds what all have left, as split-K kernels do. `y` has an element for each thread.
LAST_BLOCK = """
__device__ float part[64];
__device__ unsigned count;
{device} void k(float* y, const int* x, int n) {{
    __shared__ bool last;
    if (threadIdx.x == 0) {{
        part[blockIdx.x] = (float)x[blockIdx.x];
        {fence}
        last = atomicInc(&count, gridDim.x - 1) == gridDim.x - 1;
    }}
    {barrier}
    if (!last) return;
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += part[i];
    y[threadIdx.x] = sum;
}}"""
COUNTED = """
{device} void k(float* y, const int* x, int n) {{
    __shared__ int c[2];
    if (threadIdx.x < 2) c[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&c[0], x[threadIdx.x]), atomicMax(&c[1], x[threadIdx.x]);
    {barrier}
    if (threadIdx.x == 0) y[0] = (float)c[0], y[1] = (float)c[1];
}}"""
LOCKED = """
{device} void k(float* y, const int* x, int n) {{
    __shared__ int lock, sum;
    if (threadIdx.x == 0) lock = sum = 0;
    __syncthreads();
    while (atomicCAS(&lock, 0, 1)) ;
    sum += x[threadIdx.x];
    {fence}
    atomicExch(&lock, 0);
    __syncthreads();
    y[threadIdx.x] = (float)sum;
}}"""
HANDED_OVER = """
{device} void k(float* y, const int* x, int n) {{
    __shared__ float kept;
    __shared__ int there;
    if (threadIdx.x == 0) there = 0;
    __syncthreads();
    if (threadIdx.x == 63) {{ kept = 7; {fence} atomicExch(&there, 1); }}
    if (threadIdx.x == 0) {{
        while (!atomicAdd(&there, 0)) ;
        y[0] = kept;
    }}
}}"""
#: Name → source, what makes it right, what makes it wrong, and an output.
ATOMICS = {
    "last block without a fence": (LAST_BLOCK, ("__threadfence();", "__syncthreads();"), ("", "__syncthreads();"), 6.0),
    "a fence of the block alone": (
        LAST_BLOCK, ("__threadfence();", "__syncthreads();"), ("__threadfence_block();", "__syncthreads();"), 6.0,
    ),
    "last block without a barrier": (
        LAST_BLOCK, ("__threadfence();", "__syncthreads();"), ("__threadfence();", ""), 6.0,
    ),
    "a sum that is read too early": (COUNTED, ("__syncthreads();",), ("",), 2016.0),
    "a lock without a fence": (LOCKED, ("__threadfence_block();",), ("",), 2016.0),
    "a flag without a fence": (HANDED_OVER, ("__threadfence_block();",), ("",), 7.0),
}  # fmt: skip


def atomic(name: str, right: bool) -> str:
    source, *parts, _ = ATOMICS[name]
    fields = [field for field in ("fence", "barrier") if f"{{{field}}}" in source]
    return source.format(device=DEVICE, **dict(zip(fields, parts[not right], strict=True)))


ATOMIC = [(name, right) for name in ATOMICS for right in (True, False)]


@pytest.mark.parametrize("name", ATOMICS)
def test_atomic_operations(build: Build, name: str) -> None:
    source, *_, expected = ATOMICS[name]
    blocks = 4 if source is LAST_BLOCK else 1
    x = np.arange(64, dtype=np.int32)

    def run(right: bool, host: CpuHost) -> np.ndarray:
        kernel = build("void u() {}\n" + together(itertools.starmap(atomic, ATOMIC), "float"), host)
        y = host.output(256)
        arguments = [y, host.upload(x, "weights"), np.int32(1), np.int32(ATOMIC.index((name, right)))]
        host.launch(kernel, (blocks, 1, 1), (64, 1, 1), arguments)
        return host.download(y).view(np.float32)

    checked = CpuHost(1).under(Schedule(checked=True))
    assert isinstance(checked, CpuHost)
    with pytest.raises(KernelFinding, match="data race: "):
        run(False, checked)
    for schedule in (Schedule(checked=True), Schedule("descending"), Schedule("seeded", 3), Schedule()):
        host = CpuHost(2).under(schedule)
        assert isinstance(host, CpuHost)
        assert run(True, host)[0] == expected, schedule
        assert not host.adds_floats
