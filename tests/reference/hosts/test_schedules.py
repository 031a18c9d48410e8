"""The CPU host under schedules: a faulty kernel gives other bits or one clear line, and its right twin does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import KernelFault
from tests.support.short_kernels import Build, run

SCHEDULES = (
    Schedule(), Schedule("descending"), *(Schedule("seeded", seed) for seed in range(4)),
)  # fmt: skip


def outputs(build: Build, source: str, grid: int, block: int, out: np.ndarray, *args: Any) -> list[bytes]:
    """What the kernel gives under each schedule."""
    made = []
    for schedule in SCHEDULES:
        host = CpuHost(2, schedule=schedule)
        made.append(run(host, build(source, host), grid, block, out, *args).tobytes())
    return made


# What the source needs between two slashes is what makes it right.
PAIRS = {
    "a barrier of the block": """void k(int* y, const int* x) {
        __shared__ int s[96];
        const int t = threadIdx.x;
        s[t] = x[t];
        /__syncthreads();/
        y[t] = s[95 - t] + s[(t + 1) % 96];
    }""",
    "a barrier of the warp": """void k(int* y, const int* x) {
        __shared__ int s[96];
        const int t = threadIdx.x;
        s[t] = x[t];
        /__syncwarp();/
        y[t] = s[t ^ 31] + s[t ^ 1];
    }""",
    "a barrier after the last use": """void k(int* y, const int* x) {
        __shared__ int s[96];
        const int t = threadIdx.x;
        for (int r = 0; r < 3; ++r) {
            s[t] = x[t] * (r + 1);
            __syncthreads();
            y[t] = (r ? y[t] : 0) * 31 + s[95 - t];
            /__syncthreads();/
        }
    }""",
    "the group of a copy": """void k(int* y, const int* x) {
        __shared__ __attribute__((aligned(16))) int s[96];
        const int t = threadIdx.x;
        s[t] = 0;
        __syncthreads();
        if (t % 4 == 0) async_copy16(s + t, x + t);
        /async_commit();/
        async_wait<0>();
        __syncthreads();
        y[t] = s[95 - t];
    }""",
    "a wait for all groups": """void k(int* y, const int* x) {
        __shared__ __attribute__((aligned(16))) int s[96];
        const int t = threadIdx.x;
        s[t] = 0;
        __syncthreads();
        if (t % 4 == 0) async_copy16(s + t, x + t);
        async_commit();
        async_wait<1/ - 1/>();
        __syncthreads();
        y[t] = s[95 - t];
    }""",
    "a wait for bulk copies": """void k(int* y, const int* x) {
        __shared__ __attribute__((aligned(16))) int s[96];
        __shared__ MBarrier full;
        const int t = threadIdx.x;
        s[t] = 0;
        if (t == 0) mbarrier_init(&full, 1);
        mbarrier_init_done();
        if (t == 0) mbarrier_expect(&full, 384), bulk_copy(s, x, 384, &full);
        /mbarrier_wait(&full, 0);/
        __syncthreads();
        y[t] = s[95 - t];
    }""",
    "as many expected bytes as are copied": """void k(int* y, const int* x) {
        __shared__ __attribute__((aligned(16))) int s[96];
        __shared__ MBarrier full;
        const int t = threadIdx.x;
        s[t] = 0;
        if (t == 0) mbarrier_init(&full, 1);
        mbarrier_init_done();
        if (t == 0) {
            mbarrier_expect(&full, 192/ + 192/);
            bulk_copy(s, x, 192, &full), bulk_copy(s + 48, x + 48, 192, &full);
        }
        mbarrier_wait(&full, 0);
        __syncthreads();
        y[t] = s[95 - t];
    }""",
    "shared memory that is written": """void k(int* y, const int* x) {
        __shared__ int s[96];
        const int t = threadIdx.x;
        if (t < 64/ + 32/) s[t] = x[t];
        __syncthreads();
        y[t] = s[95 - t];
    }""",
    "outputs of one block each": """void k(int* y, const int* x) {
        if (blockIdx.x == 1/ && false/) y[threadIdx.x] = 5;
        y[threadIdx.x] = x[threadIdx.x];
        if (blockIdx.x == 2/ && false/) y[threadIdx.x] = 7;
    }""",
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_race_changes_bits_and_its_right_twin_does_not(build: Build, name: str) -> None:
    parts = PAIRS[name].split("/")
    x = np.arange(1, 97, dtype=np.int32)
    include = '#include "async.cuh"\n' if "async" in PAIRS[name] or "MBarrier" in PAIRS[name] else ""
    made = {}
    for right in (True, False):
        source = "".join(part for i, part in enumerate(parts) if right or i % 2 == 0)
        # the fixture writes `extern "C" __global__` before the source, so an include comes between
        source = f'void unused() {{}}\n{include}extern "C" __global__ {source}' if include else source
        made[right] = outputs(build, source, 3, 96, np.empty(96, np.int32), x)
    assert len(set(made[True])) == 1
    assert len(set(made[False])) > 1


PRODUCTS = """void unused() {}
#include "async.cuh"
extern "C" __global__ void k(float* y, const float* x) {
    DYNAMIC_SHARED(b);
    const int t = threadIdx.x;
    for (int i = t; i < 16 * 64; i += 32) {
        const int at = i / 64 * 128 + i % 64 * 2;
        *(uint16_t*)(b + (at ^ (at >> 7 & 7) << 4)) = float_to_half(x[i % 96]);
    }
    __syncthreads();
    float d[8] = {};
    uint32_t a[4];
    for (int i = 0; i < 4; ++i) a[i] = float_to_half(x[t + i]) | (uint32_t)float_to_half(x[t + i + 5]) << 16;
    wgmma_begin();
    wgmma<true>(d, a, shared_matrix(b));
    wgmma_commit();
    WAIT
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += d[i] * (i + 1);
    BARRIER
    b[2 * t] = 0;
    LATE
    y[t] = sum;
}"""


def test_products_are_as_late_as_their_waits(build: Build) -> None:
    """A warp's product that nobody waits for, and one whose operand is overwritten before the wait."""
    x = np.arange(1, 129, dtype=np.float32)
    made: dict[str, list[bytes]] = {}
    waits = {
        "right": ("wgmma_wait<0>();", "__syncwarp();", ""),
        "none": ("", "__syncwarp();", ""),
        "weak": ("wgmma_wait<1>();", "__syncwarp();", ""),
        "after": ("", "__syncwarp();", "wgmma_wait<0>(); sum = d[0] + d[1] + d[2] + d[3];"),
    }
    for name, (wait, barrier, late) in waits.items():
        source = PRODUCTS.replace("WAIT", wait).replace("BARRIER", barrier).replace("LATE", late)
        made[name] = []
        for schedule in SCHEDULES:
            host = CpuHost(1, schedule=schedule)
            out = host.output(128)
            host.launch(build(source, host), (1, 1, 1), (32, 1, 1), [out, host.upload(x)], shared=4096)
            made[name].append(host.download(out).tobytes())
    assert len(set(made["right"])) == 1
    for name in ("none", "weak", "after"):
        assert len(set(made[name])) > 1, name


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.words)
def test_reads_outside_inputs_are_one_line(build: Build, schedule: Schedule) -> None:
    """Behind inputs or before them, by the schedule; the host stays usable."""
    source = "void k(int* y, const int* x, int64_t at) { y[threadIdx.x] = x[at]; }"
    host = CpuHost(2, schedule=schedule)
    kernel = build(source, host)
    for n in (4, 1000, 1024, 5000):
        out, x = host.output(4), host.upload(np.arange(n, dtype=np.int32), "weights")
        for at in (0, n - 1):
            host.launch(kernel, (1, 1, 1), (1, 1, 1), [out, x, np.int64(at)])
            assert host.download(out).view(np.int32)[0] == at
        at, where = (-1, "4 bytes before") if schedule.wall_before else (n, "0 bytes past the end of")
        with pytest.raises(KernelFault) as said:
            host.launch(kernel, (1, 1, 1), (1, 1, 1), [out, x, np.int64(at)])
        assert str(said.value) == f"the kernel reads outside its buffers: {where} its weights ({4 * n:,} bytes)"


