"""The kernels that take packed weights, the shapes that they are tested at, and their check."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.packed import LEGACY, Packed
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.tiling import LARGE, LARGEST, SMALL, SMALLEST, Tiling
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from tests.support.kernel_inputs import (
    assert_same,
    random_activations,
    random_weights,
)

PACKED = [name for name, spec in KERNELS.items() if isinstance(spec.launch, Packed)]


FIVE = [FORMATS[name] for name in sorted(LEGACY)]


#: M, N, blocks of 32: one of each; odd numbers of blocks; past a tile of 16, 64 tokens, of 128, 256 rows; more than a
#: ring, a round, and both.
SHAPES = [(1, 1, 1), (3, 31, 3), (17, 129, 2), (65, 257, 5), (5, 300, 40), (4, 129, 37), (1, 200, 70), (10, 40, 70)]
#: Of these a tile's edge, a ring that turns, and more tokens than are read at once.
FEW_SHAPES = [SHAPES[1], SHAPES[5], SHAPES[7]]


OF_FIVE = pytest.mark.parametrize("fmt", [pytest.param(f, id=f.name) for f in FIVE])


OF_ALL_TYPES = pytest.mark.parametrize("fmt", [pytest.param(f, id=n) for n, f in FORMATS.items()])


#: Every such kernel with each of its types.
PAIRS = pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(name, fmt, id=f"{name}-{fmt.name}")
        for name in PACKED
        for fmt in FORMATS.values()
        if KERNELS[name].covers(fmt)
    ],
)


def check(
    host: CpuHost, name: str, fmt: BlockFormat, m: int, n: int, blocks: int, kernel: ShippedKernel | None = None
) -> None:
    """The bits of the naive kernel, on random bytes; of a kernel with an order of its own, the oracle's."""
    rng, naive = np.random.default_rng(m), ShippedKernel(KERNELS["q8_1_naive"], host)
    k = max(1, round(32 * blocks / fmt.block_size)) * fmt.block_size
    w, x = random_weights(rng, fmt, n, k), random_activations(rng, naive.spec, m, k)
    kernel = kernel or ShippedKernel(KERNELS[name], host)
    if kernel.order == ASCENDING:
        expected = naive.gemm(naive.upload(fmt, w), x)
    else:
        expected = np.asarray(product(SEMANTICS["q8_1"], fmt, w, x, kernel.order).ordered)
    assert np.isfinite(expected).all()
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected, (name, fmt.name, m, n, blocks))


TILINGS = (LARGEST, LARGE, Tiling(32, 1, 3), SMALL, SMALLEST)
