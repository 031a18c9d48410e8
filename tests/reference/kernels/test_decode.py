"""q8_1_decode: interleaved weights of any type, and the baton that goes from warp to warp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels import interleaved
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.q8_1_decode import Decode
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.errors import KernelFault
from tests.reference.kernels.cubins import as_macros, cards, stack
from tests.support.kernel_inputs import (
    assert_same,
    put_extremes,
    random_activations,
    random_blocks,
)
from tests.support.packed_kernels import check
from tests.support.tools import altered_kernel

NAME, SOURCE = "q8_1_decode", "gemm/q8_1/10_decode.cu"


OF_TYPES = pytest.mark.parametrize("fmt", [pytest.param(f, id=n) for n, f in FORMATS.items()])


#: M, N, blocks of 32, of which a unit has 8: one unit; a strip's edge; a round that is not full, or ends in the middle
#: of a unit; more rounds than stages; more tokens than are read at once; more strips than thread blocks, so that the
#: baton goes on to the next one.
SHAPES = [(1, 1, 8), (2, 33, 26), (1, 70, 76), (5, 31, 160), (9, 64, 64), (1, 290, 136)]


@OF_TYPES
def test_bits_are_naives(host: CpuHost, fmt: BlockFormat) -> None:
    for m, n, blocks in SHAPES:
        check(host, NAME, fmt, m, n, blocks)


@pytest.mark.parametrize("name", [n for n, fmt in FORMATS.items() if any(table.grid for table in fmt.tables)])
def test_grids_are_looked_up_in_shared_memory(host: CpuHost, name: str) -> None:
    """Every entry, under signs."""
    fmt = FORMATS[name]
    assert Decode.shape(None, Weights(fmt, 1, 256, None), 1)["GRID_ENTRIES"] >= 256
    check(host, NAME, fmt, 2, 40, 26)


@OF_TYPES
def test_infinities_and_nan(host: CpuHost, fmt: BlockFormat) -> None:
    """As scales and minima of some rows: NaN stays NaN in a sum. NVFP4 has none."""
    rng, naive = np.random.default_rng(7), ShippedKernel(KERNELS["q8_1_naive"], host)
    blocks = random_blocks(rng, fmt, 33, 1024)
    put_extremes(rng, fmt, fmt.view(blocks))
    w, x = blocks.reshape(33, -1), random_activations(rng, naive.spec, 3, 1024)
    with np.errstate(all="ignore"):
        expected = naive.gemm(naive.upload(fmt, w), x)
    finite = fmt.finite(blocks).all(axis=1)
    assert finite.any()
    assert finite.all() == (fmt is FORMATS["NVFP4"])
    assert np.isfinite(expected[:, finite]).any()
    assert not np.isfinite(expected[:, ~finite]).any()
    kernel = ShippedKernel(KERNELS[NAME], host)
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)


@OF_TYPES
def test_bits_without_bulk_copies(fmt: BlockFormat) -> None:
    """As on GPUs before Hopper, where lanes copy."""
    host, before = CpuHost(2), CpuHost(2, ["-D__CUDA_ARCH__=800"])
    for m, n, blocks in SHAPES[1:4]:
        check(host, NAME, fmt, m, n, blocks, ShippedKernel(KERNELS[NAME], before))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize(("sm", "most"), [("75", 64 << 10), ("86", 99 << 10), ("90", 227 << 10), ("120", 99 << 10)])
def test_shared_memory_fits(fmt: BlockFormat, sm: str, most: int) -> None:
    """Limits: CUDA C++ programming guide, compute capabilities."""
    for m in (1, 2, 3, 8, 100):
        for k in (fmt.block_size, 4096, 14336, 53248, 1 << 20):
            shape = Decode.shape(sm, Weights(fmt, 1, k, None), m)
            assert Decode.shared(fmt, shape) + 2048 <= most
            assert 0 < shape["X_SLICES"] * shape["TOKENS"] * 48 <= most
            assert shape["X_SLICES"] % (shape["WARPS"] * shape["UNIT"] // 32) == 0
            assert shape["UNIT"] % fmt.block_size == 0
            assert shape["STAGES"] > 0
            if m == 1 and k <= 14336:  # a usual row is quantized on the way
                assert shape["X_SLICES"] * 32 >= k


@OF_TYPES
def test_compiles_without_spills(fmt: BlockFormat) -> None:
    """Of up to 32 terms with minima, a few registers may be: so, one H200 takes 14.9 µs, and 18.2 without such terms
    (Q2_K, M = 2, N = 14336)."""
    supported = cards()
    for sm, m in (("75", 8), ("90", 1), ("90", 2), ("90", 4), ("90", 8), ("120", 8)):
        if int(sm) in supported:
            shape = Decode.shape(sm, Weights(fmt, 1, 4096, None), m)
            assert stack(SOURCE, sm, fmt.macros | as_macros(shape)) <= (32 if fmt.has_min else 0), (fmt.name, sm, shape)


@pytest.mark.parametrize("nbytes", range(1, 211))
def test_pieces_are_the_whole_block_at_places_that_can_be_read(nbytes: int) -> None:
    found = list(interleaved.pieces(nbytes))
    assert sum(size for _, size in found) == nbytes
    assert [at for at, _ in found] == [sum(size for _, size in found[:i]) for i in range(len(found))]
    assert all(at % size == 0 for at, size in found)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_packing_is_undone(host: CpuHost, fmt: BlockFormat) -> None:
    """And a change of any byte is seen, also of one that belongs to no row."""
    rng, kernel = np.random.default_rng(3), ShippedKernel(KERNELS[NAME], host)
    for n, blocks in ((1, 1), (37, 3)):
        rows = random_blocks(rng, fmt, n, blocks * fmt.block_size).reshape(n, -1)
        packed = host.download(kernel.upload(fmt, rows).buffer)
        assert packed.size == -(-n // 32) * 32 * rows.shape[1]
        again, clean = interleaved.unpacked(fmt, packed, n)
        assert clean
        np.testing.assert_array_equal(again, rows)
        for at in (*rng.integers(0, packed.size, 20), packed.size - 1):
            other = packed.copy()
            other[at] ^= 0x10
            again, clean = interleaved.unpacked(fmt, other, n)
            assert not clean or (again != rows).any()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("begins ? 0.0f : baton[token][lane]", "baton[token][lane]", id="sums of the strip before"),
        pytest.param("parity ^= stage == 0;", "", id="a stale stage"),
        pytest.param("slice = x_base + warp * SLICES", "slice = warp * SLICES", id="another round's activations"),
        pytest.param("(token * X_SLICES + slice + s) * 2", "(0 * X_SLICES + slice + s) * 2",
                     id="another token's activations"),
        pytest.param("* BLOCKS < BLOCKS ? nb - unit", "* BLOCKS < 0 ? nb - unit",
                     id="blocks past the last"),
        pytest.param("ahead_unit += WARPS;", "ahead_unit += 1;", id="another unit's weights"),
        pytest.param("codes[4 + c] = part.high", "codes[4 + c] = part.low", id="halves"),
        pytest.param("part.low_sum + part.high_sum", "part.low_sum", id="sums of codes"),
        pytest.param("n < N && token < share.tokens", "token < share.tokens", id="a row past the last"),
    ],
)  # fmt: skip
def test_faults_are_seen(tmp_path: Path, host: CpuHost, old: str, new: str) -> None:
    kernel = altered_kernel(tmp_path, NAME, SOURCE, old, new)

    def seen(m: int, n: int, blocks: int, fmt: BlockFormat) -> bool:
        try:
            check(host, NAME, fmt, m, n, blocks, kernel)
        except (AssertionError, KernelFault):
            return True
        return False

    # blocks of 32 end in the middle of a unit
    assert any(seen(*shape, FORMATS[name]) for name in ("Q4_K", "Q5_1") for shape in reversed(SHAPES))
