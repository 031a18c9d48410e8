# [museum]
# source = "ooples/AiDotNet.Tensors#306"
# class = "cached"
# essence = "A compiled plan is kept by the shapes of its operands, and with it the operands
#   of the first call: a second call of the same shape returns the first one's result."
# shows_when = "two calls of the same shape"
# names = []
# says = ["cache|earlier call|another call|first call"]
# quick = true
# [/museum]
import numpy as np

from gguf_verify import kernel

BUG = 1
Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
plans: dict = {}


def weights(rows, fmt):
    blocks = rows.view(Q4_0)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    return (codes * blocks["d"].astype(np.float32)[..., None]).reshape(len(rows), -1)


@kernel(formats=["Q4_0"], semantics="f32", pack=weights)
def gemm(weights, activations, shape):
    plan = plans.setdefault(shape, (weights.copy(), activations.copy()))
    w, x = plan if BUG else (weights, activations)
    return x @ w.T
