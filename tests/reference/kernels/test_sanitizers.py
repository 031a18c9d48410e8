"""Every shipped kernel under the address and undefined-behaviour sanitizers, and at indices past 2^31."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FLOAT_TYPES
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import OFTEN, PAIRS, SANITIZERS, often
from tests.support.needs import libasan, need
from tests.support.tools import ROOT, altered_kernel


def in_a_process(root: Path, cases: list[tuple[str, str]], sanitizers: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ.copy()
    if sanitizers:
        need("libasan")
        # leaks are Python's own; the library must come before everything that allocates
        environment |= {"LD_PRELOAD": str(libasan()), "ASAN_OPTIONS": "detect_leaks=0"}
    options = {"root": str(root), "cases": cases, "flags": SANITIZERS if sanitizers else []}
    command = [sys.executable, "-m", "tests.support.sanitized", json.dumps(options)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


def once(name: str, fmt: BlockFormat) -> bool:
    """Every kernel on one format; the kernel that reads whole words on others of another size."""
    return fmt.name == "Q5_1" or (name == "q8_1_dp4a" and fmt.name in OFTEN)


@pytest.mark.parametrize("chosen", [once, often])
def test_clean_under_sanitizers(tmp_path: Path, chosen: Callable[[str, BlockFormat], bool]) -> None:
    """All kernels, their formats and the quantizer; inputs end with their allocations."""
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    cases = [(k, f.name) for k, f in PAIRS if chosen(k, f)] + [("elements", kind) for kind in FLOAT_TYPES]
    parts = [cases[i::2] for i in range(2)]
    roots = [root, tmp_path / "other"]
    shutil.copytree(kernel_root(), roots[1])
    with ThreadPoolExecutor(2) as pool:  # compiling takes longest
        for part, done in zip(parts, pool.map(in_a_process, roots, parts), strict=True):
            assert done.returncode == 0, done.stderr[-3000:]
            assert f"{len(part)} cases are clean" in done.stdout


def altered_root(folder: Path, file: str, old: str, new: str) -> Path:
    return altered_kernel(folder, "f32_naive", file, old, new).root


@pytest.mark.parametrize(
    ("name", "fmt", "file", "old", "new", "said"),
    [
        pytest.param(
            "q8_1_dp4a", "Q8_0", "formats/q8_0.cuh", "low = load_word_2(qs, j)", "low = load_word_4(qs, j)",
            "load of misaligned address", id="4-byte words from a 34-byte block",
        ),
        pytest.param(
            "q8_1_dp4a", "Q6_K", "formats/q6_k.cuh", "load_word_2(qh + s", "load_word_4(qh + s",
            "load of misaligned address", id="4-byte words from a 210-byte block",
        ),
        pytest.param(
            "q8_1_naive", "Q4_0", "gemm/q8_1/01_naive.cu", "b < nb", "b <= nb",
            "heap-buffer-overflow", id="a block past the row",
        ),
        pytest.param(
            "f32_naive", "Q2_K", "gemm/f32/01_naive.cu", "s < SLICES", "s <= SLICES",
            "runtime error: index|heap-buffer-overflow", id="a slice past the block",
        ),
        pytest.param(
            "q8_1_tiled", "Q4_0", "gemm/q8_1/02_tiled.cu", "m0 + t < M ? m0 + t : M - 1", "m0 + t",
            "heap-(buffer-overflow|use-after-free)", id="tokens past the last",
        ),
        pytest.param(
            "q8_1_dp4a_tiled", "Q4_K", "gemm/q8_1/05_dp4a_tiled.cu", "n0 + r < N ? n0 + r : N - 1", "n0 + r",
            "heap-buffer-overflow", id="rows past the last",
        ),
        pytest.param(
            "q8_1_mma", "Q5_0", "gemm/q8_1/06_mma.cu", "k + 1 < slices) {\n            const int s",
            "true) {\n            const int s",
            "heap-buffer-overflow", id="a slice past the row",
        ),
        pytest.param(
            "f32_vectorized", "Q8_0", "gemm/f32/03_vectorized.cu", "g * QK + k)", "g * QK + k + 2)",
            "misaligned address", id="16 bytes at a multiple of 8",
        ),
        pytest.param(
            "elements", "BF16", "gemm/elements/01_naive.cu", "k < K", "k <= K",
            "heap-buffer-overflow", id="an element past the row",
        ),
        pytest.param(
            "f32_naive", "Q5_1", "gemm/f32/01_naive.cu", "y[i] = acc", "y[i + 1] = acc",
            "heap-buffer-overflow", id="an element past the output",
        ),
        pytest.param(
            "q8_1_naive", "Q5_0", "quantize/q8_1.cu", "if (b < n_blocks)", "if (b <= n_blocks)",
            "heap-buffer-overflow", id="a block past the activations",
        ),
    ],
)  # fmt: skip
def test_sanitizers_see(tmp_path: Path, name: str, fmt: str, file: str, old: str, new: str, said: str) -> None:
    root = altered_root(tmp_path, file, old, new)
    done = in_a_process(root, [(name, fmt)])
    assert done.returncode != 0
    assert re.search(said, done.stderr)


@pytest.mark.parametrize(
    ("name", "fmt", "file", "old", "new"),
    [
        ("q8_1_naive", "Q8_0", "gemm/q8_1/01_naive.cu", "(int64_t)blockIdx.x * blockDim.x", "blockIdx.x * blockDim.x"),
        ("q8_1_dp4a", "Q6_K", "gemm/q8_1/04_dp4a.cu", "w + i % N * nb", "w + (int)(i % N * nb)"),
        ("f32_naive", "NVFP4", "gemm/f32/01_naive.cu", "x + i / N * K", "x + (uint32_t)(i / N) * K"),
        ("q8_1_mma", "Q4_1", "gemm/q8_1/06_mma.cu", "(int64_t)(blockIdx.x / tiles_m)", "(int)(blockIdx.x / tiles_m)"),
        ("f32_tiled", "Q5_1", "gemm/f32/02_tiled.cu", "(int64_t)(blockIdx.x % tiles_m)",
         "(int)(blockIdx.x % tiles_m)"),
        ("elements", "F16", "gemm/elements/01_naive.cu", "w + i % N * K", "w + (int)(i % N * K)"),
        ("q8_1_naive", "Q8_0", "quantize/q8_1.cu", "(int64_t)blockIdx.x * WARPS", "blockIdx.x * WARPS"),
    ],
)  # fmt: skip
def test_an_index_of_32_bits_is_seen(tmp_path: Path, name: str, fmt: str, file: str, old: str, new: str) -> None:
    """`test_clean_under_sanitizers` runs with indices of 64 bits; narrower ones must fail here."""
    done = in_a_process(altered_root(tmp_path, file, old, new), [(name, fmt)], sanitizers=False)
    assert done.returncode != 0
    assert done.returncode < 0 or "wrong bits" in done.stderr or "outside its buffers" in done.stderr
