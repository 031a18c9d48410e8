"""Data races of atomic, volatile, relaxed, acquire and release operations with plain accesses, in a checked build."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import KernelFinding
from tests.support.short_kernels import Build

pytestmark = pytest.mark.skipif(checks_fault() is not None, reason="the compiler cannot check")

# Of thread blocks of 64 threads on zeroed memory; `one` is the first thread of each. "//<" ends a line of a race.
WRONG = {
    "a store by one block before its own atomic operation": """
        if (b == 0 && one) g[0] = 7;  //<
        if (one) atomicAdd(g, 1);  //<
    """,
    "a store by the last block after its atomic operation": """
        if (one) atomicAdd(g, 1);  //<
        if (b == 3 && one) g[0] = 7;  //<
    """,
    "a store of what is there already": """
        if (b == 0 && one) g[0] = 0;  //<
        if (one) atomicAdd(g, 1);  //<
    """,
    "a store with a fence that no block waits for": """
        if (b == 0 && one) { g[0] = 7; __threadfence(); }  //<
        if (one) atomicAdd(g, 1);  //<
    """,
    "a store by the last block with a fence that no block waits for": """
        if (b == 3 && one) { g[0] = 7; __threadfence(); }  //<
        if (one) atomicAdd(g, 1);  //<
    """,
    "a load before atomic operations of other blocks": """
        if (b == 0 && one) g[9] = g[0];  //<
        if (one) atomicAdd(g, 1);  //<
    """,
    "a load after atomic operations of other blocks": """
        if (one) atomicAdd(g, 1);  //<
        if (b == 3 && one) g[9] = g[0];  //<
    """,
    "a store by a thread of the same block": """
        if (b == 0 && t == 0) g[0] = 0;  //<
        if (b == 0 && t % 32 == 0) atomicAdd(g, 1);  //<
    """,
    "a store to shared memory": """
        __shared__ int s;
        if (t == 0) s = 0;  //<
        atomicAdd(&s, 1);  //<
    """,
    "a load of shared memory": """
        __shared__ int s;
        if (t == 0) s = 0;
        __syncthreads();
        if (t == 0) atomicAdd(&s, 1);  //<
        if (t == 32 && b == 0) g[1] = s;  //<
    """,
    "a store that overlaps a part of an atomic operation": """
        if (b == 0 && one) ((char*)g)[7] = 1;  //<
        if (one) atomicAdd((unsigned long long*)g, 1ull);  //<
    """,
    "atomic operations of other sizes": """
        if (b == 0 && one) atomicAdd(g + 1, 1);  //<
        if (b == 1 && one) atomicAdd((unsigned long long*)g, 1ull);  //<
    """,
    "atomic operations of a block alone": """
        if (one) atomicAdd_block(g, 1);  //<
    """,
    "a store against volatile accesses": """
        if (b == 0 && one) g[0] = 7;  //<
        if (b == 1 && one) g[9] = *(volatile int*)g;  //<
    """,
    "a volatile load before a store": """
        if (b == 0 && one) g[9] = *(volatile int*)g;  //<
        if (b == 1 && one) g[0] = 7;  //<
    """,
    "a flag without a fence": """
        if (b == 0 && one) { g[1] = 5; atomicExch(g, 1); }  //<
        if (b == 1 && one) { while (!atomicAdd(g, 0)) ; g[9] = g[1]; }  //<
    """,
    "threads that do not wait for the one that waits": """
        if (b == 0 && one) { g[1] = 5; __threadfence(); atomicExch(g, 1); }  //<
        if (b == 1) {
            if (one) while (!atomicAdd(g, 0)) ;
            if (t == 40) g[9] = g[1];  //<
        }
    """,
    "a flag that is set before other threads have stored": """
        if (b == 0) {
            g[1 + t] = 5;  //<
            __threadfence();
            if (one) atomicExch(g, 1);
        }
        if (b == 1) {
            if (one) while (!atomicAdd(g, 0)) ;
            __syncthreads();
            g[100 + t] = g[1 + t];  //<
        }
    """,
}
RIGHT = {
    "cleared before a barrier of the block": """
        __shared__ int s;
        if (t == 0) s = 0, g[b] = 0;
        __syncthreads();
        atomicAdd(&s, 1), atomicAdd(g + b, 1);
        __syncthreads();
        if (t == 0) g[10 + b] = s + g[b];
    """,
    "the last block sets the counter back": """
        __shared__ bool last;
        g[10 + b * 64 + t] = t;
        __threadfence();
        __syncthreads();
        if (one) last = atomicAdd(g, 1) == 3;
        __syncthreads();
        if (!last) return;
        int sum = 0;
        for (int i = 0; i < 256; ++i) sum += g[10 + i];
        if (one) g[1] = sum, g[0] = 0;
    """,
    "a fence of one thread after the barrier": """
        __shared__ bool last;
        g[10 + b * 64 + t] = t;
        __syncthreads();
        if (one) { __threadfence(); last = atomicAdd(g, 1) == 3; }
        __syncthreads();
        if (last) g[300 + t] = g[10 + t] + g[10 + 64 + t] + g[10 + 128 + t];
    """,
    "the last warp of all, by shuffles": """
        if (t % 32 == 0) { g[10 + b * 2 + t / 32] = 1; __threadfence(); }
        int ticket = t % 32 ? 0 : atomicAdd(g, 1);
        ticket = __shfl_sync(~0u, ticket, 0);
        if (ticket == 7 && t % 32 < 7) g[300 + t % 32] = g[10 + (b * 2 + t / 32 + 1 + t % 32) % 8];
    """,
    "a block that waits for a flag": """
        if (b == 0) {
            g[10 + t] = 5;
            __threadfence();
            __syncthreads();
            if (one) atomicExch(g, 1);
        } else {
            if (one) while (!atomicAdd(g, 0)) ;
            __syncthreads();
            g[100 + b * 64 + t] = g[10 + t];
        }
    """,
    "a volatile flag": """
        if (b == 0 && one) { g[10] = 5; __threadfence(); *(volatile int*)g = 1; }
        if (b == 1 && one) { while (!*(volatile int*)g) ; g[11] = g[10]; }
    """,
    "a block that waits for one of a higher number": """
        if (b == 3 && one) { g[10] = 5; __threadfence(); atomicExch(g, 1); }
        if (b == 0 && one) { while (!atomicAdd(g, 0)) ; g[11] = g[10]; }
    """,
    "the first block to come clears for all": """
        if (one && atomicAdd(g, 1) == 0) { g[1] = 0; __threadfence(); atomicExch(g + 2, 1); }
        if (one) { while (!atomicAdd(g + 2, 0)) ; atomicAdd(g + 1, 1); }
    """,
    "halves of one word": """
        if (one) atomicAdd((__half2*)g, __floats2half2_rn(1, 1));
        if (one) atomicAdd((__half*)g + b % 2, __float2half(1));
    """,
    "atomic operations of a block in its own part": """
        atomicAdd_block(g + b, 1);
    """,
}


def kernel(cases: dict[str, str]) -> str:
    """One kernel that has each case as number `n`, so that the compiler runs once."""
    parts = [
        f"static __device__ __attribute__((noinline)) void c{i}(int* g, int b, int t, bool one) {{{body}}}"
        for i, body in enumerate(cases.values())
    ]
    calls = "\n".join(f"if (n == {i}) c{i}(g, blockIdx.x, threadIdx.x, threadIdx.x == 0);" for i in range(len(cases)))
    return "\n".join([
        'void u() {}\n#include "emulator/include/cuda_fp16.h"', *parts,
        'extern "C" __global__ void k(int* g, int n) {', calls, "}",
    ])  # fmt: skip


def launched(build: Build, cases: dict[str, str], name: str) -> np.ndarray:
    host = CpuHost(1).under(Schedule(checked=True))
    assert isinstance(host, CpuHost)
    g = host.output(4096)
    host.begin(g, np.zeros(4096, np.uint8))
    host.launch(build(kernel(cases), host), (4, 1, 1), (64, 1, 1), [g, np.int32(list(cases).index(name))])
    return host.download(g).view(np.int32)


def lines_of(name: str) -> set[str]:
    """The marked lines of a wrong case in the kernel's file, "k.cu:LINE"."""
    lines = ("\n" + kernel(WRONG)).split("\n")  # the fixture writes a line before
    i = list(WRONG).index(name)
    begin = next(n for n, line in enumerate(lines, 1) if f" c{i}(" in line)
    end = next((n for n, line in enumerate(lines, 1) if f" c{i + 1}(" in line), len(lines))
    return {f"k.cu:{n}" for n, line in enumerate(lines, 1) if begin < n < end and "//<" in line}


@pytest.mark.parametrize("name", WRONG)
def test_a_race_is_found_whatever_the_schedule(build: Build, name: str) -> None:
    with pytest.raises(KernelFinding, match="data race: ") as found:
        launched(build, WRONG, name)
    assert found.value.kind == "race"
    assert set(re.findall(r"k\.cu:\d+", str(found.value).split(" (and ")[0])) == lines_of(name)


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_fence_or_a_barrier_orders_is_no_race(build: Build, name: str) -> None:
    assert launched(build, RIGHT, name).any()


def test_memory_is_as_the_first_order_of_a_launch_left_it(build: Build) -> None:
    """A launch that atomic operations order is checked in the opposite order too."""
    g = launched(build, RIGHT, "the last block sets the counter back")
    assert g[:2].tolist() == [0, 4 * 2016]
    g = launched(build, RIGHT, "the first block to come clears for all")
    assert g[:3].tolist() == [4, 4, 1]
