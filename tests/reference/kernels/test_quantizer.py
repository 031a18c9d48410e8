"""The kernels' quantizer of activations against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from tests.support.kernel_inputs import assert_same, quantizer_inputs, random_weights


@pytest.mark.parametrize("kind", quantizer_inputs())
def test_quantizer(host: CpuHost, kind: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        x = quantizer_inputs()[kind].astype(np.float32)
    kernel = ShippedKernel(KERNELS["q8_1_naive"], host)
    m, nb = len(x), x.shape[1] // 32
    got, expected = (Q8_1.view(a.reshape(m, nb, Q8_1.block_bytes)) for a in (kernel.quantize(x), encode_q8_1(x)))
    np.testing.assert_array_equal(got["qs"], expected["qs"])
    for field in ("d", "s"):
        nan = np.isnan(expected[field])
        assert (got[field].view("<u2")[nan] == 0x7FFF).all()  # a GPU's NaN; NumPy keeps the payload
        np.testing.assert_array_equal(got[field].view("<u2")[~nan], expected[field].view("<u2")[~nan])
    if kind in ("sum overflows", "huge"):
        assert np.isinf(expected["s"]).any()
    if kind == "sum at the edge":
        assert 0 < np.isinf(expected["s"]).sum() < expected.size
    if kind in ("ties", "beside ties"):
        assert (np.abs(x / expected["d"].astype(np.float32).repeat(32, axis=1) % 1 - 0.5) < 1e-3).mean() > 0.9
    if kind == "not finite":
        assert np.isnan(expected["s"]).any()
        assert not np.isnan(expected["d"]).any()  # NaN is not counted in the largest magnitude


@pytest.mark.parametrize(
    ("name", "fmt_name"),
    [(k, f) for k in KERNELS for f in ("Q4_0", "Q5_1", "Q8_0")],
)
def test_quantized_on_the_way(host: CpuHost, name: str, fmt_name: str) -> None:
    """From values: the bits of quantizing, then multiplying."""
    rng, kernel, fmt = np.random.default_rng(24), ShippedKernel(KERNELS[name], host), FORMATS[fmt_name]
    for kind, x in quantizer_inputs().items():
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float32)[:9, :96]
        weights = kernel.upload(fmt, random_weights(rng, fmt, 35, x.shape[1]))
        expected = kernel.gemm(weights, kernel.quantize(x))
        assert_same(kernel.product(weights, x), expected, (name, fmt_name, kind))


def test_quantizer_of_a_block_of_nan(host: CpuHost) -> None:
    """Nothing is left to count in the largest magnitude."""
    x = np.full((1, 32), np.nan, np.float32)
    got, expected = (
        Q8_1.view(a)["d"] for a in (ShippedKernel(KERNELS["q8_1_naive"], host).quantize(x), encode_q8_1(x))
    )
    np.testing.assert_array_equal(got, expected)
