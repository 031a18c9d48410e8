"""q8_1_columns: tokens as columns of the tensor cores' product, and the baton that goes from pair to pair of warps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats import FORMATS, BlockFormat
from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.q8_1_columns import Columns
from gguf_verify.kernels.packed import Layout
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import (
    assert_same,
    put_extremes,
    quantizer_inputs,
    random_activations,
    random_blocks,
    random_weights,
    stack_bytes,
)
from tests.support.needs import need
from tests.support.packed_kernels import FIVE, OF_FIVE, SHAPES, check
from tests.support.tools import altered_kernel

NAME, SOURCE = "q8_1_columns", "gemm/q8_1/11_columns.cu"
#: Copies as late as possible, and random orders; with a search for races and for unwritten memory.
SCHEDULES = [Schedule("descending", checked=True), *(Schedule("seeded", seed, checked=True) for seed in (0, 1))]
by_format = pytest.mark.parametrize("fmt", FIVE, ids=lambda f: f.name)

#: M, N, blocks, with more strips than thread blocks: more units than pairs, whose last one is not full; a last unit
#: that is the first pair's, which keeps the baton; fewer units than pairs.
ROUNDS = [(8, 300, 69), (4, 300, 65), (3, 270, 9), (6, 290, 128)]


@OF_FIVE
def test_bits_are_naives(host: CpuHost, fmt: BlockFormat) -> None:
    for m, n, blocks in (*SHAPES, *ROUNDS):
        check(host, NAME, fmt, m, n, blocks)


@pytest.mark.parametrize(("name", "m"), [("Q5_1", 7), ("Q4_0", 3), ("Q8_0", 2)])
def test_values_are_quantized_on_the_way(host: CpuHost, name: str, m: int) -> None:
    """With the bits of the quantizer beside it, on every kind of input."""
    fmt, rng, kernel = FORMATS[name], np.random.default_rng(29), ShippedKernel(KERNELS[NAME], host)
    for kind, x in quantizer_inputs().items():
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float32)[-m:, :1184]
        weights = kernel.upload(fmt, random_weights(rng, fmt, 20, x.shape[1]))
        assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)), (name, kind))


@pytest.mark.parametrize(("name", "m", "blocks"), [("Q8_0", 5, 700), ("Q4_1", 4, 1700)])
def test_rows_longer_than_shared_memory(host: CpuHost, name: str, m: int, blocks: int) -> None:
    """x is taken in parts, from Q8_1 and from values, also for more than one strip."""
    fmt, rng, kernel = FORMATS[name], np.random.default_rng(31), ShippedKernel(KERNELS[NAME], host)
    weights = kernel.upload(fmt, random_weights(rng, fmt, 9, 32 * blocks))
    assert Columns.shape(None, weights, m)["X_BLOCKS"] < blocks
    check(host, NAME, fmt, m, 9, blocks)
    check(host, NAME, fmt, m, 140, blocks)
    x = rng.standard_normal((m, 32 * blocks)).astype(np.float32)
    assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)))


def test_infinities_and_nan(host: CpuHost) -> None:
    """As scales and minima of some rows: they stay in these rows."""
    fmt, rng, naive = FORMATS["Q5_1"], np.random.default_rng(7), ShippedKernel(KERNELS["q8_1_naive"], host)
    blocks = random_blocks(rng, fmt, 33, 32 * 19)
    put_extremes(rng, fmt, fmt.view(blocks))
    w, x = blocks.reshape(33, -1), random_activations(rng, naive.spec, 5, 32 * 19)
    with np.errstate(all="ignore"):
        expected = naive.gemm(naive.upload(fmt, w), x)
    assert 0 < (~np.isfinite(expected)).sum() < expected.size
    kernel = ShippedKernel(KERNELS[NAME], host)
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_bits_do_not_depend_on_the_schedule(name: str) -> None:
    """And no access of a thread races with another's, in orders in which a warp is as far ahead as possible."""
    host, fmt, rng = CpuHost(1), FORMATS[name], np.random.default_rng(3)
    kernel = ShippedKernel(KERNELS[NAME], host)
    w, x = random_weights(rng, fmt, 140, 32 * 69), random_activations(rng, kernel.spec, 5, 32 * 69)
    expected = kernel.gemm(kernel.upload(fmt, w), x)
    for schedule in SCHEDULES:
        other = kernel.under(schedule)
        assert other is not None
        assert_same(other.gemm(other.upload(fmt, w), x), expected, (name, schedule.words))


