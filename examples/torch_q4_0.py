"""A kernel in PyTorch, on a GPU if there is one: Q4_0 weights, dequantized once, × float32 activations.

Run it by `gguf-verify model-Q4_0.gguf --kernel examples/torch_q4_0.py:gemm`.
"""

import torch

from gguf_verify import kernel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False  # TF32 has a significand of only 10 bits


def pack(rows, fmt):
    """float32[N, K] on the device from uint8[N, K/32·18]: called once per matrix."""
    blocks = torch.from_numpy(rows).to(device).reshape(len(rows), -1, 18)
    d, qs = blocks[..., :2].contiguous().view(torch.float16), blocks[..., 2:]
    # values 0…15 are the low nibbles, 16…31 the high ones
    codes = torch.cat([qs & 15, qs >> 4], dim=-1)
    return ((codes.float() - 8) * d.float()).reshape(len(rows), -1)


@kernel(formats=["Q4_0"], semantics="f32", pack=pack)
def gemm(weights, activations, shape):
    """float32[M, N] from what `pack` made and float32[M, K]."""
    return torch.from_numpy(activations).to(device) @ weights.T
