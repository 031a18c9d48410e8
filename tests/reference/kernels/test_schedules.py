"""Shipped kernels under schedules: the same bits, and nothing that a checked build would find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.errors import KernelFinding
from tests.support.kernel_inputs import gaussians, random_weights
from tests.support.tools import altered_kernel

#: A type of each size of block and kind of minimum; the layers rung runs the rest on models that have them.
TYPES = {"Q4_0": tuple(KERNELS), "Q8_0": ("q8_1_dp4a_tiled",), "Q4_K": ("q8_1_tiled",), "IQ3_XXS": ("q8_1_naive",)}
SCHEDULES = (Schedule("descending"), Schedule("seeded", 1), *([] if checks_fault() else [Schedule(checked=True)]))


@pytest.mark.parametrize(("fmt", "kernel"), [(fmt, kernel) for fmt, kernels in TYPES.items() for kernel in kernels])
def test_same_bits_and_no_finding(fmt: str, kernel: str) -> None:
    weights = FORMATS[fmt]
    rng = np.random.default_rng(3)
    rows, x = random_weights(rng, weights, 37, 5 * weights.block_size), gaussians(rng, 3, 5 * weights.block_size)
    ordinary = ShippedKernel(KERNELS[kernel], CpuHost(1))
    expected = ordinary.product(ordinary.upload(weights, rows), x)
    for schedule in SCHEDULES:
        scheduled = ordinary.under(schedule)
        assert scheduled is not None
        made = scheduled.product(scheduled.upload(weights, rows), x)
        np.testing.assert_array_equal(made.view(np.uint32), expected.view(np.uint32), err_msg=schedule.words)


@pytest.mark.skipif(checks_fault() is not None, reason="the compiler cannot check")
@pytest.mark.parametrize(
    ("kernel", "m", "source", "old", "new"),
    [
        ("q8_1_gemv", 2, "gemm/q8_1/08_gemv.cu", "before_bulk_copies();  // without", "// without"),
        ("q8_1_gemv", 9, "gemm/q8_1/08_gemv.cu", "before_bulk_copies();\n        __syncthreads();\n        expect",
         "__syncthreads();\n        expect"),
        ("q8_1_decode", 1, "gemm/q8_1/10_decode.cu", "before_bulk_copies();\n        __syncwarp();\n        fill",
         "__syncwarp();\n        fill"),
    ],
)  # fmt: skip
def test_weights_that_are_overwritten_while_they_are_read(
    tmp_path: Path, kernel: str, m: int, source: str, old: str, new: str
) -> None:
    """Without its fence q8_1_gemv was wrong in some launches on a GPU. On the CPU loads are done at once."""
    weights, rng = FORMATS["Q5_0"], np.random.default_rng(3)
    rows, x = random_weights(rng, weights, 300, 64 * 32), gaussians(rng, m, 64 * 32)
    altered = altered_kernel(tmp_path, kernel, source, old, new).under(Schedule(checked=True))
    assert altered is not None
    with pytest.raises(KernelFinding, match=r"what a bulk copy that begins at .* overwrites, with no fence"):
        altered.product(altered.upload(weights, rows), x)
