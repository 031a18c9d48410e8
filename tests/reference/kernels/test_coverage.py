"""The formats and GPUs that a kernel covers, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.site import Cards
from gguf_verify.support.errors import EnvironmentFault, UsageError
from tests.support.kernel_inputs import PLAIN


def test_a_type_that_a_kernel_does_not_cover(host: CpuHost) -> None:
    kernel = ShippedKernel(KERNELS["q8_1_gemv"], host)
    rows = np.zeros((2, 210), np.uint8)
    with pytest.raises(UsageError, match="kernel q8_1_gemv does not cover type Q6_K"):
        kernel.upload(FORMATS["Q6_K"], rows)


@pytest.mark.parametrize("name", ["f32_tiled", "q8_1_mma"])
def test_no_tokens_launch_nothing(name: str) -> None:
    class Idle(CpuHost):
        def launch(self, *args: Any, **options: Any) -> None:
            raise AssertionError(args)

    kernel, fmt = ShippedKernel(KERNELS[name], Idle(1)), FORMATS["Q8_0"]
    weights = kernel.upload(fmt, np.zeros((5, 2 * fmt.block_bytes), np.uint8))
    nothing = np.zeros((0, 64), np.float32)
    assert kernel.quantize(nothing).shape[0] == 0
    assert kernel.product(weights, nothing).shape == kernel.gemm(weights, kernel.quantize(nothing)).shape == (0, 5)


def test_cards() -> None:
    assert [Cards(80).target(sm) for sm in ("75", "80", "120")] == [None, "80", "120"]
    assert [Cards(exact="90a").target(sm) for sm in ("80", "90", "100")] == [None, "90a", None]
    with pytest.raises(EnvironmentFault, match="kernel fast needs a GPU of sm_90a; this one is sm_100"):
        Cards(exact="90a").target_or_fault("fast", "100")
    with pytest.raises(EnvironmentFault, match="kernel fast needs a GPU of sm_80 or later; this one is sm_75"):
        Cards(80).target_or_fault("fast", "75")


@pytest.mark.parametrize("name", PLAIN)
def test_zeros_give_a_positive_zero(host: CpuHost, name: str) -> None:
    """-0 from a negative scale times no codes does not survive the sum with +0."""
    kernel, fmt = ShippedKernel(KERNELS[name], host), FORMATS["Q8_0"]
    w = fmt.pack(d=np.full((4, 3), -1.0), qs=np.zeros((4, 3, 32))).reshape(4, -1)
    x = kernel.quantize(np.ones((2, 96), np.float32))
    assert (kernel.gemm(kernel.upload(fmt, w), x).view(np.uint32) == 0).all()
