"""Foreign kernels with fused epilogues get their operands, in their domain's calls too, and give what is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.epilogue import Epilogue
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.sums import Product
from tests.support.foreign_runs import M, N, operands, verified

FMT = FORMATS["Q4_0"]

PYTHON = """
import numpy as np
from gguf_verify import kernel
from gguf_verify.formats.tensor_types import FORMATS

def plain(w, x, shape):
    fmt = FORMATS[shape.format]
    values = fmt.decode(np.asarray(w).reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1)
    return x @ values.T

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["scale", "bias", "residual"])
def sums(w, x, shape, scale, bias, residual):
    assert residual.shape == (shape.m, shape.n) and bias.shape == (shape.n,)
    return plain(w, x, shape) * scale[0] + bias + residual

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["bias"])
def wrong_row(w, x, shape, bias):
    return plain(w, x, shape) + np.roll(bias, 1)

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["silu_gate"])
def gated(w, x, shape, up):
    z = plain(w, x, shape)
    return z / (1 + np.exp(-z)) * plain(up, x, shape)

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["silu_gate"], domain={"N": {"multiple": 8}, "M": {"most": 2}})
def gated_in_tiles(w, x, shape, up):
    assert shape.n % 8 == 0 and shape.m <= 2
    return gated(w, x, shape, up)

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["silu_gate"])
def swapped(w, x, shape, up):
    return gated(up, x, shape, w)

@kernel(formats=["Q4_0"], semantics="f32", operands={"output": {"accumulate": True}})
def accumulating(w, x, shape, output):
    return output + plain(w, x, shape)

@kernel(formats=["Q4_0"], semantics="f32", operands={"output": {"accumulate": True}})
def overwriting(w, x, shape, output):
    return plain(w, x, shape)

def added(w, x, shape, start, order):
    fmt = FORMATS[shape.format]
    values = fmt.decode(np.asarray(w).reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1).astype(np.float64)
    total = np.broadcast_to(np.float32(start), (shape.m, shape.n))
    for k in order:  # a fused multiply-add
        total = (total + x[:, k, None].astype(np.float64) * values[:, k]).astype(np.float32)
    return total

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["scale", "bias"], ordered=True)
def ordered(w, x, shape, scale, bias):
    return added(w, x, shape, 0, range(shape.k)) * scale[0] + bias

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["scale", "bias"], ordered=True)
def descending(w, x, shape, scale, bias):
    return added(w, x, shape, 0, range(shape.k)[::-1]) * scale[0] + bias

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["bias"], ordered=True)
def begun_with_bias(w, x, shape, bias):
    return added(w, x, shape, bias, range(shape.k))

@kernel(formats=["Q4_0"], semantics="f32", epilogue=["silu_gate"], ordered=True, output="float16")
def ordered_gate(w, x, shape, up):
    z, other = (added(of, x, shape, 0, range(shape.k)) for of in (w, up))
    return (z / (1 + np.exp(-z)) * other).astype(np.float16)

"""

CUDA = """
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// epilogue = ["bias", "residual"]
// parameters = ["weights", "activations", "bias", "residual", "output", "int32 M", "int32 N", "int32 K"]
// operands.output = { accumulate = true, transposed = true }
// domain = { N = { multiple = 4 }, K = { multiple = 64 } }
// block = 32
// grid = "ceil(M * N, 32)"
// [/gguf-verify]
__device__ float from_half(unsigned short h) { return (h & 0x8000u ? -1 : 1) * __uint_as_float((h & 0x7FFFu) << 13) * 5192296858534827628530496329220096.0f; }
extern "C" __global__ void gemm(const unsigned char* w, const float* x, const float* bias, const float* r, float* y, int M, int N, int K) {
    const int i = blockIdx.x * 32 + threadIdx.x, m = i / N, n = i % N;
    if (m >= M) return;
    float acc = bias[n];
    for (int k = 0; k < K; ++k) {
        const unsigned char* b = w + (n * (K / 32) + k / 32) * 18;
        const int q = k % 32 < 16 ? b[2 + k % 16] & 15 : b[2 + k % 16] >> 4;
        acc += from_half(b[0] | b[1] << 8) * (q - 8) * x[m * K + k];
    }
    y[n * M + m] += acc + r[m * N + n];
}
"""  # noqa: E501 - a line of CUDA C++


def opened(folder: Path, name: str) -> ForeignKernel:
    path = folder / ("fused.cu" if name == "gemm" else "fused.py")
    path.write_text(CUDA if name == "gemm" else PYTHON)
    return open_foreign(f"{path}:{name}", CpuHost(1))


def expected(epilogue: Epilogue) -> Product:
    rows, x = operands()

    def multiply(w: Any) -> Product:
        return product(F32, FMT, w, x.view(np.uint8))

    return epilogue.applied(multiply(rows), FMT, rows, x.view(np.uint8), multiply)


@pytest.mark.parametrize(
    ("name", "names", "right"),
    [
        ("sums", ("scale", "bias", "residual"), True),
        ("wrong_row", ("bias",), False),
        ("gated", ("silu_gate",), True),
        ("gated_in_tiles", ("silu_gate",), True),
        ("swapped", ("silu_gate",), False),
        ("accumulating", ("accumulate",), True),
        ("overwriting", ("accumulate",), False),
        ("gemm", ("bias", "residual", "accumulate"), True),
    ],
)
def test_operands_are_handed_over(name: str, names: tuple[str, ...], right: bool, tmp_path: Path) -> None:
    rows, x = operands()
    kernel = opened(tmp_path, name)
    try:
        y = kernel.product(kernel.upload(FMT, rows), x)
        assert y.shape == (M, N)
        assert judge(y, expected(Epilogue(names))).passed == right
        assert kernel.product(kernel.upload(FMT, rows), x[:0]).shape == (0, N)
    finally:
        kernel.close()


@pytest.mark.parametrize(
    ("name", "names", "right"),
    [
        ("ordered", ("scale", "bias"), True),
        ("descending", ("scale", "bias"), False),
        ("begun_with_bias", ("bias",), False),
        ("ordered_gate", ("silu_gate",), True),
    ],
)
def test_what_is_fused_begins_with_the_bits_of_a_declared_order(
    name: str, names: tuple[str, ...], right: bool, tmp_path: Path
) -> None:
    rows, x = operands()
    kernel = opened(tmp_path, name)
    try:
        assert kernel.order == ASCENDING
        semantics = kernel.definition
        y = kernel.product(kernel.upload(FMT, rows), x)
        in_any, in_order = (product(semantics, FMT, rows, x.view(np.uint8), order) for order in (None, kernel.order))
        assert judge(y, in_any).passed, "of any order it is right"
        assert judge(y, in_order).passed == right
        assert (in_order.bound < in_any.bound).all()
    finally:
        kernel.close()


def test_another_order_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fused.py"
    path.write_text(PYTHON)
    report = verified(f"{path}:descending", "blocks", tensor="blk.0.attn_k")
    assert report.exit_code == 1
    assert report.rung("blocks").diagnosis.verdict == "another order"
