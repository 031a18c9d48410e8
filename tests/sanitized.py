"""A program for a process of its own: runs GEMM kernels and the quantizer where a fault ends the process.

    python -m tests.sanitized '{"root": …, "cases": [["q8_1_naive", "Q4_0"], …], "flags": [compiler flags]}'

`root` is a copy of the kernels' folder, into which the cases are written as one kernel, `cases.cu`, so that a sanitizer
is compiled in once and not once a kernel and format. Every input is an allocation of its own that ends with its last
byte. The results must be the oracle's bits; then the same kernels run at indices past 2^31.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness.formats import FORMATS, BlockFormat
from harness.hosts import CpuHost
from harness.kernels import KERNELS, QUANTIZER, KernelSpec
from harness.semantics import SEMANTICS, product
from harness.semantics.activations import encode_q8_1

SHAPES = [(1, 1, 32), (1, 3, 96), (3, 1, 64), (2, 5, 288), (9, 61, 32)]

# A launch of one block that may stand for any block of a grid: a kernel sees only the indices it is given.
DISPATCH = """
template <class W, class X>
void call(void (*gemm)(const W*, const X*, float*, int64_t, int64_t, int64_t), const void* w, const void* x, void* y,
          int64_t M, int64_t N, int64_t K) {
    gemm((const W*)w, (const X*)x, (float*)y, M, N, K);
}

