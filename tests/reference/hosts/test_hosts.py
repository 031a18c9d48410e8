"""The CPU host by itself: its header must run CUDA C++ as a GPU does. Short kernels, whose results NumPy knows."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats import FORMATS
from gguf_verify.hosts import HOSTS, CpuHost, auto_host, compiler, cupy_host, make_host
from gguf_verify.hosts.base import GUARD_BYTES, POISON
from gguf_verify.support import cache as support_cache
from gguf_verify.support.cache import tree_hash
from gguf_verify.support.errors import EnvironmentFault, KernelFault, UsageError
from gguf_verify.support.paths import kernel_root
from tests.support.tools import ROOT

Build = Callable[..., Any]


def with_kernel(folder: Path, source: str) -> Path:
    """A copy of the kernels' folder in which `k.cu` holds this source."""
    root = folder / "kernels"
    shutil.copytree(kernel_root(), root)
    (root / "k.cu").write_text('#include "common.cuh"\nextern "C" __global__ ' + source)
    return root


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """source → a folder that holds it as `k.cu`, the same one for the same source."""
    made: dict[str, Path] = {}

    def root(source: str) -> Path:
        if source not in made:
            made[source] = with_kernel(tmp_path_factory.mktemp("root"), source)
        return made[source]

    return root


@pytest.fixture
def build(roots: Callable[[str], Path]) -> Build:
    def load(source: str, host: CpuHost) -> Any:
        return host.load(roots(source), "k.cu", "k", {})

    return load


def run(host: CpuHost, kernel: Any, grid: int, block: int, out: np.ndarray, *args: Any) -> np.ndarray:
    """Launch with the output first; the output has the shape and type of `out`."""
    buffer = host.output(out.nbytes)
    uploaded = [host.upload(a) if isinstance(a, np.ndarray) else a for a in args]
    host.launch(kernel, (grid, 1, 1), (block, 1, 1), [buffer, *uploaded])
    return host.download(buffer).view(out.dtype).reshape(out.shape)


# -- barriers and warps ----------------------------------------------------------------------------------------------

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
        x = np.random.default_rng(threads).integers(0, 2**32, threads).astype(dtype)
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
        y[t / 5] = count[0] * 1000 + count[3] + __shfl_xor_sync(~0u, 0, 1);
    }"""
    host = CpuHost(1)
    kernel = build(source, host)
    for keep in (5, 40, 63, 200):
        r = np.arange(keep) % 5
        got = run(host, kernel, 1, 200, np.empty(keep // 5, np.int32), np.int32(keep))
        np.testing.assert_array_equal(got, (r > 0).sum() * 1000 + (r > 3).sum())


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
    """Nobody's memory is there: reading it is a crash, as it is a fault on a GPU."""
    host = CpuHost(1)
    kernel = build("void k(int* y, int at) { DYNAMIC_SHARED(room); y[0] = room[at]; }", host)
    child = os.fork()
    if not child:
        faulthandler.disable()
        host.launch(kernel, (1, 1, 1), (1, 1, 1), [host.output(4), np.int32(at)], shared=400)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


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
        from gguf_verify.hosts import CpuHost
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


@pytest.mark.needs("x86-64")  # other machines use ucontext anyway
def test_ucontext_fibers(tmp_path: Path) -> None:
    """The switch for machines other than x86-64, compiled here."""
    shuffles = SHUFFLES.replace("WORD", "uint32_t").replace("void k", "void shuffles")
    root = with_kernel(tmp_path, REDUCTION + 'extern "C" __global__ ' + shuffles)
    for name in ("cuda_on_cpu.hpp", "standard.hpp"):
        header = root / "emulator" / name
        header.write_text(header.read_text().replace("defined(__x86_64__)", "0"))
    host = CpuHost(1)
    x = np.arange(7 * 100, dtype=np.int32)
    got = run(host, host.load(root, "k.cu", "k", {}), 7, 100, np.empty((7, 2), np.int64), x, np.int32(2))
    np.testing.assert_array_equal(got, x.reshape(7, 100).sum(axis=1)[:, None] * [1, 2])
    u = np.arange(70, dtype=np.uint32) * 12345
    kernel = host.load(root, "k.cu", "shuffles", {})
    np.testing.assert_array_equal(run(host, kernel, 1, 70, u, u, np.int32(40)), shuffled(u, 40))


