"""Rows that are no whole number of blocks are refused, whatever takes them: nothing is quantized or read wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.by_name import open_kernel
from gguf_verify.kernels.interface import Kernel, Weights
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.support.errors import UsageError
from tests.support.foreign_runs import EXAMPLES

PARTIAL = "a row of 40 activations is not a whole number of blocks of 32"
Q4_0 = FORMATS["Q4_0"]


@pytest.mark.parametrize("name", ["q8_1_naive", "q8_1_gemv", f"{EXAMPLES / 'numpy_q4_0.py'}:gemm"])
def test_kernels(name: str) -> None:
    with open_kernel(name, CpuHost(1)) as kernel:
        assert isinstance(kernel, Kernel)
        weights = kernel.upload(Q4_0, np.zeros((3, 36), np.uint8))
        x = np.ones((2, 40), np.float32)
        with pytest.raises(UsageError, match=PARTIAL):
            kernel.quantize(x)
        with pytest.raises(UsageError, match=PARTIAL):
            kernel.product(weights, x)
        with pytest.raises(UsageError, match=PARTIAL):
            kernel.gemm(Weights(Q4_0, 3, 40, weights.buffer), np.zeros((2, 45), np.uint8))
        with pytest.raises(UsageError, match="32 activations a token, but weights of 64 columns take 64"):
            kernel.product(weights, x[:, :32])
        with pytest.raises(UsageError, match="36 bytes of activations a token, but weights of 64 columns take 72"):
            kernel.gemm(weights, kernel.quantize(x[:, :32]))
        with pytest.raises(UsageError, match="a row of 35 bytes is not a whole number of Q4_0 blocks of 18 bytes"):
            kernel.upload(Q4_0, np.zeros((3, 35), np.uint8))
        with pytest.raises(UsageError, match="activations must have two dimensions, not 1"):
            kernel.quantize(np.ones(32, np.float32))


def test_float32_needs_no_blocks() -> None:
    with open_kernel("f32_naive", CpuHost(1)) as kernel:
        assert isinstance(kernel, Kernel)
        assert kernel.quantize(np.ones((2, 40), np.float32)).shape == (2, 160)


@pytest.mark.parametrize("name", [name for name, s in SEMANTICS.items() if s.encode is not None])
def test_encoders_of_activations(name: str) -> None:
    with pytest.raises(ValueError, match="a row of 40 activations is not a whole number of blocks of"):
        SEMANTICS[name].bytes_of(np.ones((2, 40), np.float32))


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.encode_values is not None], ids=lambda f: f.name)
@pytest.mark.parametrize("last", [1, 40])
def test_encoders_of_weights(fmt: BlockFormat, last: int) -> None:
    with pytest.raises(ValueError, match=f"{fmt.name} has blocks of {fmt.block_size} values"):
        fmt.encode(np.ones((2, last), np.float32))


def test_llama(llama: Llama) -> None:
    with pytest.raises(LlamaRefused, match="a row of 40 values is not a whole number of blocks of 32"):
        llama.quantize(Q8_0.type_id, np.ones((2, 40), np.float32))
