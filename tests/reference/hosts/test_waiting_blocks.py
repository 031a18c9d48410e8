"""Kernels whose thread blocks wait for others (serial split-K, stream-K, semaphores), in every order of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import KernelFinding, NotTried
from tests.support.short_kernels import Build

ORDERS = (Schedule("descending"), *(Schedule("seeded", seed) for seed in range(4)))
BLOCKS = 12

# Of blocks of 64 threads on zeroed memory, of which g[0] is a flag; `one` is the first thread of each block.
CASES = {
    "a thread waits for its turn": """
        if (one) while (atomicAdd(g, 0) != b) ;
        __syncthreads();
        g[64 + t] = g[64 + t] * 3 + b + t;
        __threadfence();
        __syncthreads();
        if (one) atomicExch(g, b + 1);
    """,
    "all threads wait at a barrier": """
        int state = one ? atomicAdd(g, 0) : 0;
        while (__syncthreads_and(one ? state != b : 1)) state = one ? atomicAdd(g, 0) : 0;
        g[64 + t] = g[64 + t] * 3 + b + t;
        __threadfence();
        __syncthreads();
        if (one) atomicExch(g, b + 1);
    """,
    "a thread sleeps until its turn": """
        if (one) while (*(volatile int*)g != b) __nanosleep(20);
        __syncthreads();
        g[64 + t] = g[64 + t] * 3 + b + t;
        __threadfence();
        __syncthreads();
        if (one) *(volatile int*)g = b + 1;
    """,
    "shared memory of a block that waits": """
        __shared__ int s[64];
        s[t] = b + t;
        __syncthreads();
        if (one) while (atomicAdd(g, 0) != b) ;
        __syncthreads();
        g[64 + t] = g[64 + t] * 3 + s[t];
        __threadfence();
        __syncthreads();
        if (one) atomicExch(g, b + 1);
    """,
    "dynamic shared memory of a block that waits": """
        DYNAMIC_SHARED(room);
        int* s = (int*)room;
        s[t] = b + t;
        __syncthreads();
        if (one) while (atomicAdd(g, 0) != b) ;
        __syncthreads();
        g[64 + t] = g[64 + t] * 3 + s[t];
        __threadfence();
        __syncthreads();
        if (one) atomicExch(g, b + 1);
    """,
    "parts that a last block adds": """
        g[128 + b * 64 + t] = b + t;
        __threadfence();
        __syncthreads();
        if (one) atomicAdd(g, 1);
        if (b != 7) return;
        if (one) while (atomicAdd(g, 0) != 12) ;
        __syncthreads();
        for (int i = 0; i < 12; ++i) g[64 + t] = g[64 + t] * 3 + g[128 + i * 64 + t];
    """,
    "a flag that is set before other warps have stored": """
        if (b < 6) {
            ((volatile int*)g)[128 + b * 64 + t] = b + t + 1;
            __threadfence();
            if (one) atomicExch(g + b, 1);
            return;
        }
        if (one) while (!atomicAdd(g + b - 6, 0)) ;
        __syncthreads();
        g[1024 + b * 64 + t] = ((volatile int*)g)[128 + (b - 6) * 64 + t];
    """,
    "blocks that wait for ever": """
        if (one && b % 2) while (!atomicAdd(g, 0)) ;
    """,
}
RIGHT = list(CASES)[:6]


def launched(build: Build, name: str, schedule: Schedule | None) -> np.ndarray:
    cases = [
        f"static __device__ __attribute__((noinline)) void c{i}(int* g, int b, int t, bool one) {{{body}}}"
        for i, body in enumerate(CASES.values())
    ]
    calls = "".join(f"if (n == {i}) c{i}(g, blockIdx.x, threadIdx.x, threadIdx.x == 0);\n" for i in range(len(CASES)))
    parts = ["void u() {}", *cases, 'extern "C" __global__ void k(int* g, int n) {', calls, "}"]
    host = CpuHost(2) if schedule is None else CpuHost(2).under(schedule)
    assert isinstance(host, CpuHost)
    g = host.output(8192)
    host.begin(g, np.zeros(8192, np.uint8))
    kernel = build("\n".join(parts), host)
    host.launch(kernel, (BLOCKS, 1, 1), (64, 1, 1), [g, np.int32(list(CASES).index(name))], shared=256)
    return host.download(g).view(np.int32)


@pytest.mark.parametrize("name", RIGHT)
def test_each_order_gives_the_same(build: Build, name: str) -> None:
    expected = np.zeros(64, np.int32)
    for b in range(BLOCKS):
        expected = expected * 3 + b + np.arange(64)
    for schedule in (None, *ORDERS):
        assert np.array_equal(launched(build, name, schedule)[64:128], expected), schedule


#: The second warp of a block first: each waits for its turn by reads of shared memory, and of global memory.
WARPS_IN_TURN = """void k(int* g, int n) {
    __shared__ volatile int turn;
    __shared__ int sum;
    volatile int* flag = g + blockIdx.x;
    const int t = threadIdx.x, warp = 1 - t / 32;
    if (t == 0) turn = 0, sum = 1;
    __syncthreads();
    if (n) while (turn != warp) ;
    else while (__ldcv(g + blockIdx.x) != warp) ;
    __threadfence();
    __syncwarp();
    if (t % 32 == 0) {
        sum = sum * 3 + warp;
        __threadfence();
        turn = warp + 1, *flag = warp + 1;
    }
    __syncthreads();
    g[64 * (1 + blockIdx.x) + t] = sum + t;
}"""


@pytest.mark.parametrize("volatile", [0, 1], ids=["ldcv", "volatile"])
def test_warps_that_wait_by_loads(build: Build, volatile: int) -> None:
    for schedule in (None, *ORDERS):
        host = CpuHost(2) if schedule is None else CpuHost(2).under(schedule)
        assert isinstance(host, CpuHost)
        g = host.output(4 * 64 * (1 + BLOCKS))
        host.begin(g, np.zeros(4 * 64 * (1 + BLOCKS), np.uint8))
        host.launch(build(WARPS_IN_TURN, host), (BLOCKS, 1, 1), (64, 1, 1), [g, np.int32(volatile)])
        made = host.download(g).view(np.int32)[64:].reshape(BLOCKS, 64)
        assert (made == 10 + np.arange(64)).all(), schedule


@pytest.mark.skipif(checks_fault() is not None, reason="the compiler cannot check")
@pytest.mark.parametrize("name", RIGHT)
def test_a_checked_build_finds_nothing(build: Build, name: str) -> None:
    assert launched(build, name, Schedule(checked=True))[64:128].any()


def test_a_block_that_waits_sees_what_another_has_not_yet_stored(build: Build) -> None:
    """Volatile accesses are no data race: it shows where the block that sets the flag too early lets others go on."""
    expected = np.arange(6)[:, None] + np.arange(64) + 1
    made = [
        launched(build, "a flag that is set before other warps have stored", s)[1024 + 6 * 64 : 1024 + 12 * 64]
        for s in ORDERS
    ]
    assert any((y.reshape(6, 64) != expected).any() for y in made)


@pytest.mark.parametrize("schedule", ORDERS[:2], ids=lambda s: s.words)
def test_blocks_that_wait_for_ever_are_not_tried(build: Build, schedule: Schedule) -> None:
    with pytest.raises(NotTried, match="thread blocks of the kernel wait for others"):
        launched(build, "blocks that wait for ever", schedule)


def test_a_barrier_that_some_threads_never_reach_is_a_finding_beside_waiting_blocks(build: Build) -> None:
    host = CpuHost(1, schedule=Schedule("descending"))
    g = host.output(256)
    host.begin(g, np.zeros(256, np.uint8))
    source = """void k(int* g) {
        if (blockIdx.x) { if (threadIdx.x == 0) while (!atomicAdd(g, 0)) ; return; }
        __shared__ int turn;
        if (threadIdx.x == 0) turn = 1;
        if (threadIdx.x == 0) while (!*(volatile int*)&turn) ;
        if (threadIdx.x == 0) barrier_sync(1, 64);
    }"""
    kernel = build(f'void u() {{}}\n#include "async.cuh"\nextern "C" __global__ {source}', host)
    with pytest.raises(KernelFinding, match="wait at a barrier"):
        host.launch(kernel, (2, 1, 1), (64, 1, 1), [g])
