"""Faults of kernels that share tiles among threads are seen on the CPU host."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.errors import KernelFault
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import NAIVE, TILED, random_activations, random_weights
from tests.support.tools import altered_kernel


def wrong_bits(kernel: ShippedKernel, host: CpuHost) -> float:
    """The share of outputs in which an altered kernel differs from naive, over every tile's edge and several steps."""
    fmt, rng = FORMATS["Q5_0"], np.random.default_rng(21)
    naive = ShippedKernel(KERNELS[NAIVE[kernel.semantics]], host)
    w, x = random_weights(rng, fmt, 129, 288), random_activations(rng, kernel.spec, 129, 288)
    got, expected = kernel.gemm(kernel.upload(fmt, w), x), naive.gemm(naive.upload(fmt, w), x)
    return float((got.view(np.uint32) != expected.view(np.uint32)).mean())


BARRIER = "__syncthreads();"


BARRIERS = [
    pytest.param(name, i, id=f"{name}-{i}")
    for name in TILED
    for i in range((kernel_root() / KERNELS[name].file).read_text().count(BARRIER))
]


@pytest.mark.parametrize(("name", "which"), BARRIERS)
def test_a_missing_barrier_is_seen(host: CpuHost, tmp_path: Path, name: str, which: int) -> None:
    """Each thread runs as far as it can before the next one starts, so missing waits read unwritten memory."""
    parts = (kernel_root() / KERNELS[name].file).read_text().split(BARRIER)
    before, after = parts[which][-80:], parts[which + 1][:80]
    kernel = altered_kernel(tmp_path, name, KERNELS[name].file, before + BARRIER + after, before + after)
    assert wrong_bits(kernel, host) > 0.01


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        pytest.param("f32_tiled", "", "first < K;", "first + STEP <= K;", id="last values dropped"),
        pytest.param("f32_tiled", "", "x[m * K + first + k]", "x[m * K + k]", id="first values again"),
        pytest.param("f32_tiled", "", "codes[h] >> 8 * i", "codes[0] >> 8 * i", id="upper half of a block lost"),
        pytest.param("f32_vectorized", "", "g < slices", "g < slices - 1", id="last slice dropped"),
        pytest.param("f32_vectorized", "", "wv[k][row + 16]", "wv[k][row + 15]", id="a neighbour's row"),
        pytest.param("f32_vectorized", "", "int k = 0; k < QK; ++k", "int k = QK - 1; k >= 0; --k", id="descending k"),
        pytest.param("q8_1_tiled", "", "first < slices; f", "first + STEP <= slices; f", id="last dropped"),
        pytest.param("q8_1_tiled", "", "x + m * slices + first,", "x + m * slices,", id="first activations again"),
        pytest.param("q8_1_vectorized", "", "first < slices; f", "first + STEP <= slices; f", id="last dropped"),
        pytest.param("q8_1_vectorized", "", "a[j][k / 4]", "a[j][k / 5]", id="codes of other words"),
        pytest.param("q8_1_dp4a_tiled", "", "first < slices; f", "first + STEP <= slices; f", id="last dropped"),
        pytest.param("q8_1_dp4a_tiled", "", "(int)a.w, (int)b[i].w", "(int)a.w, (int)b[i].z", id="a word twice"),
        pytest.param("q8_1_dp4a_tiled", "common.cuh", "-12582912.0f", "-12582911.0f", id="off by one in every sum"),
        pytest.param("q8_1_mma", "", "now = k & 1", "now = 0", id="stale tile"),
        pytest.param("q8_1_mma", "", "k < slices; ++k", "k < slices - 1; ++k", id="last slice dropped"),
        pytest.param("q8_1_mma", "", "{upper.x, lower.x, upper.y, lower.y}", "{upper.x, upper.y, lower.x, lower.y}",
                     id="fragments swapped"),
        pytest.param("q8_1_mma", "", "e % 2 ? two.w", "e / 2 ? two.w", id="another token's sum"),
        pytest.param("q8_1_mma", "gemm/mma.cuh", "l % 4 * 2 + i % 2", "l % 4 * 2", id="another column"),
    ],
)  # fmt: skip
def test_faults_of_tiles(host: CpuHost, tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    assert wrong_bits(altered_kernel(tmp_path, name, file or KERNELS[name].file, old, new), host) > 0.01


@pytest.mark.parametrize("name", TILED)
def test_a_tile_past_the_edge_is_seen(tmp_path: Path, name: str) -> None:
    """Outputs of tokens that are not there."""
    source = (kernel_root() / KERNELS[name].file).read_text()
    found = re.search(r"if \((m0 \+ token < M|m < M) &&|if \((m >= M)\) continue", source)
    assert found is not None
    old = found[0]
    new = "if (true &&" if found[1] else "if (false) continue"
    kernel, fmt, rng = (
        altered_kernel(tmp_path, name, KERNELS[name].file, old, new),
        FORMATS["Q4_1"],
        np.random.default_rng(22),
    )
    w, x = random_weights(rng, fmt, 8, 32), random_activations(rng, kernel.spec, 5, 32)
    with pytest.raises(KernelFault, match="wrote outside its output"):
        kernel.gemm(kernel.upload(fmt, w), x)
