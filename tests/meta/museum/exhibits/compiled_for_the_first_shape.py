# [museum]
# source = "torch-spyre/torch-spyre#2523"
# class = "cached"
# essence = "The kernel that was compiled for the first number of tokens is used for all others: it
#   writes only so many rows of the output, and the rest stays zero."
# shows_when = "a second call with more tokens"
# names = []
# says = ["cache|earlier call|first call|leftover"]
# [/museum]
import numpy as np

from gguf_verify import kernel

BUG = 1
Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
compiled: dict = {}


def weights(rows, fmt):
    blocks = rows.view(Q4_0)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    return (codes * blocks["d"].astype(np.float32)[..., None]).reshape(len(rows), -1)


@kernel(formats=["Q4_0"], semantics="f32", pack=weights)
def gemm(weights, activations, shape):
    tokens = compiled.setdefault((shape.n, shape.k), shape.m) if BUG else shape.m
    y = np.zeros((shape.m, shape.n), np.float32)
    y[:tokens] = activations[:tokens] @ weights.T
    return y
