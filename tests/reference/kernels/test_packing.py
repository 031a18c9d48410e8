"""Packed weights and tiled activations, and the kernels that take them: bits, faults, sanitizers, every card."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats import FORMATS, BlockFormat
from gguf_verify.hosts import CpuHost, nvrtc
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.q8_1_gemv import Gemv
from gguf_verify.kernels.ladder.q8_1_split_k import SplitK
from gguf_verify.kernels.ladder.q8_1_wgmma import Wgmma
from gguf_verify.kernels.packed import LEGACY, Packed, packed_shape, unpacked
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.tiling import Tiling
from gguf_verify.semantics import ASCENDING, SEMANTICS, product
from gguf_verify.support.errors import KernelFault
from gguf_verify.support.paths import kernel_root
from tests.reference.kernels.test_kernels import (
    assert_same,
    gaussians,
    quantizer_inputs,
    random_activations,
    random_weights,
    stack_bytes,
)
from tests.support.needs import libasan, need
from tests.support.tools import ROOT, altered_kernel

PACKED = [name for name, spec in KERNELS.items() if isinstance(spec.launch, Packed)]
FIVE = [FORMATS[name] for name in sorted(LEGACY)]
#: M, N, blocks: one of each; odd numbers of blocks; past a tile of 16, 64 tokens, of 128, 256 rows; more than a ring, a
#: round, and both.
SHAPES = [(1, 1, 1), (3, 31, 3), (17, 129, 2), (65, 257, 5), (5, 300, 40), (4, 129, 37), (1, 200, 70), (10, 40, 70)]

by_format = pytest.mark.parametrize("fmt", FIVE, ids=lambda f: f.name)


def at_once(*names: str) -> pytest.MarkDecorator:
    """All five, those that are not named in `make test-all` alone: each is a compilation of a large kernel."""
    marks = {f.name: () if f.name in names else (pytest.mark.slow,) for f in FIVE}
    return pytest.mark.parametrize("fmt", [pytest.param(f, id=f.name, marks=marks[f.name]) for f in FIVE])


def check(
    host: CpuHost, name: str, fmt: BlockFormat, m: int, n: int, blocks: int, kernel: ShippedKernel | None = None
) -> None:
    """The bits of the naive kernel, on random bytes; of a kernel with an order of its own, the oracle's."""
    rng, naive = np.random.default_rng(m), ShippedKernel(KERNELS["q8_1_naive"], host)
    w, x = random_weights(rng, fmt, n, 32 * blocks), random_activations(rng, naive.spec, m, 32 * blocks)
    kernel = kernel or ShippedKernel(KERNELS[name], host)
    if kernel.order == ASCENDING:
        expected = naive.gemm(naive.upload(fmt, w), x)
    else:
        expected = np.asarray(product(SEMANTICS["q8_1"], fmt, w, x, kernel.order).ordered)
    assert np.isfinite(expected).all()
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected, (name, fmt.name, m, n, blocks))


@pytest.fixture(scope="module")
def host() -> CpuHost:
    return CpuHost(2)


def test_there_are_some() -> None:
    assert set(PACKED) >= {"q8_1_wgmma", "q8_1_gemv"}