# -- guards and poison -----------------------------------------------------------------------------------------------

WRITE_A_BYTE = "void k(uint8_t* y, int64_t at) { y[at] = 7; }"


@pytest.mark.parametrize("nbytes", [1, 7, 64, 4096])
def test_bytes_outside_the_output(build: Build, nbytes: int) -> None:
    host = CpuHost(1)
    kernel = build(WRITE_A_BYTE, host)
    for at, counts in [
        (-1, "1 bytes before, 0 after"),
        (-GUARD_BYTES, "1 bytes before, 0 after"),
        (nbytes, "0 bytes before, 1 after"),
        (nbytes + GUARD_BYTES - 1, "0 bytes before, 1 after"),
    ]:
        with pytest.raises(KernelFault, match=counts):
            run(host, kernel, 1, 1, np.empty(nbytes, np.uint8), np.int64(at))
    for at in (0, nbytes - 1):
        assert run(host, kernel, 1, 1, np.empty(nbytes, np.uint8), np.int64(at))[at] == 7


def test_unwritten_elements_hold_poison(build: Build) -> None:
    host = CpuHost(1)
    got = run(host, build(WRITE_A_BYTE, host), 1, 1, np.empty(100, np.uint32), np.int64(4 * 41 + 2))
    assert (np.flatnonzero(got != POISON) == [41]).all()
    assert np.isnan(np.uint32(POISON).view(np.float32))


# -- arithmetic ------------------------------------------------------------------------------------------------------


def all_halves() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16)


def test_half_to_float(build: Build) -> None:
    host = CpuHost(1)
    kernel = build(
        "void k(float* y, const uint16_t* x) { const int i = blockIdx.x; y[i] = half_to_float(x[i]); }", host
    )
    got = run(host, kernel, 2**16, 1, np.empty(2**16, np.float32), all_halves())
    expected = all_halves().view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def floats_near_halves() -> np.ndarray:
    """Every half, every midpoint of two and their neighbours, in both signs; the edges of the range; random bits."""
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    midpoints = np.append((finite[1:] + finite[:-1]) / 2, 65520.0)
    exact = np.concatenate([finite, midpoints]).astype(np.float32)
    up, down = np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))
    edges = [65519.99, 65520, 65536, 3e38, np.inf, np.nan, 1e-45, 1e-40, 2**-25, 2**-24, 2**-14, 2**-126]
    values = np.concatenate([exact, up, down, np.array(edges, np.float32)])
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000).astype(np.uint32).view(np.float32)
    return np.concatenate([values, -values, bits])


def test_float_to_half(build: Build) -> None:
    host = CpuHost(1)
    source = """void k(uint16_t* y, const float* x, int64_t n) {
        for (int64_t i = blockIdx.x; i < n; i += gridDim.x) y[i] = float_to_half(x[i]);
    }"""
    x = floats_near_halves()
    got = run(host, build(source, host), 64, 1, np.empty(len(x), np.uint16), x, np.int64(len(x)))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    expected[np.isnan(x)] = 0x7FFF  # what a GPU's cvt.rn.f16.f32 makes of every NaN
    np.testing.assert_array_equal(got, expected)
    assert (got == 0x7C00).any()


def test_byte_perm(build: Build) -> None:
    host, rng = CpuHost(1), np.random.default_rng(3)
    source = """void k(uint32_t* y, const uint32_t* a, const uint32_t* b, const uint32_t* s, int n) {
        for (int i = 0; i < n; ++i) y[i] = __byte_perm(a[i], b[i], s[i]);
    }"""
    a, b, s = (rng.integers(0, 1 << 32, 500, np.uint32) for _ in range(3))
    got = run(host, build(source, host), 1, 1, np.empty(500, np.uint32), a, b, s, np.int32(500))
    both = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], axis=1)
    chosen = np.stack([s >> 4 * i & 7 for i in range(4)], axis=1)
    np.testing.assert_array_equal(got, np.take_along_axis(both, chosen, axis=1).copy().view(np.uint32)[:, 0])


