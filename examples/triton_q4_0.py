"""A kernel in Triton, on a GPU: Q4_0 weights × float32 activations, dequantized in the kernel.

Run it by `gguf-verify model-Q4_0.gguf --kernel examples/triton_q4_0.py:gemm` (TRITON_INTERPRET=1 runs it on a CPU).
"""

import torch
import triton
import triton.language as tl

from gguf_verify import kernel

device = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 32


def pack(rows, fmt):
    """Scales half[N, K/32] and codes uint8[N, K/32·16] on the device, from uint8[N, K/32·18]: once per matrix."""
    blocks = torch.from_numpy(rows).to(device).reshape(len(rows), -1, 18)
    d, qs = blocks[..., :2].contiguous().view(torch.float16), blocks[..., 2:].contiguous()
    return d.reshape(len(rows), -1), qs.reshape(len(rows), -1)


@triton.jit
def multiply(d, qs, x, y, n, blocks, rows_at_once: tl.constexpr):
    """Compute the outputs of some rows of the weights for one token per program."""
    m = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) * rows_at_once + tl.arange(0, rows_at_once)).to(tl.int64)
    j = tl.arange(0, 16)
    inside = row < n
    acc = tl.zeros([rows_at_once], tl.float32)
    for b in range(0, blocks):
        scale = tl.load(d + row * blocks + b, mask=inside, other=0.0).to(tl.float32)
        at = (row * blocks + b) * 16
        codes = tl.load(qs + at[:, None] + j[None, :], mask=inside[:, None], other=0).to(tl.int32)
        # values 0…15 are the low nibbles, 16…31 the high ones
        first = tl.load(x + (m * blocks + b) * 32 + j)
        second = tl.load(x + (m * blocks + b) * 32 + 16 + j)
        low, high = ((codes & 15) - 8).to(tl.float32), ((codes >> 4) - 8).to(tl.float32)
        acc += scale * tl.sum(low * first[None, :] + high * second[None, :], axis=1)
    tl.store(y + m * n + row, acc, mask=inside)


@kernel(formats=["Q4_0"], semantics="f32", pack=pack)
def gemm(weights, activations, shape):
    """float32[M, N] on the device, from what `pack` made and float32[M, K]."""
    d, qs = weights
    x = torch.from_numpy(activations).to(device)
    y = torch.empty((shape.m, shape.n), dtype=torch.float32, device=device)
    multiply[(triton.cdiv(shape.n, ROWS), shape.m)](d, qs, x, y, shape.n, shape.k // 32, rows_at_once=ROWS)
    return y
