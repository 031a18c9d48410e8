"""The CPU host runs threads, warps, barriers and shared memory as a GPU does."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.hosts.base import Host
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.memory import POISON
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import KernelFault, NotTried
from tests.support.short_kernels import Build, run, with_kernel
from tests.support.tools import ROOT

REDUCTION = """void k(int64_t* y, const int* x, int rounds) {
    __shared__ int64_t part[1024];
    const int t = threadIdx.x, n = blockDim.x;
    for (int r = 0; r < rounds; ++r) {
        part[t] = (int64_t)x[blockIdx.x * n + t] * (r + 1);
        __syncthreads();
        for (int width = 512; width > 0; width /= 2) {
            if (t < width && t + width < n) part[t] += part[t + width];
            __syncthreads();
        }
        if (t == n - 1) y[blockIdx.x * rounds + r] = part[0];  // not the thread that wrote it
        __syncthreads();
    }
}
"""


@pytest.mark.parametrize("threads", [1, 2, 3, 31, 32, 33, 64, 255, 256, 500, 1023, 1024])
@pytest.mark.parametrize("workers", [1, 2])
def test_block_wide_reduction(build: Build, threads: int, workers: int) -> None:
    host = CpuHost(workers)
    x = np.random.default_rng(threads).integers(-(2**31), 2**31, (13, threads)).astype(np.int32)
    got = run(host, build(REDUCTION, host), 13, threads, np.empty((13, 3), np.int64), x, np.int32(3))
    np.testing.assert_array_equal(got, x.sum(axis=1, dtype=np.int64)[:, None] * [1, 2, 3])


LOG = """void k(int* log, int* at, int rounds) {
    for (int r = 0; r < rounds; ++r) {
        log[at[0]++] = threadIdx.x + 1000 * r;
        __syncthreads();
    }
}
"""


def in_turn(threads: int, rounds: int) -> list[int]:
    """The log: warps in turn, each until all its threads wait. The last one at a barrier goes on at once."""
    made, passed, arrived, released = list[int](), [0] * threads, list[int](), set(range(threads))
    while released:
        for first in range(0, threads, 32):
            warp = range(first, min(first + 32, threads))
            while not released.isdisjoint(warp):
                for t in warp:
                    while t in released:
                        released.discard(t)
                        if passed[t] < rounds:
                            made.append(t + 1000 * passed[t])
                            passed[t] += 1
                            arrived.append(t)
                        if len(arrived) == threads:
                            released, arrived = set(arrived), []
    return made


@pytest.mark.parametrize("threads", [1, 32, 40, 96, 256])
def test_threads_run_in_turn(build: Build, threads: int) -> None:
    """Whichever detours a switch takes."""
    host, made = CpuHost(1), in_turn(threads, 6)
    log = run(host, build(LOG, host), 1, threads, np.empty(len(made), np.int32), np.zeros(1, np.int32), np.int32(6))
    assert log.tolist() == made


# Each warp makes a number of rounds of its own, so that no warp can lean on another's exchanges; three kinds of
# exchange in a row, with and without a barrier of the warp between them.
SHUFFLES = """void k(WORD* y, const WORD* x, int rounds) {
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, left = blockDim.x - 32 * warp, n = left < 32 ? left : 32;
    WORD v = x[t];
    for (int r = 0; r < rounds + warp; ++r) {
        v = 3 * v + __shfl_sync(0xFFFFFFFF, v, (7 * lane + r) % n);
        if (n == 32) v = 5 * v + __shfl_xor_sync(0xFFFFFFFF, v, r % 32);
        if (r % 3 == 0) __syncwarp();
        if (n == 32) v = 7 * v + __shfl_down_sync(0xFFFFFFFF, v, r % 32);
        if (n == 32) v = v + __shfl_down_sync(0xFFFFFFFF, v, r % 8, 8) + __shfl_sync(0xFFFFFFFF, v, r, 16);
    }
    y[t] = v;
}
"""


def shuffled(x: np.ndarray, rounds: int) -> np.ndarray:
    out = x.copy()
    for warp in range(-(-len(x) // 32)):
        v = out[32 * warp : 32 * warp + 32]
        n = len(v)
        lane = np.arange(n)
        for r in range(rounds + warp):
            v = 3 * v + v[(7 * lane + r) % n]
            if n == 32:
                v = 5 * v + v[lane ^ (r % 32)]
                v = 7 * v + v[np.where(lane + r % 32 < 32, lane + r % 32, lane)]
                down = np.where(lane % 8 + r % 8 < 8, lane + r % 8, lane)
                v = v + v[down] + v[lane // 16 * 16 + r % 16]
        out[32 * warp : 32 * warp + 32] = v
    return out


@pytest.mark.parametrize(("c_type", "dtype"), [("uint32_t", np.uint32), ("uint64_t", np.uint64)])
def test_warp_exchanges(build: Build, c_type: str, dtype: type) -> None:
    """Words of 4 and 8 bytes; whole warps and a last one of 1 to 31 lanes."""
    host = CpuHost(1)
    kernel = build(SHUFFLES.replace("WORD", c_type), host)
    for threads in (1, 31, 32, 33, 64, 100, 1024):
        x: np.ndarray = np.random.default_rng(threads).integers(0, 2**32, threads).astype(dtype)
        got = run(host, kernel, 1, threads, x, x, np.int32(40))
        np.testing.assert_array_equal(got, shuffled(x, 40))


def test_floats_pass_through_a_warp(build: Build) -> None:
    """Every bit of a float, NaN payloads and -0 too."""
    host = CpuHost(1)
    kernel = build(
        "void k(float* y, const float* x) { y[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 31); }", host
    )
    x = np.random.default_rng(0).integers(0, 2**32, 32).astype(np.uint32)
    x[:3] = 0x80000000, 0x7FC01234, 0x00000001
    np.testing.assert_array_equal(run(host, kernel, 1, 32, x, x), x[np.arange(32) ^ 31])


def test_bits_of_a_float_as_an_integer(build: Build) -> None:
    """Every bit stays as it is: NaN payloads, -0, subnormals."""
    host = CpuHost(1)
    flipped = "__int_as_float(__float_as_int(x[threadIdx.x]) ^ (int)0x80000000)"
    kernel = build(f"void k(float* y, const float* x) {{ y[threadIdx.x] = {flipped}; }}", host)
    x = np.random.default_rng(0).integers(0, 2**32, 32).astype(np.uint32)
    x[:4] = 0x80000000, 0x7FC01234, 0xFFC01234, 0x00000001
    np.testing.assert_array_equal(run(host, kernel, 1, 32, x, x), x ^ np.uint32(1 << 31))


def test_exited_threads_are_not_waited_for(build: Build) -> None:
    """Thread t leaves after t % 5 barriers, and lanes of a warp leave before others exchange."""
    source = """void k(int* y, int keep) {
        __shared__ int count[5];
        const int t = threadIdx.x;
        if (t < 5) count[t] = 0;
        __syncthreads();
        if (t >= keep) return;
        for (int r = 0; r < t % 5; ++r) {
            count[r] += 1;
            __syncthreads();
        }
        if (t % 5 < 4) return;
        y[t / 5] = count[0] * 1000 + count[3] + __shfl_sync(~0u, 0, t % 32);  // of itself: others may have exited
    }"""
    host = CpuHost(1)
    kernel = build(source, host)
    for keep in (5, 40, 63, 200):
        r = np.arange(keep) % 5
        got = run(host, kernel, 1, 200, np.empty(keep // 5, np.int32), np.int32(keep))
        np.testing.assert_array_equal(got, (r > 0).sum() * 1000 + (r > 3).sum())


SCHEDULES = [None, Schedule(), Schedule("descending"), *(Schedule("seeded", seed) for seed in range(1, 7))]


@pytest.fixture(params=SCHEDULES, ids=lambda schedule: "ordinary" if schedule is None else schedule.words)
def scheduled(request: pytest.FixtureRequest) -> Host:
    """The host under each kind of schedule; of six seeds, some have warps that precede others."""
    return CpuHost(1) if request.param is None else CpuHost(1).scheduled(request.param)


def test_lanes_that_exit_between_exchanges(build: Build, scheduled: Host) -> None:
    """Each lane leaves before one of the exchanges, before or after others arrive there. Lanes that read it from then
    on get the schedule's fill, and nothing from an earlier exchange."""
    source = """void k(uint32_t* y, const uint32_t* x, int rounds) {
        const int t = threadIdx.x, lane = t % 32, left = blockDim.x - (t - lane), n = left < 32 ? left : 32;
        uint32_t v = x[t];
        for (int r = 0; r < rounds && (lane == 5 || r != (7 * t + t / 32) % 11 + 3); ++r) {
            const uint32_t got = __shfl_sync(~0u, v, (lane + 1 + r) % n);
            v = 3 * v + got;
            if (r == 2) __syncthreads();
        }
        y[t] = v;
    }"""
    threads, rounds = 100, 16
    x = np.random.default_rng(0).integers(0, 2**32, threads).astype(np.uint32)
    schedule = scheduled.schedule if isinstance(scheduled, CpuHost) else None
    fill = np.uint32((schedule or Schedule()).fill * 0x01010101)
    expected = x.copy()
    for t in range(0, threads, 32):
        v = expected[t : t + 32]
        lane = np.arange(len(v))
        leaves = np.where(lane == 5, rounds, (7 * (t + lane) + t // 32) % 11 + 3)
        for r in range(rounds):
            source_lane = (lane + 1 + r) % len(v)
            got = np.where(leaves[source_lane] > r, v[source_lane], fill)
            v[leaves > r] = (3 * v + got)[leaves > r]
    got = run(scheduled, build(source, scheduled), 1, threads, x, x, np.int32(rounds))
    np.testing.assert_array_equal(got, expected)


def test_parts_of_a_warp_in_divergent_branches(build: Build, scheduled: Host) -> None:
    """The branches exchange different numbers of values, by masks of their own; then all lanes meet again."""
    source = """void k(uint32_t* y, const uint32_t* x, int rounds) {
        __shared__ uint32_t s[96];
        const int t = threadIdx.x, lane = t % 32;
        uint32_t v = x[t];
        if (lane % 3 == 0) {
            const unsigned mask = 0x49249249;
            for (int r = 0; r < rounds; ++r) v = 3 * v + __shfl_sync(mask, v, 3 * ((lane / 3 + r) % 11));
        } else if (lane != 31) {
            const unsigned mask = 0x36DB6DB6;
            for (int r = 0; r < 2 * rounds; ++r) {
                s[t] = v;
                __syncwarp(mask);
                v = 5 * v + s[t - lane + (lane % 3 == 1 ? lane + 1 : lane - 1)];
                __syncwarp(mask);
            }
        }
        y[t] = v + __shfl_xor_sync(~0u, v, 1) + __popc(__ballot_sync(~0u, v & 1));
    }"""
    threads, rounds = 96, 9
    x = np.random.default_rng(1).integers(0, 2**32, threads).astype(np.uint32)
    v = x.reshape(3, 32).copy()
    for r in range(rounds):
        v[:, ::3] = 3 * v[:, ::3] + v[:, 3 * ((np.arange(11) + r) % 11)]
    pairs = v[:, 1:31].reshape(3, 10, 3)[:, :, :2]  # lanes 1 and 2, 4 and 5, …; 31 takes no part
    for _ in range(2 * rounds):
        pairs[:] = 5 * pairs + pairs[:, :, ::-1]
    v[:, 1:31].reshape(3, 10, 3)[:, :, :2] = pairs
    expected = v + v[:, np.arange(32) ^ 1] + (v & 1).sum(axis=1, dtype=np.uint32)[:, None]
    got = run(scheduled, build(source, scheduled), 1, threads, x, x, np.int32(rounds))
    np.testing.assert_array_equal(got, expected.reshape(-1))


def test_an_exchange_that_one_lane_skips(build: Build, scheduled: Host) -> None:
    """31 of 32 lanes wait for one that waits for its block."""
    source = """void k(uint32_t* y, int skips) {
        const int t = threadIdx.x;
        uint32_t v = t;
        if (t != skips) v += __shfl_xor_sync(~0u, v, 1);
        __syncthreads();
        y[t] = v;
    }"""
    kernel, out = build(source, scheduled), np.empty(64, np.uint32)
    for skips in (0, 17, 31, 40):
        error = in_time(lambda: run(scheduled, kernel, 1, 64, out, np.int32(skips)))  # noqa: B023
        assert isinstance(error, KernelFault)
        assert "barrier" in str(error)
    t = np.arange(64, dtype=np.uint32)
    np.testing.assert_array_equal(run(scheduled, kernel, 1, 64, out, np.int32(-1)), t + (t ^ 1))


def test_blocks_and_grids_of_three_dimensions(build: Build) -> None:
    source = """void k(uint32_t* y) {
        const uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
        const uint32_t t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        const uint32_t b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        __syncthreads();  // indices must survive the switch to another thread and back
        const uint32_t lane = __shfl_sync(~0u, t, 5);  // lanes are counted over the whole block
        uint32_t* at = y + 8 * (b * threads + t);
        at[0] = threadIdx.x, at[1] = threadIdx.y, at[2] = threadIdx.z;
        at[3] = blockIdx.x, at[4] = blockIdx.y, at[5] = blockIdx.z;
        at[6] = lane, at[7] = gridDim.x * 10000 + gridDim.y * 100 + gridDim.z;
    }"""
    for workers in (1, 2):
        host = CpuHost(workers)
        grid, block = (3, 5, 2), (8, 4, 6)
        out = host.output(4 * 8 * 30 * 192)
        host.launch(build(source, host), grid, block, [out])
        got = host.download(out).view(np.uint32).reshape(2, 5, 3, 6, 4, 8, 8)
        bz, by, bx, tz, ty, tx = np.indices((2, 5, 3, 6, 4, 8))
        lane = (tx + 8 * (ty + 4 * tz)) // 32 * 32 + 5
        np.testing.assert_array_equal(got, np.stack([tx, ty, tz, bx, by, bz, lane, 0 * tx + 30502], axis=-1))


def test_shared_memory_begins_unset(build: Build) -> None:
    """As on a GPU, what no thread has written is no zero; nor is it what the launch before has left."""
    source = """void k(float* y, int write) {
        __shared__ float some[96];
        DYNAMIC_SHARED(more);
        const int t = threadIdx.x;
        if (t < write) some[t] = 1.0f, ((float*)more)[t] = 2.0f;
        __syncthreads();
        y[64 * blockIdx.x + t] = t < 32 ? some[t] : ((float*)more)[t - 32];
    }"""
    for workers, change in ((1, "#1"), (2, "#2"), (1, "#3")):  # a new library each: what one finds is not another's
        host = CpuHost(workers)
        kernel = build(f"{source}  // {change}", host)
        for write in (0, 32, 5):
            out = host.output(4 * 64 * 40)
            host.launch(kernel, (40, 1, 1), (64, 1, 1), [out, np.int32(write)], shared=128)
            got = host.download(out).view(np.float32).reshape(-1, 2, 32)
            assert (got[:, :, :write] == [[[1], [2]]]).all()
            assert np.isnan(got[:, :, write:]).all()


@pytest.mark.parametrize(("given", "at", "fine"), [
    (400, 0, True), (400, 399, True), (400, 400, False), (400, -1, False), (0, 0, False), (401, 400, True),
    (232448, 232447, True), (232448, 232448, False), (1024, 200_000, False),
])  # fmt: skip
def test_bytes_outside_dynamic_shared_memory(build: Build, given: int, at: int, fine: bool) -> None:
    source = """void k(int* y, int at) {
        DYNAMIC_SHARED(room);
        if (blockIdx.x == 37) room[at] = 7;
        y[blockIdx.x] = (uintptr_t)room % 1024;
    }"""
    for workers in (1, 2):
        host = CpuHost(workers)
        kernel, out = build(source, host), host.output(4 * 40)
        with nullcontext() if fine else pytest.raises(KernelFault, match=f"outside its {given} bytes of dynamic"):
            host.launch(kernel, (40, 1, 1), (1, 1, 1), [out, np.int32(at)], shared=given)
        assert not host.download(out).view(np.int32).any()


@pytest.mark.parametrize("at", [-600_000, 600_000, 8_000_000])
def test_far_outside_dynamic_shared_memory(build: Build, at: int) -> None:
    """Nobody's memory is there: reading it is a fault, as it is on a GPU, and ends the launch alone."""
    host = CpuHost(1)
    kernel = build("void k(int* y, int at) { DYNAMIC_SHARED(room); y[0] = room[at]; }", host)
    with pytest.raises(KernelFault, match="the kernel reads outside its buffers"):
        host.launch(kernel, (1, 1, 1), (1, 1, 1), [host.output(4), np.int32(at)], shared=400)
    host.launch(kernel, (1, 1, 1), (1, 1, 1), [host.output(4), np.int32(0)], shared=400)


def in_time(call: Callable[[], object], seconds: float = 30) -> BaseException | None:
    """What `call` raised; fails where it is still running after `seconds`, which no later test would survive."""
    raised: list[BaseException] = []

    def target() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the launch hangs"
    return raised[0] if raised else None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("wrong_block", [0, 63])
def test_barrier_that_some_threads_never_reach(build: Build, workers: int, wrong_block: int) -> None:
    """Thread 0 waits for its block, the others of its warp for that thread: a fault, not a hang. The host stays usable
    and no stack is left behind."""
    source = """void k(int* y, int wrong) {
        if (threadIdx.x == 0 && blockIdx.x == wrong) __syncthreads();
        else __syncwarp();
        y[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    }"""
    host = CpuHost(workers)
    kernel = build(source, host)
    out = np.empty((64, 64), np.int32)
    error = in_time(lambda: run(host, kernel, 64, 64, out, np.int32(wrong_block)))
    assert isinstance(error, KernelFault)
    assert "barrier" in str(error)
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(20):
        with pytest.raises(KernelFault):
            run(host, kernel, 64, 64, out, np.int32(wrong_block))
    assert len(Path("/proc/self/maps").read_text().splitlines()) < mappings + 60
    assert (run(host, kernel, 64, 64, out, np.int32(-1)) == 1).all()


def test_many_workers_with_large_blocks(roots: Callable[[str], Path]) -> None:
    """As on a machine of 64 cores: stacks for all of them would be more mappings than a process may have. In a process
    of its own, because it would die."""
    program = """if True:
        import sys, numpy as np
        from pathlib import Path
        from gguf_verify.hosts.cpu_host import CpuHost
        host = CpuHost(64)
        out = host.output(2048 * 8)
        x = host.upload(np.ones(2048 * 1024, np.int32))
        kernel = host.load(Path(sys.argv[1]), "k.cu", "k", {})
        host.launch(kernel, (2048, 1, 1), (1024, 1, 1), [out, x, np.int32(1)])
        assert (host.download(out).view(np.int64) == 1024).all()
    """
    command = [sys.executable, "-c", program, str(roots(REDUCTION))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_any_number_of_workers_gives_the_same_bits(build: Build) -> None:
    """A grid of more than 2^16 blocks; each works in shared memory that it must not share with another worker's."""
    source = """void k(float* y) {
        __shared__ float s[4];
        s[threadIdx.x] = 0.1f * blockIdx.x + threadIdx.x;
        __syncthreads();
        float acc = 0.0f;
        for (int i = 0; i < 4; ++i) acc = __fmaf_rn(s[i], s[3 - i], acc);
        y[(int64_t)blockIdx.x * 4 + threadIdx.x] = acc + threadIdx.x;
    }"""
    blocks = 2**16 + 77
    results = []
    for workers in (1, 2, 3):
        host = CpuHost(workers)
        results.append(run(host, build(source, host), blocks, 4, np.empty((blocks, 4), np.uint32)))
    assert (results[0] != POISON).all()
    assert len(np.unique(results[0])) > 2**15
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize(
    ("does", "adds"),
    [
        ("*y = __hadd(*y, __float2half(1))", False),
        ("atomicAdd((unsigned*)y, 1)", False),
        ("atomicAdd(y, __float2half(1))", True),
        ("atomicAdd((__half2*)y, __float2half2_rn(1))", True),
        ("atomicAdd((float*)y, 1)", True),
    ],
)
def test_only_a_kernel_that_adds_floats_runs_in_turn(build: Build, does: str, adds: bool) -> None:
    """Other launches take several threads of the machine."""
    host = CpuHost(2)
    source = f'void u() {{}}\n#include <cuda_fp16.h>\nextern "C" __global__ void k(__half* y) {{ {does}; }}'
    kernel = build(source, host)
    run(host, kernel, 1, 1, np.zeros(2, np.uint32))
    assert host.adds_floats == adds


def test_the_first_block_that_fails_is_reported(build: Build) -> None:
    """Whatever the other threads of this machine meet."""
    host = CpuHost(2)
    kernel = build("void k(char* y, const char* x) { if (blockIdx.x > 500) y[0] = x[blockIdx.x]; }", host)
    said = set[str]()
    for _ in range(10):
        with pytest.raises(KernelFault) as found:
            run(host, kernel, 3000, 1, np.empty(8, np.int32), np.zeros(16, np.int8))
        said.add(str(found.value))
    assert said == {"the kernel reads outside its buffers: 485 bytes past the end of its input (16 bytes)"}


@pytest.mark.parametrize("grid", [(300, 1, 1), (40, 50, 1), (2, 200, 1), (12, 10, 11)])
def test_some_of_the_blocks(build: Build, grid: tuple[int, int, int]) -> None:
    """About the requested number, more of the border than its share, the same for the same seed."""
    source = "void k(uint32_t* y) { y[blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)] = 1; }"
    host, blocks, ran = CpuHost(2), math.prod(grid), []
    kernel = build(source, host)
    for seed in (1, 2, 1):
        host.some = 100, seed
        buffer = host.output(4 * blocks)
        host.launch(kernel, grid, (1, 1, 1), [buffer])
        ran.append(host.download(buffer).view(np.uint32).reshape(grid[::-1]) == 1)
    first, second, again = ran
    assert (first == again).all()
    assert (first != second).any()
    at = np.indices(first.shape)
    ends = [((a == 0) | (a == n - 1)) for a, n in zip(at, first.shape, strict=True) if n > 1]
    border, corners = np.any(ends, axis=0), np.all(ends, axis=0)
    assert first[corners].all()
    assert 60 <= first.sum() <= 150
    inside = min(50, (~border).sum())
    assert inside - 30 <= (first & ~border).sum() <= inside + 60


@pytest.mark.parametrize("threads", [1, 2])
def test_the_blocks_that_wrote_watched_numbers_are_among_some(build: Build, threads: int) -> None:
    """In a grid of one dimension, whose order is not known."""
    host, blocks = CpuHost(threads), 3001
    kernel = build("void k(uint32_t* y) { y[blockIdx.x * 1009 % 3001] = 1; }", host)
    buffer, watched = host.output(4 * blocks), [3, 70, 1500, 2999]
    host.watches = [buffer.address + 4 * at for at in watched]
    host.launch(kernel, (blocks, 1, 1), (1, 1, 1), [buffer])
    host.watches, host.some = (), (10, 1)
    assert {at * pow(1009, -1, blocks) % blocks for at in watched} <= {*host.writers}
    assert len(host.writers) <= threads * len(watched)
    buffer = host.output(4 * blocks)
    host.launch(kernel, (blocks, 1, 1), (1, 1, 1), [buffer])
    assert (host.download(buffer).view(np.uint32)[watched] == 1).all()


@pytest.mark.parametrize("does", ["atomicAdd(y + 1, 1)", "(void)__ldcv(y + 1)"])
def test_some_of_the_blocks_must_not_depend_on_others(build: Build, does: str) -> None:
    host = CpuHost(1)
    kernel = build(f"void k(uint32_t* y) {{ if (blockIdx.x == 0) {does}; else y[blockIdx.x + 2] = 1; }}", host)
    run(host, kernel, 64, 32, np.empty(80, np.uint32))
    host.some = 8, 1
    with pytest.raises(NotTried, match="wait for others"):
        run(host, kernel, 64, 32, np.empty(80, np.uint32))


@pytest.mark.needs("x86-64")  # other machines use ucontext anyway
def test_ucontext_fibers(tmp_path: Path) -> None:
    """The switch for machines other than x86-64, compiled here."""
    shuffles = SHUFFLES.replace("WORD", "uint32_t").replace("void k", "void shuffles")
    root = with_kernel(tmp_path, REDUCTION + 'extern "C" __global__ ' + shuffles)
    for name in ("runner.hpp", "standard.hpp"):
        header = root / "emulator" / name
        header.write_text(header.read_text().replace("defined(__x86_64__)", "0"))
    host = CpuHost(1)
    x = np.arange(7 * 100, dtype=np.int32)
    got = run(host, host.load(root, "k.cu", "k", {}), 7, 100, np.empty((7, 2), np.int64), x, np.int32(2))
    np.testing.assert_array_equal(got, x.reshape(7, 100).sum(axis=1)[:, None] * [1, 2])
    u = np.arange(70, dtype=np.uint32) * 12345
    kernel = host.load(root, "k.cu", "shuffles", {})
    np.testing.assert_array_equal(run(host, kernel, 1, 70, u, u, np.int32(40)), shuffled(u, 40))
