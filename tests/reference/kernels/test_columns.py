"""q8_1_columns: tokens as columns of the tensor cores' product, and the baton that goes from pair to pair of warps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.q8_1_columns import Columns
from gguf_verify.kernels.packed import Layout
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from tests.reference.kernels.cubins import as_macros, cards, stack
from tests.support.kernel_inputs import (
    assert_same,
    random_activations,
    random_weights,
)
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
    supported = cards()
    for sm, m in (("90", 2), ("90", 4), ("90", 8), ("120", 4), ("120", 8)):
        if int(sm) in supported:
            shape = Columns.shape(sm, Weights(fmt, 1, 4096, None), m)
            macros = {**fmt.macros, **Layout.of(fmt).macros, **as_macros(shape)}
            assert not stack(SOURCE, sm, macros), (fmt.name, sm, shape)


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
