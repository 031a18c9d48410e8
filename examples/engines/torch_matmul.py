"""PyTorch's matmul of weights decoded by gguf-py's `dequantize`: on a GPU if there is one, in three types.

Weights are rounded once to the type of the activations. PyTorch's flags keep their defaults.
"""

import gguf
import torch

from gguf_verify import kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S",
    "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
]  # fmt: skip


def _offer(dtype, **declared):
    def pack(rows, fmt):
        values = gguf.dequantize(rows.cpu().numpy(), gguf.GGMLQuantizationType[fmt])
        return torch.from_numpy(values).to(DEVICE, getattr(torch, dtype))

    def product(weights, activations, shape):
        return torch.nn.functional.linear(activations, weights)

    given = {"pack": pack, "output": dtype, "arrays": "torch", "device": DEVICE, **declared}
    globals()[f"linear_{dtype}"] = kernel(TYPES, **given)(product)


SUMS = "tensor" if DEVICE == "cuda" else "float32"
_offer("float32", semantics="f32")
_offer("float16", activations="float16", term="half_values", accumulates=SUMS)
_offer("bfloat16", activations="bfloat16", term="bfloat16_values", accumulates=SUMS)
