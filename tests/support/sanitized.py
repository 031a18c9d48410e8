"""A program for a process of its own: runs GEMM kernels and the quantizer where a fault ends the process.

    python -m tests.support.sanitized '{"root": …, "cases": [["q8_1_naive", "Q4_0"], …], "flags": [compiler flags]}'

A case is a kernel and a format, or "elements" and a type of elements.
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

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launch import Tiles
from gguf_verify.kernels.site import QUANTIZER
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.elements import element_product
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from tests.support.kernel_inputs import (
    ELEMENT_KERNEL,
    element_defines,
    gaussians,
    random_activations,
    random_elements,
    random_weights,
)

SHAPES = [(1, 1, 1), (1, 3, 3), (3, 1, 2), (2, 5, 9), (9, 61, 1), (65, 129, 1)]  # M, N, blocks of a row

#: What kernels define outside of functions: each case has its own.
OWN = ("gemm", "TERMS", "Z_GROUPS", "token_scales")

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


class Cases:
    """The cases of one root, compiled. Pointers are passed as numbers, because some are shifted."""

    def __init__(self, root: Path, cases: list[tuple[str, str]], flags: list[str]) -> None:
        unit = []
        for i, (kernel, fmt) in enumerate(cases):
            elements = kernel == "elements"
            macros = element_defines(fmt) if elements else KERNELS[kernel].defines_for(FORMATS[fmt])
            macros = macros | {name: f"{name}_{i}" for name in OWN}
            unit += [f"#define {name} {value}" for name, value in macros.items()]
            unit += [f'#include "{ELEMENT_KERNEL if elements else KERNELS[kernel].file}"']
            unit += [f"#undef {name}" for name in macros]
        unit += [f'#include "{QUANTIZER}"', DISPATCH]
        unit += [f"    if (which == {i}) call(gemm_{i}, w, x, y, M, N, K);" for i in range(len(cases))]
        (root / "cases.cu").write_text("\n".join([*unit, "}\n"]))
        self.host = CpuHost(1, flags)
        self.kernel = self.host.load(root, "cases.cu", "cases", {})

    def launch(
        self, which: int, block: int, blocks: int, w: int, x: int, y: int, m: int, n: int, k: int, threads: int = 256
    ) -> None:
        pointers = [np.uint64(p % 2**64) for p in (w, x, y)]
        args = [np.int32(which), np.int64(block), *pointers, np.int64(m), np.int64(n), np.int64(k)]
        self.host.launch(self.kernel, (blocks, 1, 1), (threads, 1, 1), args)


class Case:
    """A kernel on a format, or the kernel of elements on a type: random inputs, and what must come of them."""

    def __init__(self, kernel: str, fmt: str) -> None:
        self.name = (kernel, fmt)
        self.block_size = 1 if kernel == "elements" else FORMATS[fmt].block_size
        launch = None if kernel == "elements" else KERNELS[kernel].launch
        self.tiles = launch if isinstance(launch, Tiles) else None
        self.threads = self.tiles.threads if self.tiles else 256

    def inputs(self, rng: np.random.Generator, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes of W [N, …] and X [M, …], and Y."""
        kernel, fmt = self.name
        if kernel == "elements":
            w, values = random_elements(rng, fmt, n, k).view(np.uint8), gaussians(rng, m, k)
            x, ordered = values.view(np.uint8), element_product(fmt, w, values, order=ASCENDING).ordered
        else:
            spec = KERNELS[kernel]
            w, x = random_weights(rng, FORMATS[fmt], n, k), random_activations(rng, spec, m, k)
            ordered = product(SEMANTICS[spec.semantics], FORMATS[fmt], w, x, order=ASCENDING).ordered
        assert ordered is not None
        return w, x, ordered


def exactly(array: np.ndarray) -> np.ndarray:
    """A copy that owns an allocation of just its bytes."""
    out = np.empty(array.size, np.uint8)
    out[:] = array.reshape(-1)
    return out


