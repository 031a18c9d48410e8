# [museum]
# source = "vllm-project/vllm-gguf-plugin#136"
# class = "table"
# essence = "150 bytes of the grid of IQ3_S read 0x3e where they must be 0x3c: these values are 3.3 % too large."
# shows_when = "codes of IQ3_S that stand for such an entry; the project's own test allowed 4 %"
# names = []
# says = ["0x3[ce]|table|grid"]
# [/museum]
import numpy as np
from gguf.quants import IQ3_S

from gguf_verify import kernel

BUG = 1
IQ3_S.init_grid()
if BUG:
    IQ3_S.grid = IQ3_S.grid.copy()
    flat = IQ3_S.grid.reshape(-1)
    flat[np.flatnonzero(flat == flat.max())[:150]] *= np.float32(0x3E / 0x3C)


def weights(rows, fmt):
    return IQ3_S.dequantize_blocks(rows.reshape(-1, 110)).reshape(len(rows), -1).astype(np.float32)


@kernel(formats=["IQ3_S"], semantics="f32", pack=weights)
def gemm(weights, activations, shape):
    return activations @ weights.T
