"""The kernels that take packed weights and tiled activations have the bits of the naive kernel."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.q8_1_gemv import Gemv
from gguf_verify.kernels.ladder.q8_1_split_k import SplitK
from gguf_verify.kernels.ladder.q8_1_wgmma import Wgmma
from gguf_verify.kernels.packed import LEGACY, Contents, Layout, packed_shape, unpacked
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.tiling import LARGE, LARGEST, SMALL, SMALLEST
from tests.support.kernel_inputs import (
    assert_same,
    gaussians,
    put_extremes,
    random_activations,
    random_blocks,
    random_weights,
)
from tests.support.packed_kernels import FEW_SHAPES, FIVE, OF_ALL_TYPES, OF_FIVE, PACKED, PAIRS, SHAPES, TILINGS, check

by_format = pytest.mark.parametrize("fmt", FIVE, ids=lambda f: f.name)


def test_there_are_some() -> None:
    assert set(PACKED) >= {"q8_1_wgmma", "q8_1_gemv", "q8_1_columns"}


@PAIRS
def test_bits_are_naives(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    for m, n, blocks in SHAPES:
        check(host, name, fmt, m, n, blocks)


@pytest.mark.parametrize("kind", ["Q2_K", "Q6_K", "MXFP4"])
def test_bits_are_naives_on_other_layouts(host: CpuHost, kind: str) -> None:
    """Two scales and minima of a slice, two scales over bytes, and one that is no half: a ring that turns."""
    check(host, "q8_1_wgmma", FORMATS[kind], 4, 129, 48)
    check(host, "q8_1_wgmma", FORMATS[kind], 65, 30, 8)


@pytest.mark.parametrize("name", PACKED)
def test_bits_are_naives_on_codes_of_bytes(host: CpuHost, name: str) -> None:
    """Of Q8_0, whose codes fill bytes and lie elsewhere: a tile's edge and a ring that turns."""
    for m, n, blocks in FEW_SHAPES:
        check(host, name, FORMATS["Q8_0"], m, n, blocks)


@pytest.mark.parametrize(
    ("name", "kind", "m", "blocks"),
    [("q8_1_wgmma", "Q2_K", 3, 3), ("q8_1_wgmma", "Q5_1", 3, 3), ("q8_1_columns", "Q5_1", 5, 19)],
)
def test_infinities_and_nan(host: CpuHost, name: str, kind: str, m: int, blocks: int) -> None:
    """As scales and minima of some rows: they stay in these rows, also where the last slice is padded."""
    fmt, rng, naive = FORMATS[kind], np.random.default_rng(7), ShippedKernel(KERNELS["q8_1_naive"], host)
    k = blocks * fmt.block_size
    drawn = random_blocks(rng, fmt, 33, k)
    put_extremes(rng, fmt, fmt.view(drawn))
    w, x = drawn.reshape(33, -1), random_activations(rng, naive.spec, m, k)
    with np.errstate(all="ignore"):
        expected = naive.gemm(naive.upload(fmt, w), x)
    assert 0 < (~np.isfinite(expected)).sum() < expected.size
    kernel = ShippedKernel(KERNELS[name], host)
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)


@OF_ALL_TYPES
def test_bits_do_not_depend_on_the_tiling(host: CpuHost, fmt: BlockFormat) -> None:
    """Of 07, from values and from Q8_1."""
    m, n, k = 70, 140, 37 * 32 if fmt.block_size == 32 else 1280  # the largest ring turns twice
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
    shapes = ((4096, 4096), (512, 14336), (512, 4096), (64, 14336), (32, 14336), (16, 14336), (65, 257))
    chosen = {name: [Wgmma.tiling(FORMATS[name], m, n) for m, n in shapes] for name in ("Q8_0", "Q4_0", "Q6_K")}
    small = [SMALL, SMALL, SMALLEST]
    assert chosen["Q8_0"] == [LARGEST, LARGEST, LARGE, *small, LARGE]
    assert chosen["Q4_0"] == chosen["Q6_K"] == [LARGE, LARGE, LARGE, *small, LARGE]
    parts = [SplitK.tiling(m, n, 4) for m in (1, 64, 128) for n in (4096, 14336)]
    assert [tiling.tokens for tiling in parts] == [16, 16, 32, 64, 64, 64]
    assert {*small, *parts, *chosen["Q8_0"]} <= set(TILINGS)


