"""gguf-py's `dequantize`, in NumPy: alone, and with NumPy's float32 product."""

import gguf

from gguf_verify import kernel

TYPES = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S",
    "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
]  # fmt: skip


def pack(rows, fmt):
    return gguf.dequantize(rows, gguf.GGMLQuantizationType[fmt])


@kernel(TYPES, computes="dequantize", output="float32", arithmetic="float32")
def dequantize(weights, shape):
    return pack(weights, shape.format)


@kernel(TYPES, semantics="f32", pack=pack)
def product(weights, activations, shape):
    return activations @ weights.T