def test_mma(build: Build) -> None:
    """Against a product of integers; warps of a block do not mix."""
    host, rng = CpuHost(1), np.random.default_rng(4)
    source = """void k(int*, const int8_t*, const int8_t*);
#include "gemm/mma.cuh"
extern "C" __global__ void k(int* y, const int8_t* a, const int8_t* b) {
        const int warp = threadIdx.x / 32, r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        const uint32_t* rows = (const uint32_t*)(a + 512 * warp);
        const uint32_t* columns = (const uint32_t*)(b + 256 * warp);
        const uint32_t *upper = rows + 8 * r + c, *lower = upper + 64;
        const uint32_t of_a[4] = {upper[0], lower[0], upper[4], lower[4]};
        const uint32_t of_b[2] = {columns[8 * r + c], columns[8 * r + c + 4]};
        int d[4];
        mma(d, of_a, of_b, 100);
        for (int i = 0; i < 4; ++i) y[128 * warp + 8 * (r + i / 2 * 8) + 2 * c + i % 2] = d[i];
    }"""
    a, b = rng.integers(-128, 128, (3, 16, 32), np.int8), rng.integers(-128, 128, (3, 8, 32), np.int8)
    got = run(host, build(source, host), 1, 96, np.empty((3, 16, 8), np.int32), a, b)
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1) + 100)


def test_buffers_are_aligned() -> None:
    """Wherever the array lies; a kernel may load 16 bytes at a time."""
    whole = np.arange(200, dtype=np.uint8)
    for at in range(32):
        buffer = CpuHost(1).upload(whole[at : at + 100])
        assert buffer.address % 16 == 0
        np.testing.assert_array_equal(buffer.array, whole[at : at + 100])


@pytest.mark.parametrize("flags", [[], ["-mno-sse4.1"]], ids=["simd", "portable"])
def test_dp4a(build: Build, flags: list[str]) -> None:
    if flags and "x86_64" not in os.uname().machine:
        pytest.skip("the SIMD path is x86's")
    host = CpuHost(1, flags)
    source = """void k(int* y, const int* a, const int* b, const int* c, int n) {
        for (int i = 0; i < n; ++i) y[i] = __dp4a(a[i], b[i], c[i]);
    }"""
    rng = np.random.default_rng(2)
    extreme = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    a, b = (np.concatenate([rng.choice(extreme, (3000, 4)), rng.integers(-128, 128, (3000, 4)).astype(np.int8)])
            for _ in range(2))  # fmt: skip
    a[0] = b[0] = b[1] = -128
    a[1] = 127
    c = rng.integers(-(2**30), 2**30, len(a)).astype(np.int32)
    got = run(host, build(source, host), 1, 1, c, a.view(np.int32), b.view(np.int32), c, np.int32(len(a)))
    np.testing.assert_array_equal(got, c + (a.astype(np.int32) * b).sum(axis=1))


def test_roundings_are_those_asked_for(build: Build) -> None:
    """One rounding in __fmaf_rn, two in a·b + c (never contracted), and subnormal results are kept."""
    source = """void k(float* y, const float* a, const float* b, const float* c, int n) {
        for (int i = 0; i < n; ++i) {
            y[i] = __fmaf_rn(a[i], b[i], c[i]);
            y[n + i] = __fadd_rn(__fmul_rn(a[i], b[i]), c[i]);
            y[2 * n + i] = a[i] * b[i] + c[i];
            y[3 * n + i] = __fdiv_rn(a[i], b[i]);
        }
    }"""
    host = CpuHost(1)
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 5000)).astype(np.float32)
    # nearly cancels, so that a rounding too many shows
    c = (-(a * b) * (1 + rng.integers(-2, 3, 5000) * 2.0**-23)).astype(np.float32)
    a[:1000] *= np.float32(2**-70)
    b[:1000] *= np.float32(2**-70)
    a[:1000:2] *= np.float32(2**-8)
    c[:1000] = rng.integers(-9, 10, 1000) * np.float32(2**-149)
    got = run(host, build(source, host), 1, 1, np.empty((4, 5000), np.float32), a, b, c, np.int32(5000))
    # 24 + 24 bits and a near-cancelling c fit float64's 53 (and below 2^-126, its range), so one rounding is left
    fused = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (fused != a * b + c).mean() > 0.3
    assert ((fused != 0) & (np.abs(fused) < 2**-126)).any()
    for row, expected in zip(got, [fused, a * b + c, a * b + c, a / b], strict=True):
        np.testing.assert_array_equal(row.view(np.uint32), expected.view(np.uint32))


