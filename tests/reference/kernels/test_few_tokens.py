"""The kernels of few tokens, which quantize activations themselves and keep them in shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.q8_1_columns import Columns
from gguf_verify.kernels.ladder.q8_1_decode import Decode
from gguf_verify.kernels.ladder.q8_1_gemv import Gemv
from gguf_verify.kernels.shipped import ShippedKernel
from tests.support.kernel_inputs import assert_same, quantizer_inputs, random_weights
from tests.support.packed_kernels import FIVE, check


@pytest.mark.parametrize(
    ("name", "kind", "m"),
    [
        *(("q8_1_gemv", fmt.name, m) for m in (3, 1, 2, 8, 16) for fmt in FIVE),
        *(("q8_1_columns", kind, m) for kind, m in (("Q5_1", 7), ("Q4_0", 3), ("Q8_0", 2))),
        *(("q8_1_decode", kind, 3) for kind in FORMATS),
    ],
)
def test_values_are_quantized_on_the_way(host: CpuHost, name: str, kind: str, m: int) -> None:
    """With the bits of the quantizer beside it, on every kind of input."""
    fmt, rng, kernel = FORMATS[kind], np.random.default_rng(29), ShippedKernel(KERNELS[name], host)
    for what, x in quantizer_inputs().items():
        with np.errstate(over="ignore", invalid="ignore"):
            x = np.tile(x.astype(np.float32)[-m:], (1, 40))[:, : 1024 if fmt.block_size > 32 else 1184]
        weights = kernel.upload(fmt, random_weights(rng, fmt, 20, x.shape[1]))
        assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)), (name, kind, what))


def held(name: str, weights: Weights, m: int) -> int:
    """The blocks of 32 activations of a row that shared memory has room for."""
    if name == "q8_1_decode":
        return Decode.shape(None, weights, m)["X_SLICES"]
    if name == "q8_1_gemv":
        return Gemv.shape(None, weights, m)["X_BLOCKS"]
    return Columns.shape(None, weights, m)["X_BLOCKS"]


@pytest.mark.parametrize(
    ("name", "kind", "m", "blocks", "more_rows"),
    [
        ("q8_1_gemv", "Q4_1", 1, 1030, 9), ("q8_1_gemv", "Q4_1", 3, 300, 9),
        ("q8_1_columns", "Q8_0", 5, 700, 140), ("q8_1_columns", "Q4_1", 4, 1700, 140),
        ("q8_1_decode", "Q4_K", 3, 1040, 300), ("q8_1_decode", "Q6_K", 1, 3800, 300),
    ],
)  # fmt: skip
def test_rows_longer_than_shared_memory(
    host: CpuHost, name: str, kind: str, m: int, blocks: int, more_rows: int
) -> None:
    """x is taken in parts, from Q8_1 and from values, also for more than one strip of rows."""
    fmt, rng, kernel = FORMATS[kind], np.random.default_rng(31), ShippedKernel(KERNELS[name], host)
    weights = kernel.upload(fmt, random_weights(rng, fmt, 9, 32 * blocks))
    assert held(name, weights, m) < blocks
    for n in {9, more_rows}:
        check(host, name, fmt, m, n, blocks)
    x = rng.standard_normal((m, 32 * blocks)).astype(np.float32)
    assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)))
