"""A kernel in NumPy: Q4_0 weights × Q8_1 activations.

Run it by `gguf-verify model-Q4_0.gguf --kernel examples/numpy_q4_0.py:gemm`.
"""

import numpy as np

from gguf_verify import kernel

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])  # 18 bytes: a scale, 32 codes of 4 bits
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])  # 36 bytes: a scale, the sum of the values, 32 codes


@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(weights, activations, shape):
    """float32[M, N] from uint8[N, K/32·18] and uint8[M, K/32·36]."""
    w, x = weights.view(Q4_0), activations.view(Q8_1)  # [N, K/32], [M, K/32]
    # values 0…15 are the low nibbles, 16…31 the high ones
    codes = np.concatenate([w["qs"] & 15, w["qs"] >> 4], axis=-1).astype(np.float32)
    y = np.zeros((shape.m, shape.n), np.float32)
    for b in range(shape.k // 32):
        d_w, d_a, s = (v[:, b].astype(np.float32) for v in (w["d"], x["d"], x["s"]))
        products = x["qs"][:, b].astype(np.float32) @ codes[:, b].T  # integers, exact in float32
        y += d_w * (d_a[:, None] * products - 8 * s[:, None])  # w = d_w·(q - 8)
    return y