# -- compiling and its faults ----------------------------------------------------------------------------------------


def test_compile_error(tmp_path: Path) -> None:
    root = with_kernel(tmp_path, "void k(float* y) { y[0] = no_such_name; }")
    with pytest.raises(EnvironmentFault, match=r"could not compile k\.cu: .*k\.cu:2:\d+: .*no_such_name") as caught:
        CpuHost(1).load(root, "k.cu", "k", {})
    assert "\n" not in str(caught.value)


def test_entry_that_is_not_there(roots: Callable[[str], Path]) -> None:
    with pytest.raises(EnvironmentFault, match="could not compile"):
        CpuHost(1).load(roots(WRITE_A_BYTE), "k.cu", "other", {})


def test_block_size_that_disagrees() -> None:
    with pytest.raises(EnvironmentFault, match="disagree about the size of a block"):
        CpuHost(1).load(kernel_root(), "gemm/q8_1/01_naive.cu", "gemm", {**FORMATS["Q4_0"].macros, "BLOCK_BYTES": "20"})


@pytest.mark.parametrize("variable", ["CXX", "PATH"])
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, "/nonexistent")
    with pytest.raises(EnvironmentFault, match=r"no C\+\+ compiler found"):
        CpuHost(1).load(kernel_root(), "quantize/q8_1.cu", "quantize", {})
    with pytest.raises(EnvironmentFault, match=r"no C\+\+ compiler found"):
        CpuHost(1).describe()


def test_compiler_that_fails_in_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    silent = tmp_path / "cxx"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("CXX", str(silent))
    with pytest.raises(EnvironmentFault, match="could not compile"):
        CpuHost(1).load(roots(WRITE_A_BYTE), "k.cu", "k", {})


def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build is found again by another host and from another folder; any change of its inputs gives a new one."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(support_cache, "cache_dir", lambda: cache)
    compiled: list[str] = []
    original = compiler._compile

    def counting(root: Path, unit: str, options: Sequence[str]) -> bytes:
        compiled.append(unit)
        return original(root, unit, options)

    monkeypatch.setattr(compiler, "_compile", counting)
    one = with_kernel(tmp_path / "one", WRITE_A_BYTE)
    same = with_kernel(tmp_path / "same", WRITE_A_BYTE)
    for root in (one, one, same):
        host = CpuHost(1)
        assert host.load(root, "k.cu", "k", {}) is host.load(root, "k.cu", "k", {})
    assert len(compiled) == len(list(cache.glob("*.so"))) == 1

    changed = with_kernel(tmp_path / "changed", WRITE_A_BYTE.replace("7", "8"))
    host = CpuHost(1)
    assert run(host, host.load(changed, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0)) == 8
    assert len(compiled) == 2

    header = with_kernel(tmp_path / "header", WRITE_A_BYTE)
    with (header / "emulator" / "cuda_on_cpu.hpp").open("a") as f:
        f.write("// changed\n")
    assert len({tree_hash(r) for r in (one, same, changed, header)}) == 3
    host.load(one, "k.cu", "k", {"UNUSED": "1"})
    CpuHost(1, ["-O1"]).load(one, "k.cu", "k", {})
    assert len(compiled) == len(list(cache.glob("*.so"))) == 4