@by_format
@pytest.mark.parametrize(("sm", "most", "of_all"), [("90", 227 << 10, 228 << 10), ("120", 99 << 10, 100 << 10)])
def test_shared_memory_fits(fmt: BlockFormat, sm: str, most: int, of_all: int) -> None:
    """Limits: CUDA C++ programming guide, compute capabilities. A block takes 1 KiB more, its barriers 384 bytes."""
    for m in (1, 3, 8, 100):
        for k in (32, 4096, 14336, 53248, 1 << 20):
            shape = Columns.shape(sm, Weights(fmt, 1, k, None), m)
            asked = Columns.shared(fmt, shape) + 512
            assert asked <= most
            assert (asked + 1024) * shape["CTAS"] <= of_all
            assert shape["X_BLOCKS"] > 0
            assert shape["X_BLOCKS"] % (shape["WARPS"] // 2 * shape["BLOCKS"]) == 0
            assert 0 < shape["STAGES"] <= 3
            if k == 4096 and sm == "90":  # as measured
                assert shape["X_BLOCKS"] == 128
                assert shape["STAGES"] > 1
                assert (shape["WARPS"], shape["CTAS"]) == ((8, 2) if fmt.has_min else (16, 1))


@OF_FIVE
def test_compiles_without_spills(fmt: BlockFormat) -> None:
    """For the GPUs that have bulk copies."""
    need("nvrtc")
    supported = nvrtc.architectures()
    for sm, m in (("90", 2), ("90", 4), ("90", 8), ("120", 4), ("120", 8)):
        if int(sm) in supported:
            shape = Columns.shape(sm, Weights(fmt, 1, 4096, None), m)
            macros = {**fmt.macros, **Layout.of(fmt).macros, **{name: str(value) for name, value in shape.items()}}
            stacks = list(stack_bytes(nvrtc.compile_cubin(kernel_root(), SOURCE, sm, macros)))
            assert stacks
            assert not any(stacks), (fmt.name, sm, shape, stacks)


def test_gpus_without_bulk_copies_are_refused() -> None:
    with pytest.raises(EnvironmentFault, match="q8_1_columns needs a GPU of sm_90 or later; this one is sm_89"):
        KERNELS[NAME].cards.target_or_fault(NAME, "89")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("parity", "parity", id="none"),
        pytest.param("begins ? float4{} : batons", "batons", id="sums of the strip before"),
        pytest.param("parity ^= stage == 0;", "", id="a stale stage"),
        pytest.param("first = x_base + slot * BLOCKS", "first = slot * BLOCKS", id="another round's activations"),
        pytest.param("if (i < count) terms", "terms", id="blocks past the last"),
        pytest.param("ahead_unit += SLOTS;", "ahead_unit += 1;", id="another unit's weights"),
        pytest.param(
            "[2 * g + t];\n            terms",
            "[2 * g];\n            terms",
            id="scales of other rows",
        ),
        pytest.param("of_x.z};", "of_x.x};", id="another token's scale"),
        pytest.param("y[(first_token + token) * N", "y[token * N", id="another tile's tokens"),
        pytest.param("j / 2 * 8 < N)", "0 < N)", id="rows past the last"),
        pytest.param(
            "mbarrier_init(&empty[i], 2)", "mbarrier_init(&empty[i], 1)", id="a slot that one warp still reads"
        ),
    ],
)
def test_faults_are_seen(tmp_path: Path, old: str, new: str) -> None:
    assert seen(altered_kernel(tmp_path, NAME, SOURCE, old, new)) != (old == new)


def seen(kernel: ShippedKernel) -> bool:
    """Whether some output is wrong, or the host finds a fault."""
    fmt, naive = FORMATS["Q4_1"], ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1))
    for m, n, blocks in ((10, 300, 69), (5, 290, 130)):
        rng = np.random.default_rng(m)
        w, x = random_weights(rng, fmt, n, 32 * blocks), random_activations(rng, naive.spec, m, 32 * blocks)
        expected = naive.gemm(naive.upload(fmt, w), x)
        try:
            for schedule in (Schedule(), SCHEDULES[0], SCHEDULES[-1]):
                other = kernel.under(schedule)
                assert other is not None
                assert_same(other.gemm(other.upload(fmt, w), x), expected)
        except (AssertionError, KernelFault):
            return True
    return False
