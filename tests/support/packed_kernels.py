"""The kernels that take packed weights, the shapes that they are tested at, and their check."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats import FORMATS, BlockFormat
from gguf_verify.hosts import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.packed import LEGACY, Packed
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.tiling import Tiling
from gguf_verify.semantics import ASCENDING, SEMANTICS, product
from tests.support.kernel_inputs import (
    assert_same,
    random_activations,
    random_weights,
)

PACKED = [name for name, spec in KERNELS.items() if isinstance(spec.launch, Packed)]


FIVE = [FORMATS[name] for name in sorted(LEGACY)]


#: M, N, blocks: one of each; odd numbers of blocks; past a tile of 16, 64 tokens, of 128, 256 rows; more than a ring, a
#: round, and both.
SHAPES = [(1, 1, 1), (3, 31, 3), (17, 129, 2), (65, 257, 5), (5, 300, 40), (4, 129, 37), (1, 200, 70), (10, 40, 70)]
#: Of these a tile's edge, a ring that turns, and more tokens than are read at once.
FEW_SHAPES = [SHAPES[1], SHAPES[5], SHAPES[7]]


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


TILINGS = (Tiling(128), Tiling(64), Tiling(32, 1, 3), Tiling(16, 1, 4))