extern "C" __global__ void cases(int which, int64_t block, const void* w, const void* x, void* y, int64_t M, int64_t N,
                                 int64_t K) {
    if (block >= 0) blockIdx.x = (unsigned)block, gridDim.x = 0x7FFFFFFF;
    if (which < 0) quantize((const float*)x, (Q8_1*)y, M);
"""


def write_cases(root: Path, cases: list[tuple[str, str]]) -> None:
    unit = []
    for i, (kernel, fmt) in enumerate(cases):
        unit += [f"#define FORMAT {fmt}", f"#define BLOCK_BYTES {FORMATS[fmt].block_bytes}", f"#define gemm gemm_{i}"]
        unit += [f'#include "{KERNELS[kernel].file}"', "#undef FORMAT", "#undef BLOCK_BYTES", "#undef gemm"]
    unit += [f'#include "{QUANTIZER}"', DISPATCH]
    unit += [f"    if (which == {i}) call(gemm_{i}, w, x, y, M, N, K);" for i in range(len(cases))]
    (root / "cases.cu").write_text("\n".join([*unit, "}\n"]))


class Cases:
    """The cases of one root, compiled. Pointers are passed as numbers, because some are shifted."""

    def __init__(self, root: Path, cases: list[tuple[str, str]], flags: list[str]) -> None:
        write_cases(root, cases)
        self.host = CpuHost(1, flags)
        self.kernel = self.host.load(root, "cases.cu", "cases", {})

    def launch(self, which: int, block: int, blocks: int, w: int, x: int, y: int, m: int, n: int, k: int) -> None:
        pointers = [np.uint64(p % 2**64) for p in (w, x, y)]
        args = [np.int32(which), np.int64(block), *pointers, np.int64(m), np.int64(n), np.int64(k)]
        self.host.launch(self.kernel, (blocks, 1, 1), (256, 1, 1), args)


def weights(rng: np.random.Generator, fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    blocks = rng.integers(0, 256, (n, k // 32, fmt.block_bytes)).astype(np.uint8)
    blocks[..., 1] &= 0xBF  # the high byte of d: an exponent below 16, so finite
    if fmt.has_min:
        blocks[..., 3] &= 0xBF
    return blocks.reshape(n, -1)


def activations(rng: np.random.Generator, spec: KernelSpec, m: int, k: int) -> np.ndarray:
    x = rng.standard_normal((m, k)).astype(np.float32)
    return x.view(np.uint8) if spec.semantics == "f32" else encode_q8_1(x)


def exactly(array: np.ndarray) -> np.ndarray:
    """A copy that owns an allocation of just its bytes."""
    out = np.empty(array.size, np.uint8)
    out[:] = array.reshape(-1)
    return out


def check(got: np.ndarray, expected: np.ndarray, what: object) -> None:
    if got.tobytes() != expected.tobytes():
        raise SystemExit(f"wrong bits: {what}")


def in_exact_buffers(cases: Cases, which: int, spec: KernelSpec, fmt: BlockFormat) -> None:
    rng = np.random.default_rng(which)
    for m, n, k in SHAPES:
        w, x = weights(rng, fmt, n, k), activations(rng, spec, m, k)
        expected = product(SEMANTICS[spec.semantics], fmt, w, x, ordered=True).ordered
        assert expected is not None
        for blocks in {1, -(-m * n // 256)}:  # with too few, each thread must go on to further outputs
            w_buffer, x_buffer, y_buffer = exactly(w), exactly(x), np.empty(4 * m * n, np.uint8)
            addresses = [int(b.ctypes.data) for b in (w_buffer, x_buffer, y_buffer)]
            cases.launch(which, -1, blocks, *addresses, m, n, k)
            check(y_buffer, expected, (spec.name, fmt.name, m, n, k, blocks))


def far_away(cases: Cases, which: int, spec: KernelSpec, fmt: BlockFormat) -> None:
    """The last 256 outputs of 2^36, of matrices of which only the rows they need exist: the addresses given are so far
    below the buffers that just the right offset, of far more than 2^31 elements and blocks, lands in them."""
    rng, k = np.random.default_rng(which), 96
    for m, n in [(2**3, 2**33), (2**33, 2**3)]:
        rows_m, rows_n = max(1, 256 // n), min(256, n)
        w, x = weights(rng, fmt, rows_n, k), activations(rng, spec, rows_m, k)
        w_buffer, x_buffer, y_buffer = exactly(w), exactly(x), np.empty(4 * 256, np.uint8)
        first = m * n - 256
        skipped = [(n - rows_n) * w.shape[1], (m - rows_m) * x.shape[1], 4 * first]
        addresses = [int(b.ctypes.data) - s for b, s in zip((w_buffer, x_buffer, y_buffer), skipped, strict=True)]
        cases.launch(which, first // 256, 1, *addresses, m, n, k)
        expected = product(SEMANTICS[spec.semantics], fmt, w, x, ordered=True).ordered
        assert expected is not None
        check(y_buffer, expected, (spec.name, fmt.name, m, n, k))


def quantizer(cases: Cases) -> None:
    rng = np.random.default_rng(0)
    for n_blocks in (1, 7, 8, 9, 100):
        x = rng.standard_normal((1, 32 * n_blocks)).astype(np.float32)
        for blocks in {1, -(-n_blocks // 8)}:
            x_buffer, y_buffer = exactly(x.view(np.uint8)), np.empty(36 * n_blocks, np.uint8)
            cases.launch(-1, -1, blocks, 0, int(x_buffer.ctypes.data), int(y_buffer.ctypes.data), n_blocks, 0, 0)
            check(y_buffer, encode_q8_1(x), ("quantize", n_blocks, blocks))
    n_blocks, first = 2**33, 2**33 - 8
    x = rng.standard_normal((1, 32 * 8)).astype(np.float32)
    x_buffer, y_buffer = exactly(x.view(np.uint8)), np.empty(36 * 8, np.uint8)
    addresses = 0, int(x_buffer.ctypes.data) - 128 * first, int(y_buffer.ctypes.data) - 36 * first
    cases.launch(-1, first // 8, 1, *addresses, n_blocks, 0, 0)
    check(y_buffer, encode_q8_1(x), ("quantize", n_blocks))


def main(options: dict[str, Any]) -> None:
    names = [(kernel, fmt) for kernel, fmt in options["cases"]]
    cases = Cases(Path(options["root"]), names, options["flags"])
    for which, (kernel, fmt) in enumerate(names):
        in_exact_buffers(cases, which, KERNELS[kernel], FORMATS[fmt])
        far_away(cases, which, KERNELS[kernel], FORMATS[fmt])
    quantizer(cases)
    print(f"{len(names)} cases are clean")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
