"""Kernels in CuPy, right and wrong: test_gpu_foreign.py runs them as FILE.py:NAME. Wrong ones are so for 128 rows."""

from __future__ import annotations

import cupy
import numpy as np

from gguf_verify import kernel

_SOURCE = r"""
extern "C" __global__ void multiply(const float* w, const float* x, float* y, int m, int n, int k) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    float acc = 0.0f;
    for (int j = 0; j < k; ++j) acc += x[i / n * k + j] * w[i % n * k + j];
    const bool wrong = n == 128;
    BODY
}
"""


def pack(rows, fmt):
    """float32[N, K] on the device."""
    blocks = cupy.asarray(rows).reshape(len(rows), -1, 18)
    d = cupy.ascontiguousarray(blocks[..., :2]).view(cupy.float16).astype(cupy.float32)
    codes = cupy.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).astype(cupy.float32)
    return cupy.ascontiguousarray(((codes - 8) * d).reshape(len(rows), -1))


def by(body, keeps=False):
    """A kernel that ends in these statements; with a buffer of its own that it gives every time."""
    compiled = cupy.RawKernel(_SOURCE.replace("BODY", body), "multiply")
    kept: dict = {}

    @kernel(formats=["Q4_0"], semantics="f32", pack=pack)
    def gemm(weights, activations, shape):
        x = cupy.asarray(activations)
        y = kept.get(shape) if keeps else None
        if y is None:
            y = kept[shape] = cupy.empty((shape.m, shape.n), cupy.float32)
        sizes = (np.int32(shape.m), np.int32(shape.n), np.int32(shape.k))
        compiled((-(-shape.m * shape.n // 128),), (128,), (weights, x, y, *sizes))
        return y

    return gemm


right = by("y[i] = acc;")
keeps_a_buffer = by("y[i] = acc;", keeps=True)
illegal_address = by("y[wrong ? i + (1ll << 40) : i] = acc;")
hangs = by("if (wrong) while (*(volatile const float*)x != 12345.0f); y[i] = acc;")
unwritten = by("if (!wrong || i != 7) y[i] = acc;", keeps=True)
modifies_weights = by("y[i] = acc; if (wrong && i == 0) ((float*)w)[5] += 1.0f;")
slightly_off = by("y[i] = wrong ? acc * 1.001f : acc;")
