# [museum]
# source = "constructed (a list of probes may miss it)"
# class = "cached"
# essence = "Weights are repacked once for each shape: a second matrix of the same shape gets the first one's weights."
# shows_when = "two matrices of one shape in turn"
# names = []
# says = ["cache|earlier call|another call|first call|in turn|another matrix"]
# [/museum]
import numpy as np

from gguf_verify import kernel

BUG = 1
Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
kept: dict = {}


def weights(rows, fmt):
    blocks = rows.view(Q4_0)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    return (codes * blocks["d"].astype(np.float32)[..., None]).reshape(len(rows), -1)


@kernel(formats=["Q4_0"], semantics="f32", pack=weights)
def gemm(weights, activations, shape):
    w = kept.setdefault(weights.shape, weights.copy()) if BUG else weights
    return activations @ w.T
