"""Every shipped kernel on the CPU host has the bits of NumPy's product in the declared order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from tests.support.kernel_inputs import (
    ALL,
    LADDER,
    MS,
    NAIVE,
    NS,
    PLAIN,
    assert_same,
    has_bits_of_naive,
    lengths,
    put_extremes,
    random_activations,
    random_blocks,
    random_weights,
)


@lru_cache(maxsize=16)
def ordered_product(semantics: str, fmt: BlockFormat, m: int, n: int, k: int) -> tuple[np.ndarray, ...]:
    """Weights, activations and the oracle's bits; for all kernels of the semantics the same."""
    rng = np.random.default_rng(7)
    w, x = random_weights(rng, fmt, n, k), random_activations(rng, KERNELS[NAIVE[semantics]], m, k)
    expected = product(SEMANTICS[semantics], fmt, w, x, order=ASCENDING, threads=2).ordered
    assert expected is not None
    assert np.isfinite(expected).all()
    assert len(np.unique(expected)) > expected.size / 2
    return w, x, expected


@ALL
def test_bits_are_the_oracles(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """At every edge of the shapes. Elements do not depend on M and N, so one oracle serves all of a K."""
    kernel = ShippedKernel(KERNELS[name], host)
    for k, ms, ns in [*((k, MS, NS) for k in lengths(fmt)), (4096, (3,), (31,))]:
        w, x, expected = ordered_product(kernel.semantics, fmt, max(ms), max(ns), k)
        for m in ms:
            for n in ns:
                got = kernel.gemm(kernel.upload(fmt, w[:n]), x[:m])
                assert_same(got, expected[:m, :n], (name, fmt.name, m, n, k))


@LADDER
def test_bits_of_naive(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    spec = KERNELS[name]
    has_bits_of_naive(ShippedKernel(spec, host), ShippedKernel(KERNELS[NAIVE[spec.semantics]], host), fmt)


@pytest.mark.parametrize("fmt", [pytest.param(f, id=f.name) for f in FORMATS.values()])
def test_kernels_of_a_semantics_agree(host: CpuHost, fmt: BlockFormat) -> None:
    """On longer rows than the oracle computes, and on blocks and activations of random bytes, with scales, minima and
    sums of ±inf and NaN."""
    rng = np.random.default_rng(8)
    by_semantics: dict[str, list[KernelSpec]] = {}
    for spec in (KERNELS[k] for k in PLAIN):
        if spec.covers(fmt):
            by_semantics.setdefault(spec.semantics, []).append(spec)
    assert min(map(len, by_semantics.values())) > 1
    for specs in by_semantics.values():
        few = 3 * fmt.block_size
        w, x = random_weights(rng, fmt, 257, 14336), random_activations(rng, specs[0], 3, 14336)
        raw_w = random_blocks(rng, fmt, 257, few).reshape(257, -1)
        raw_x = random_blocks(rng, Q8_1, 129, few).reshape(129, -1)  # more tokens than a tile has
        if specs[0].semantics == "f32":
            raw_x = random_activations(rng, specs[0], 129, few)
            raw_x.view(np.float32)[::7, ::5] = np.inf
        for weights, activations in ((w, x), (raw_w, raw_x)):
            kernels = [ShippedKernel(s, host) for s in specs]
            first, *others = (kernel.gemm(kernel.upload(fmt, weights), activations) for kernel in kernels)
            assert np.isfinite(first).all() == (weights is w)
            assert np.isfinite(first).any()
            for other in others:
                assert_same(other, first)


@ALL
def test_values_that_are_not_finite(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """Scales, minima, sums and activations of ±inf and NaN reach just the outputs that they belong to."""
    spec, rng = KERNELS[name], np.random.default_rng(9)
    n, m, k = 31, 33, 3 * fmt.block_size
    w, x = random_weights(rng, fmt, n, k), random_activations(rng, spec, m, k)
    structs = fmt.view(w.reshape(n, -1, fmt.block_bytes))
    put_extremes(rng, fmt, structs)
    w = structs.view(np.uint8).reshape(n, -1)
    assert fmt in (MXFP4, NVFP4) or not fmt.finite(w.reshape(n, -1, fmt.block_bytes)).all()
    if spec.semantics == "f32":
        values = x.view(np.float32).copy()
        for row, value in zip(rng.permutation(m), (np.inf, -np.inf, np.nan, 3e38), strict=False):
            values[row, rng.integers(k)] = value
        x = values.view(np.uint8)
    else:
        blocks = Q8_1.view(x.reshape(m, -1, Q8_1.block_bytes))
        for field in ("d", "s"):
            for row, value in zip(rng.permutation(m), (np.inf, -np.inf, np.nan), strict=False):
                blocks[field][row, rng.integers(k // 32)] = value
        x = blocks.view(np.uint8).reshape(m, -1)
    kernel = ShippedKernel(spec, host)
    expected = product(SEMANTICS[spec.semantics], fmt, w, x, order=ASCENDING).ordered
    assert expected is not None
    assert 0 < np.isnan(expected).sum() < expected.size
    assert np.isinf(expected).any()
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)