def check(got: np.ndarray, expected: np.ndarray, what: object) -> None:
    if got.tobytes() != expected.tobytes():
        raise SystemExit(f"wrong bits: {what}")


def in_exact_buffers(cases: Cases, which: int, case: Case) -> None:
    rng = np.random.default_rng(which)
    for m, n, row in SHAPES:
        k = row * case.block_size
        w, x, expected = case.inputs(rng, m, n, k)
        # with too few, each thread must go on to further outputs
        for blocks in {case.tiles.blocks(m, n)} if case.tiles else {1, -(-m * n // 256)}:
            w_buffer, x_buffer, y_buffer = exactly(w), exactly(x), np.empty(4 * m * n, np.uint8)
            w_at, x_at, y_at = (int(b.ctypes.data) for b in (w_buffer, x_buffer, y_buffer))
            cases.launch(which, -1, blocks, w_at, x_at, y_at, m, n, k, case.threads)
            check(y_buffer, expected, (*case.name, m, n, k, blocks))


def far_away(cases: Cases, which: int, case: Case) -> None:
    """The last block of outputs, 256 of 2^36 or a tile, of matrices of which only the rows it needs exist: the
    addresses given are so far below the buffers that just the right offset, of far more than 2^31 elements and blocks,
    lands in them."""
    rng, k = np.random.default_rng(which), 3 * case.block_size
    for m, n in [(1 if case.tiles else 2**3, 2**33), (2**33, 2**3)]:
        if case.tiles:
            rows_m, rows_n, last = min(m, case.tiles.tokens), min(n, case.tiles.rows), case.tiles.blocks(m, n) - 1
        else:
            rows_m, rows_n, last = max(1, 256 // n), min(256, n), m * n // 256 - 1
        w, x, expected = case.inputs(rng, rows_m, rows_n, k)
        w_buffer, x_buffer, y_buffer = exactly(w), exactly(x), np.empty(expected.nbytes, np.uint8)
        skipped = [(n - rows_n) * w.shape[1], (m - rows_m) * x.shape[1], 4 * m * n - expected.nbytes]
        w_at, x_at, y_at = (
            int(b.ctypes.data) - s for b, s in zip((w_buffer, x_buffer, y_buffer), skipped, strict=True)
        )
        cases.launch(which, last, 1, w_at, x_at, y_at, m, n, k, case.threads)
        check(y_buffer, expected, (*case.name, m, n, k))


def quantizer(cases: Cases) -> None:
    rng = np.random.default_rng(0)
    for n_blocks in (1, 7, 8, 9, 63, 64, 65, 200):
        x = rng.standard_normal((1, 32 * n_blocks)).astype(np.float32)
        for blocks in {1, -(-n_blocks // 64)}:
            x_buffer, y_buffer = exactly(x.view(np.uint8)), np.empty(36 * n_blocks, np.uint8)
            cases.launch(-1, -1, blocks, 0, int(x_buffer.ctypes.data), int(y_buffer.ctypes.data), n_blocks, 0, 0)
            check(y_buffer, encode_q8_1(x), ("quantize", n_blocks, blocks))
    n_blocks, first = 2**33, 2**33 - 64
    x = rng.standard_normal((1, 32 * 64)).astype(np.float32)
    x_buffer, y_buffer = exactly(x.view(np.uint8)), np.empty(36 * 64, np.uint8)
    addresses = 0, int(x_buffer.ctypes.data) - 128 * first, int(y_buffer.ctypes.data) - 36 * first
    cases.launch(-1, first // 64, 1, *addresses, n_blocks, 0, 0)
    check(y_buffer, encode_q8_1(x), ("quantize", n_blocks))


def main(options: dict[str, Any]) -> None:
    names = [(kernel, fmt) for kernel, fmt in options["cases"]]
    cases = Cases(Path(options["root"]), names, options["flags"])
    for which, (kernel, fmt) in enumerate(names):
        in_exact_buffers(cases, which, Case(kernel, fmt))
        far_away(cases, which, Case(kernel, fmt))
    quantizer(cases)
    print(f"{len(names)} cases are clean")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