@at_once("Q5_1", "Q8_0")
@pytest.mark.parametrize("name", PACKED)
def test_bits_are_naives(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    for m, n, blocks in SHAPES:
        check(host, name, fmt, m, n, blocks)


TILINGS = (Tiling(128), Tiling(64), Tiling(32, 1, 3), Tiling(16, 1, 4))


@at_once("Q8_0")
def test_bits_do_not_depend_on_the_tiling(host: CpuHost, fmt: BlockFormat) -> None:
    """Of 07, from values and from Q8_1."""
    m, n, k = 130, 260, 96
    rng, naive, kernel = (
        np.random.default_rng(4),
        ShippedKernel(KERNELS["q8_1_naive"], host),
        ShippedKernel(KERNELS["q8_1_wgmma"], host),
    )
    w, x = random_weights(rng, fmt, n, k), gaussians(rng, m, k)
    codes = naive.quantize(x)
    expected, weights = naive.gemm(naive.upload(fmt, w), codes), kernel.upload(fmt, w)
    for tiling in TILINGS:
        for entry, given in (("quantize_tiled", x), ("tile", codes)):
            out = host.output(4 * m * n)
            tiling.gemm(kernel.site, weights, entry, host.upload(given), out, m)
            assert_same(host.download(out).view(np.float32).reshape(m, n), expected, (tiling, entry, fmt.name))


def test_tilings_that_are_chosen() -> None:
    """Of 132 multiprocessors: large tiles unless small ones are done sooner; none that the tests leave out."""
    shapes = ((4096, 4096), (512, 14336), (512, 4096), (1, 1))
    assert [Wgmma().tiling(FORMATS["Q8_0"], m, n).tokens for m, n in shapes] == [128, 128, 64, 64]
    assert [Wgmma().tiling(FORMATS["Q4_0"], m, n).tokens for m, n in shapes] == [64] * 4
    small = [SplitK().tiling(m, n, 4).tokens for m in (1, 64, 128) for n in (4096, 14336)]
    assert small == [16, 16, 32, 32, 64, 32]


@at_once("Q5_1")
def test_gemv_without_bulk_copies(fmt: BlockFormat) -> None:
    """As on cards before Hopper, where lanes copy."""
    before, host = CpuHost(2, ["-D__CUDA_ARCH__=800"]), CpuHost(2)
    for m, n, blocks in SHAPES:
        check(host, "q8_1_gemv", fmt, m, n, blocks, ShippedKernel(KERNELS["q8_1_gemv"], before))


@at_once("Q5_1")
@pytest.mark.parametrize("m", [1, 2, 3, 8, 16])
def test_gemv_of_values(host: CpuHost, m: int, fmt: BlockFormat) -> None:
    """The quantizer in the kernel has the bits of the one beside it, on every kind of input."""
    rng, kernel = np.random.default_rng(29), ShippedKernel(KERNELS["q8_1_gemv"], host)
    for kind, x in quantizer_inputs().items():
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float32)[-m:, :1184]
        weights = kernel.upload(fmt, random_weights(rng, fmt, 20, x.shape[1]))
        assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)), (fmt.name, kind))


@pytest.mark.parametrize(("m", "blocks"), [(1, 1030), (3, 300)])
def test_gemv_of_rows_longer_than_shared_memory(host: CpuHost, m: int, blocks: int) -> None:
    fmt, rng, kernel = FORMATS["Q4_1"], np.random.default_rng(31), ShippedKernel(KERNELS["q8_1_gemv"], host)
    check(host, "q8_1_gemv", fmt, m, 9, blocks)
    weights = kernel.upload(fmt, random_weights(rng, fmt, 9, 32 * blocks))
    assert Gemv.shape(None, weights, m)["X_BLOCKS"] < blocks
    x = rng.standard_normal((m, 32 * blocks)).astype(np.float32)
    assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)))