@pytest.mark.parametrize("n", [1000, 1 << 21])
def test_inputs_of_ordinary_launches_have_a_page_behind_them(n: int, build: Build) -> None:
    """However large they are: here 4,000 bytes and 8 MiB."""
    host = CpuHost(1)
    kernel = build("void k(int* y, const int* x, int64_t at) { y[threadIdx.x] = x[at]; }", host)
    out, x = host.output(4), host.upload(np.arange(n, dtype=np.int32), "weights")
    host.launch(kernel, (1, 1, 1), (1, 1, 1), [out, x, np.int64(n - 1)])
    assert host.download(out).view(np.int32)[0] == n - 1
    with pytest.raises(KernelFault, match="reads outside its buffers: 0 bytes past the end of its weights"):
        host.launch(kernel, (1, 1, 1), (1, 1, 1), [out, x, np.int64(n)])


FAULTS = {
    "a null pointer": "void k(int* y, const int* x) { y[0] = *(const int*)(8 * (int64_t)x[1]); }",
    "the kernel divides an integer by zero": "void k(int* y, const int* x) { y[0] = 7 / (x[0] - 1); }",
    "overflows its stack": """int f(volatile int* p, int n) {
            volatile int a[512];
            a[n % 512] = n;
            return n ? f(a, n - 1) + a[0] : p[0];
        }
        extern "C" __global__ void k(int* y, const int* x) { volatile int b[8]; y[0] = f(b, 1000); }""",
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("words", FAULTS)
def test_faults_of_the_processor_end_the_launch_alone(build: Build, words: str, workers: int) -> None:
    host = CpuHost(workers)
    x = np.array([1, 0, 0, 0], np.int32)
    for _ in range(2):
        with pytest.raises(KernelFault, match=words):
            run(host, build(FAULTS[words], host), 64, 32, np.empty(1, np.int32), x)
    right = "void k(int* y, const int* x) { if (threadIdx.x + blockIdx.x == 0) y[0] = x[0]; }"
    assert run(host, build(right, host), 64, 32, np.empty(1, np.int32), x)[0] == 1