@pytest.mark.parametrize("damage", ["none", "missing", "cut short", "empty"])
def test_precompiled_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path], damage: str
) -> None:
    """A kernel is the same bytes with and without it, and whatever becomes of it; what GCC chokes on is made anew."""
    if "Free Software Foundation" not in compiler._said_of_version(compiler.compiler()):
        assert compiler.precompiled() is None
        pytest.skip("only GCC's are used")
    commands: list[Sequence[str]] = []
    original = compiler._run

    def noting(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return original(command)

    there = compiler.precompiled()
    assert there is not None
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    for path in (there, compiler._made_of(there)):
        shutil.copy(path, tmp_path)
    made = tmp_path / compiler._made_of(there).name
    whole = made.stat().st_size
    assert whole > 1e6
    if damage == "missing":
        made.unlink()
    elif damage != "none":
        os.truncate(made, {"cut short": whole // 2, "empty": 0}[damage])

    monkeypatch.setattr(compiler, "_run", noting)
    unit = '#include "k.cu"\nCPU_KERNEL(k)\n'
    with_it = compiler._compile(roots(WRITE_A_BYTE), unit, ["-DFORMAT=Q4_0"])
    with_header = ["-include" in command for command in commands]
    assert with_header == ([True, False] if damage == "cut short" else [True])
    assert made.exists() == (damage != "cut short")
    monkeypatch.setattr(compiler, "precompiled", lambda _flags: None)
    assert compiler._compile(roots(WRITE_A_BYTE), unit, ["-DFORMAT=Q4_0"]) == with_it
    assert "-include" not in commands[-1]


def test_precompiled_header_of_other_flags(monkeypatch: pytest.MonkeyPatch, roots: Callable[[str], Path]) -> None:
    """Flags have one each, macros none; a kernel is the same bytes with and without it."""
    if compiler.precompiled() is None:
        pytest.skip("only GCC's are used")
    unit, options, asked = '#include "k.cu"\nCPU_KERNEL(k)\n', ["-O1", "-DFORMAT=Q4_0"], []
    original = compiler.precompiled

    def noting(flags: Sequence[str]) -> Path | None:
        asked.append(original(flags))
        return asked[-1]

    monkeypatch.setattr(compiler, "precompiled", noting)
    with_it = compiler._compile(roots(WRITE_A_BYTE), unit, options)
    assert asked == [original(["-O1"])]
    assert asked != [original()]
    monkeypatch.setattr(compiler, "precompiled", lambda _flags: None)
    assert compiler._compile(roots(WRITE_A_BYTE), unit, options) == with_it


def test_no_precompiled_header_but_gccs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_said_of_version", lambda _: "clang version 17")
    assert compiler.precompiled() is None


def test_cache_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nowhere to write, or a user without a home: a temporary folder."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(support_cache.tempfile, "mkdtemp", lambda prefix: str(made))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert support_cache.cache_dir.__wrapped__() == made

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(support_cache.Path, "home", homeless)
    assert support_cache.cache_dir.__wrapped__() == made


# -- which host ------------------------------------------------------------------------------------------------------


def test_choice_of_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_host, "gpu_fault", lambda: "no device in this test")
    assert list(HOSTS) == ["gpu", "cpu"]
    assert auto_host() == ("cpu", ["no device in this test"])
    assert isinstance(make_host("auto"), CpuHost)
    assert make_host("auto").chosen == "by auto: no device in this test"
    assert isinstance(make_host("cpu"), CpuHost)
    assert make_host("cpu").chosen == "as asked for"
    assert make_host("cpu", 3).threads == 3
    assert make_host("cpu").threads == len(os.sched_getaffinity(0))
    with pytest.raises(EnvironmentFault, match="no device in this test"):
        make_host("gpu")
    with pytest.raises(UsageError, match="auto, gpu, cpu"):
        make_host("cuda")
    monkeypatch.setattr(cupy_host, "gpu_fault", lambda: None)
    assert auto_host() == ("gpu", [])


def test_description_names_the_machine() -> None:
    said = CpuHost(2).describe()
    assert said.startswith("cpu: ")
    assert "2 threads" in said
    assert compiler.cpu_name() in said