@by_format
@pytest.mark.parametrize(("sm", "most"), [("75", 64 << 10), ("86", 99 << 10), ("90", 227 << 10), ("120", 99 << 10)])
def test_gemv_fits_in_shared_memory(fmt: BlockFormat, sm: str, most: int) -> None:
    """Limits: CUDA C++ programming guide, compute capabilities. On Hopper, two blocks of one token's shape."""
    for m in (1, 2, 3, 4):
        for blocks in (1, 128, 448, 5000):
            shape = Gemv.shape(sm, Weights(fmt, 1, 32 * blocks, None), m)
            aligned = Gemv.shared(fmt, shape) + 1024  # after the barriers
            assert aligned <= (most if m > 1 or blocks > 448 or sm != "90" else most // 2)
            assert shape["X_BLOCKS"] > 0
            assert shape["X_BLOCKS"] % (4 * shape["WARPS"]) == 0
            if m == 1 and blocks <= 128:  # a usual row is quantized on the way
                assert shape["X_BLOCKS"] >= blocks


def test_kernels_of_one_layout_share_their_weights(host: CpuHost) -> None:
    """And kernels of two do not: what is prepared has the same bytes if, and only if, the layout is called the same."""
    fmt = FORMATS["Q4_0"]
    prepared: dict[str, set[bytes]] = {}
    rows = np.random.default_rng(32).integers(0, 256, (130, 3 * fmt.block_bytes), np.uint8)
    for name in (*PACKED, "q8_1_naive"):
        kernel = ShippedKernel(KERNELS[name], host)
        buffer = kernel.upload(fmt, rows).buffer
        raw = host.download(buffer) if name in PACKED else np.asarray(buffer)
        prepared.setdefault(kernel.spec.launch.layout, set()).add(raw.tobytes())
    assert all(len(different) == 1 for different in prepared.values())
    assert len(set.union(*prepared.values())) == len(prepared) == 3


@by_format
@pytest.mark.parametrize("name", ["q8_1_wgmma", "q8_1_gemv"])
def test_packing_is_undone(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """And changes of any byte are seen, also of one that belongs to no row."""
    rng, kernel = np.random.default_rng(3), ShippedKernel(KERNELS[name], host)
    strips = name == "q8_1_gemv"
    for n, blocks in ((1, 1), (130, 3), (128, 4)):
        rows = rng.integers(0, 256, (n, blocks * fmt.block_bytes), np.uint8)
        weights = kernel.upload(fmt, rows)
        packed = host.download(weights.buffer)
        tiles, padded, chunk = packed_shape(fmt, n, weights.k)
        assert packed.size == tiles * padded * chunk
        again, clean = unpacked(fmt, packed, n, weights.k, strips)
        assert clean
        np.testing.assert_array_equal(again, rows)
        for at in (*rng.integers(0, packed.size, 20), packed.size - 1):
            other = packed.copy()
            other[at] ^= 0x10
            again, clean = unpacked(fmt, other, n, weights.k, strips)
            assert not clean or (again != rows).any()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("(high & 0x0F0F0F0F) << 4", "(high & 0x0F0F0F0F) << 3", id="high nibbles"),
        pytest.param("8 * r + g", "8 * g + r", id="rows"),
        pytest.param("row < N && block < blocks", "row <= N && block < blocks", id="a row past the last"),
        pytest.param("? b->d : 0", "? (uint16_t)(b->d & 0xFFFE) : 0", id="the last bit of d"),
    ],
)
def test_weights_that_are_packed_wrong(tmp_path: Path, host: CpuHost, old: str, new: str) -> None:
    kernel = altered_kernel(tmp_path, "q8_1_gemv", "pack/weights.cu", old, new)
    rows = np.random.default_rng(5).integers(1, 256, (40, 54), np.uint8)  # a row more: 39 are given
    with pytest.raises(KernelFault, match="do not hold the file's bytes"):
        kernel.upload(FORMATS["Q4_0"], rows[:39])


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        pytest.param("q8_1_wgmma", "pack/activations.cu", "piece ^ row % 8", "piece ^ row / 2 % 8", id="swizzle"),
        pytest.param("q8_1_wgmma", "packed.cuh", "BYTES ? 1.0f : 0x1p-4f", "1.0f", id="scale of the second half"),
        pytest.param("q8_1_wgmma", "pack/activations.cu", "words[2 * j + odd] =", "words[j + 2 * odd] =",
                     id="order of k", marks=pytest.mark.slow),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "piece * PIECE + i / 4 * 8", "piece * PIECE + i / 4 * 4",
                     id="places of outputs"),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "parity ^= slot == 0;", "", id="a stale stage"),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "(block * TOKENS + piece", "(0 * TOKENS + piece",
                     id="another block's scales"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "i < left; ++i", "i < HALF; ++i",
                     id="terms of the round before", marks=pytest.mark.slow),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "const int t = c / 2 ^ g & 1;", "const int t = c / 2;",
                     id="rows of the other tile"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "first = x_base + warp * BLOCKS", "first = warp * BLOCKS",
                     id="another round's activations", marks=pytest.mark.slow),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "sums[i][2 + e]", "sums[i][3 - e]",
                     id="another token's sums", marks=pytest.mark.slow),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "from += ROUND * PART;", "from += (ROUND + 1) * PART;",
                     id="another block's weights"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "PART_D))[8 * c + 4 * j + warp]", "PART_D))[8 * c + 4 * j]",
                     id="scales of other rows", marks=pytest.mark.slow),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "codes[0] = low, codes[GROUPS] = high",
                     "codes[0] = high, codes[GROUPS] = low", id="halves of tiles", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_faults_are_seen(tmp_path: Path, host: CpuHost, name: str, file: str, old: str, new: str) -> None:
    kernel = altered_kernel(tmp_path, name, file, old, new)

    def seen(m: int, n: int, blocks: int) -> bool:
        try:
            check(host, name, FORMATS["Q4_0"], m, n, blocks, kernel)
        except (AssertionError, KernelFault):
            return True
        return False

    assert any(seen(*shape) for shape in SHAPES)


