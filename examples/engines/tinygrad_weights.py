"""tinygrad's decoding of GGUF (tinygrad.llm.gguf.ggml_data_to_tensor): alone, and times float32.

On a machine without a GPU it uses the back end with its own assembler.
"""

import os
from pathlib import Path

import gguf
import numpy as np

from gguf_verify import kernel

if not Path("/dev/nvidiactl").exists():
    os.environ["DEV"] = "CPU:X86"
os.environ["PARALLEL"] = "0"  # compile in this process: others are refused in the sandbox

from tinygrad import Tensor
from tinygrad.llm.gguf import ggml_data_to_tensor

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "MXFP4"]
#: It computes q·d - 16·d, which differs from (q - 16)·d only for non-finite scales.
ARITHMETIC = dict.fromkeys(TYPES, "float32") | {"Q5_0": "float32_offset_mul_add"}


def _decoded(rows, kind, n, k):
    """float32[n, k] on the device."""
    kind = gguf.GGMLQuantizationType[kind]
    return ggml_data_to_tensor(Tensor(np.ascontiguousarray(rows).reshape(-1)), n * k, int(kind)).reshape(n, k)


@kernel(TYPES, computes="dequantize", output="float32", arithmetic=ARITHMETIC)
def dequantize(weights, shape):
    return _decoded(weights, shape.format, shape.n, shape.k).numpy()


def pack(rows, fmt):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[fmt]]
    return _decoded(rows, fmt, len(rows), rows.shape[1] // size * block).realize()


@kernel(TYPES, semantics="f32", pack=pack)
def linear(weights, activations, shape):
    return Tensor(activations).linear(weights.T).numpy()
