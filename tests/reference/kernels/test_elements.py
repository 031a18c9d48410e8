"""The kernel of weights that are not quantized: F32, F16 and BF16."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FLOAT_TYPES
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.elements import element_product
from gguf_verify.semantics.order import ASCENDING
from tests.support.kernel_inputs import (
    ELEMENT_TYPES,
    MS,
    NS,
    assert_same,
    element_gemm,
    elements_of_any_bits,
    gaussians,
    random_elements,
)


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_bits_of_elements_are_the_oracles(host: CpuHost, kind: str) -> None:
    """Of any K. Activations lie on ties of the rounding too, and 65520 and more, which is infinite as a half."""
    rng = np.random.default_rng(16)
    for k in (1, 31, 96, 257, 4096):
        ms, ns = (MS, NS) if k < 4096 else ((3,), (31,))
        w, x = random_elements(rng, kind, max(ns), k), gaussians(rng, max(ms), k)
        ties = rng.random(x.shape) < 0.1
        x.view(np.uint32)[ties] &= np.uint32({"F32": 0xFFFFFFFF, "F16": 0xFFFFF000, "BF16": 0xFFFF8000}[kind])
        expected = element_product(kind, w.view(np.uint8), x, order=ASCENDING).ordered
        assert expected is not None
        assert np.isfinite(expected).all()
        for m in ms:
            for n in ns:
                assert_same(element_gemm(host, kind, w[:n], x[:m]), expected[:m, :n], (kind, m, n, k))


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_elements_of_any_bits(host: CpuHost, kind: str) -> None:
    """±inf and NaN among them, and sums that overflow."""
    w, x = elements_of_any_bits(kind)
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = element_product(kind, w.view(np.uint8), x, order=ASCENDING).ordered
    assert expected is not None
    for kind_of in (np.isnan, np.isinf, np.isfinite):
        assert kind_of(expected).sum() > 50
    assert_same(element_gemm(host, kind, w, x), expected)


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_products_of_elements_are_llama_cpps(host: CpuHost, kind: str, llama: Llama) -> None:
    """Its `mul_mat` lies within the bound, as the kernel does; without the activations' rounding it would not."""
    rng = np.random.default_rng(18)
    for m, n, k in ((1, 5, 32), (3, 33, 96), (33, 31, 4096)):
        w = random_elements(rng, kind, 4 * n, k)[::4].copy()  # as models have them
        x = rng.standard_normal((m, k)).astype(np.float32)
        expected = element_product(kind, w.view(np.uint8), x)
        for y in (llama.multiply(ELEMENT_TYPES[kind][0], w.view(np.uint8), x), element_gemm(host, kind, w, x)):
            assert (np.abs(y - expected.exact) <= expected.bound).all()
        if kind != "F32" and k == 96:
            values = (w.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else w.view(np.float16)
            assert (np.abs(x.astype(np.float64) @ values.T.astype(np.float64) - expected.exact) > expected.bound).any()