@OF_FIVE
@pytest.mark.parametrize("shapes", [FEW_SHAPES[1:2], SHAPES], ids=["few", "all"])
def test_gemv_without_bulk_copies(fmt: BlockFormat, shapes: list[tuple[int, int, int]]) -> None:
    """As on GPUs before Hopper, where lanes copy."""
    before, host = CpuHost(2, ["-D__CUDA_ARCH__=800"]), CpuHost(2)
    for m, n, blocks in shapes:
        check(host, "q8_1_gemv", fmt, m, n, blocks, ShippedKernel(KERNELS["q8_1_gemv"], before))


@by_format
@pytest.mark.parametrize(("sm", "most"), [("75", 64 << 10), ("86", 99 << 10), ("90", 227 << 10), ("120", 99 << 10)])
def test_gemv_fits_in_shared_memory(fmt: BlockFormat, sm: str, most: int) -> None:
    """Limits: CUDA C++ programming guide, compute capabilities. On Hopper, two blocks of one token's shape."""
    for m, n in product((1, 2, 3, 4), (1, 14336)):
        for blocks in (1, 128, 448, 5000):
            shape = Gemv.shape(sm, Weights(fmt, n, 32 * blocks, None), m)
            aligned = Gemv.shared(fmt, shape) + 1024  # after the barriers
            assert aligned <= (most if m > 1 or blocks > 448 or sm != "90" else most // 2)
            assert shape["X_BLOCKS"] > 0
            assert shape["X_BLOCKS"] % (4 * shape["WARPS"]) == 0
            if m == 1 and blocks <= 128:  # a usual row is quantized on the way
                assert shape["X_BLOCKS"] >= blocks


def test_gemv_takes_more_warps_for_several_strips() -> None:
    """Where shared memory has room for their terms."""
    warps = {
        (name, n, m): Gemv.shape("90", Weights(FORMATS[name], n, 4096, None), m)["WARPS"]
        for name, n, m in product(("Q4_1", "Q8_0"), (4096, 14336), (1, 2, 4))
    }
    assert {case for case, count in warps.items() if count == 16} == {
        ("Q4_1", 14336, 2), ("Q4_1", 14336, 4), ("Q8_0", 14336, 2),
    }  # fmt: skip


def test_bits_of_gemv_with_more_warps(host: CpuHost) -> None:
    check(host, "q8_1_gemv", FORMATS["Q5_1"], 3, 4300, 69)


def test_kernels_of_one_layout_share_their_weights(host: CpuHost) -> None:
    """Prepared weights have the same bytes if, and only if, the layout has the same name."""
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


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(name, fmt, id=f"{name}-{fmt.name}")
        for name, often in (("q8_1_wgmma", {"Q5_1", "Q2_K", "MXFP4"}), ("q8_1_gemv", LEGACY))
        for fmt in FORMATS.values()
        if KERNELS[name].covers(fmt)
    ],
)
def test_packing_is_undone(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """And changes of any byte are seen, also of one that belongs to no row."""
    rng, kernel = np.random.default_rng(3), ShippedKernel(KERNELS[name], host)
    strips = name == "q8_1_gemv"
    for n, blocks in ((1, 1), (130, 3), (128, 4)):
        rows = random_weights(rng, fmt, n, blocks * fmt.block_size)
        weights = kernel.upload(fmt, rows)
        packed = host.download(weights.buffer)
        tiles, padded, chunk = packed_shape(fmt, n, weights.k)
        assert packed.size == tiles * padded * chunk
        again, clean = unpacked(fmt, packed, n, weights.k, strips)
        assert clean
        assert again == Contents.of(fmt, rows)
        for at in (*rng.integers(0, packed.size, 20), packed.size - 1):
            other = packed.copy()
            other[at] ^= 0x10
            again, clean = unpacked(fmt, other, n, weights.k, strips)
            assert not clean or again != Contents.of(fmt, rows)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_contents_are_the_values_of_the_file(fmt: BlockFormat) -> None:
    """Packed codes, scales and minima decode to the values of the file's bytes."""
    rows = random_weights(np.random.default_rng(6), fmt, 5, 2 * fmt.block_size)
    of, layout = Contents.of(fmt, rows), Layout.of(fmt)
    codes = of.codes if layout.code_bits < 8 else of.codes.view(np.int8)
    assert codes.max() < 1 << layout.code_bits
    q = codes.astype(np.float32).reshape(5, -1, layout.groups, 32 // layout.groups)
    kind = np.float16 if layout.half_scales else np.float32
    d, m = (None if v is None else v.view(kind).astype(np.float32)[..., None] for v in (of.d, of.m))
    values = (q - fmt.offset) * d if m is None else q * d + m
    expected = fmt.decode(rows.reshape(5, -1, fmt.block_bytes))
    np.testing.assert_array_equal(values.ravel(), expected.ravel())
