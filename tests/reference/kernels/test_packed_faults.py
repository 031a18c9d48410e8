"""Faults of packing, and of kernels that take packed weights, are seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.support.errors import KernelFault
from tests.support.packed_kernels import SHAPES, check
from tests.support.tools import altered_kernel


@pytest.mark.parametrize(
    ("name", "kind", "old", "new"),
    [
        pytest.param("q8_1_gemv", "Q4_0", "(high & 0x0F0F0F0F) << 4", "(high & 0x0F0F0F0F) << 3", id="high nibbles"),
        pytest.param("q8_1_gemv", "Q4_0", "8 * r + g", "8 * g + r", id="rows"),
        pytest.param("q8_1_gemv", "Q4_0", "row < N && slice < slices", "row <= N && slice < slices",
                     id="a row past the last"),
        pytest.param("q8_1_gemv", "Q4_0", "= float_to_half(d);", "= float_to_half(d) & 0xFFFE;",
                     id="the last bit of d"),
        pytest.param("q8_1_wgmma", "Q2_K", "b->scale(s, h)", "b->scale(s, 0)", id="the other group's scale"),
        pytest.param("q8_1_wgmma", "Q2_K", "b->minimum(s, h)", "-b->minimum(s, h)", id="sign of minima"),
        pytest.param("q8_1_wgmma", "Q2_K", "s = (int)(slice % SLICES)", "s = 0", id="the block's first slice"),
        pytest.param("q8_1_decode", "Q4_K", "row < N ? from[at + j] : 0", "from[at + j]", id="rows past the last"),
        pytest.param("q8_1_decode", "Q4_K", "i % ROWS * size + j", "i % ROWS * size + j / 2 * 2", id="bytes"),
        pytest.param("q8_1_decode", "Q4_K", "chunk / blocks * ROWS", "chunk / blocks * (ROWS - 1)", id="strips"),
    ],
)  # fmt: skip
def test_weights_that_are_packed_wrong(tmp_path: Path, host: CpuHost, name: str, kind: str, old: str, new: str) -> None:
    file = "pack/interleaved.cu" if name == "q8_1_decode" else "pack/weights.cu"
    kernel, fmt, rng = altered_kernel(tmp_path, name, file, old, new), FORMATS[kind], np.random.default_rng(5)
    rows = rng.integers(1, 256, (100, 2 * fmt.block_bytes), np.uint8)  # more than the 39 that are given
    with pytest.raises(KernelFault, match=r"do not hold the file's bytes|reads outside its buffers"):
        kernel.upload(fmt, rows[:39])


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        pytest.param("q8_1_wgmma", "pack/activations.cu", "piece ^ row % 8", "piece ^ row / 2 % 8", id="swizzle"),
        pytest.param("q8_1_wgmma", "packed.cuh", "BYTES ? 1.0f : 0x1p-4f", "1.0f",
                     id="scale of the second half"),
        pytest.param("q8_1_wgmma", "pack/activations.cu", "words[2 * j + odd] =", "words[j + 2 * odd] =",
                     id="order of k"),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "piece * PIECE + i / 4 * 8", "piece * PIECE + i / 4 * 4",
                     id="places of outputs"),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "step * (16 * PRODUCTS)", "step * 16",
                     id="activations of another step"),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "parity ^= slot == 0;", "", id="a stale stage"),
        pytest.param("q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "(set * TOKENS + first)", "(0 * TOKENS + first)",
                     id="another block's scales"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "i < left; ++i", "i < HALF; ++i",
                     id="terms of the round before"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "const int t = c / 2 ^ g & 1;", "const int t = c / 2;",
                     id="rows of the other tile"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "first = x_base + warp * BLOCKS", "first = warp * BLOCKS",
                     id="another round's activations"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "sums[i][2 + e]", "sums[i][3 - e]",
                     id="another token's sums"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "from += ROUND * PART;", "from += (ROUND + 1) * PART;",
                     id="another block's weights"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "PART_D))[8 * c + 4 * j + warp]", "PART_D))[8 * c + 4 * j]",
                     id="scales of other rows"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "codes[0] = low, codes[GROUPS] = high",
                     "codes[0] = high, codes[GROUPS] = low", id="halves of tiles"),
    ],
)  # fmt: skip
def test_faults_are_seen(tmp_path: Path, host: CpuHost, name: str, file: str, old: str, new: str) -> None:
    kernel = altered_kernel(tmp_path, name, file, old, new)

    def seen(m: int, n: int, blocks: int) -> bool:
        try:
            check(host, name, FORMATS["Q4_0"], m, n, blocks, kernel)
        except (AssertionError, KernelFault):
            return True
        return False

    # first the shape that sees most: another number of tokens may be another compilation of a large kernel
    most = (4, 129, 37) if name == "q8_1_gemv" else (65, 257, 5)
    assert any(seen(*shape) for shape in sorted(SHAPES, key=lambda shape: shape != most))