SANITIZED = """
import ctypes, mmap, sys
from pathlib import Path
from gguf_verify.formats import FORMATS
from gguf_verify.hosts import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from tests.reference.kernels.test_packing import PACKED, SHAPES, check
from tests.reference.kernels.test_kernels import SANITIZERS
host = CpuHost(1, SANITIZERS)
for name in sys.argv[3:] or PACKED:
    kernel = ShippedKernel(KERNELS[name], host, Path(sys.argv[1]))
    for m, n, blocks in SHAPES[1:4]:
        check(CpuHost(1), name, FORMATS[sys.argv[2]], m, n, blocks, kernel)
# What the kernels' stacks were is the process's again: no mark of theirs may stay where it maps memory next.
rooms = [mmap.mmap(-1, 516 << 10) for _ in range(100)]
for room in rooms:
    ctypes.memset((ctypes.c_char * len(room)).from_buffer(room), 0, len(room))
print("clean")
"""


def under_sanitizers(root: Path, fmt: str, *names: str) -> subprocess.CompletedProcess[str]:
    need("libasan")
    environment = os.environ | {"LD_PRELOAD": str(libasan()), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-c", SANITIZED, str(root), fmt, *names]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


#: What includes 07 stands for it in `make test`.
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "q8_1_wgmma")) for n in PACKED])
@at_once("Q5_1")
def test_clean_under_sanitizers(fmt: BlockFormat, name: str) -> None:
    done = under_sanitizers(kernel_root(), fmt.name, name)
    assert done.stdout == "clean\n", done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "all = tokens * count * 4", "all = TOKENS * count * 4",
                     id="a token past the last"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "} else if (m < M) {", "} else {",
                     id="a token past the last of a tile", marks=pytest.mark.slow),
        pytest.param("q8_1_wgmma", "pack/activations.cu", "token < M && stage", "stage",
                     id="a row past the activations"),
        pytest.param("q8_1_wgmma", "pack/weights.cu", "row < N && block", "block", id="a row past the weights"),
    ],
)  # fmt: skip
def test_sanitizers_see(tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    done = under_sanitizers(altered_kernel(tmp_path, name, file, old, new).root, "Q5_1", name)
    assert done.returncode != 0
    # past the allocation, which may end beside a stack's guards
    assert re.search("AddressSanitizer: (heap|stack)-buffer-(over|under)flow", done.stderr), done.stderr[-2000:]


@at_once("Q5_1")
def test_compiles_without_spills(fmt: BlockFormat) -> None:
    """For Hopper, and what runs elsewhere for every card."""
    need("nvrtc")
    supported = nvrtc.architectures()
    macros = {**fmt.macros, "TOKENS": "64"}
    sources = [("pack/weights.cu", macros, "90"), ("pack/activations.cu", macros, "90")]
    for tiling in TILINGS:
        if tiling.tokens == 128 and fmt.name != "Q8_0":
            continue
        sizes = {"TOKENS": str(tiling.tokens), "WARPGROUPS": str(tiling.groups), "CTAS": str(tiling.ctas)}
        sources += [("gemm/q8_1/07_wgmma.cu", macros | sizes | {"STAGES": "3"}, "90a")]
        if tiling.tokens <= 64:
            parts = {"STAGES": "3", "PART_STAGES": "16"}
            sources += [("gemm/q8_1/09_split_k.cu", macros | sizes | parts, "90a")]
    sources += [("pack/weights.cu", macros | {"STRIPS": "1"}, "90")]
    for sm in ("75", "90", "120"):
        shapes = [Gemv.shape(sm, Weights(fmt, 1, 4096, None), m) for m in (1, 2, 4)]
        shapes += [{"TOKENS": t, "STAGES": 4} for t in (8, 16)]
        sources += [("gemm/q8_1/08_gemv.cu", macros | {k: str(v) for k, v in s.items()}, sm) for s in shapes]
    for file, defines, sm in sources:
        if int(sm.rstrip("a")) in supported:
            stacks = list(stack_bytes(nvrtc.compile_cubin(kernel_root(), file, sm, defines)))
            assert stacks
            assert not any(stacks), (file, fmt.name, sm, stacks)
